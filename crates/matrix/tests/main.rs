//! Transposing and Matrix Market files against a model. All tests are one program, because linking takes longer than
//! most of them run.

mod model;
mod mtx;
