//! No code: the tests of this crate check the structure of the workspace.
//!
//! - dependencies between crates: equal to the table in ARCHITECTURE.md;
//! - imports between the files of each crate: no circle of more than three files;
//! - source files: each belongs to a library, a program or a test, since a file that none declares is not compiled;
//! - dependencies of the storage crates: they build without DataFusion and Substrait;
//! - documentation: each crate has some, and its examples run;
//! - texts of errors: no code decides by them.
