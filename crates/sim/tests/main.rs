//! Whole fleets on a simulated clock. One program for all of them: linking takes longer than most of them run.

mod chaos;
mod regret;
mod skyhook;
