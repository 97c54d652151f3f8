//! A discrete-event simulator of hosts and drives that runs the decisions of `skytether-adapt` on a simulated clock.
