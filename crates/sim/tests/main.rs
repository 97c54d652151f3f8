//! Whole fleets on a simulated clock. All tests are one program, because linking takes longer than most of them run.

mod chaos;
mod regret;
mod skyhook;
