//! No code: the tests of this crate check the structure of the workspace.
//!
//! - the dependencies between crates against the table in ARCHITECTURE.md;
//! - the imports between the files of each crate, which may form no circle of more than three files;
//! - the sources, of which each belongs to a library, a program or a test: a file that none declares is not compiled;
//! - the dependencies of the storage crates, which must build without DataFusion and Substrait;
//! - examples in documentation, which must be run, and documentation of each crate;
//! - texts of errors, by which no code may decide.
