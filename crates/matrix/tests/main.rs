//! Transposing and Matrix Market files against a model. One program for all of them: linking takes
//! longer than most of them run.

mod model;
mod mtx;
