//! From cell-major (or any other) sparse input to gene-major rows under a memory limit, and the text formats that such
//! input comes in.
//!
//! A [`Transposer`] takes compressed rows, compressed columns, dense rows and triplets in any order and mixture, keeps
//! them as a stream of bytes per gene (about two bytes for a small count), and gives them back as a [`Transposed`]: one
//! ascending row per gene and block of cells, which is what sparse slices are made of. What does not fit the memory
//! limit goes to one unnamed temporary file, written and read in sequence.
//!
//! [`mtx`] and [`tsv`] read Matrix Market and the gene and barcode lists beside it.
//!
//! What this crate is not: it knows no HDF5, no AnnData and no slices; the caller moves buffers in and rows out.

pub mod mtx;
mod numbers;
mod records;
mod rows;
mod run;
mod spill;
mod text;
mod transposer;
pub mod tsv;

pub use mtx::{MtxHeader, MtxReader};
pub use numbers::{Index, Value};
pub use rows::{RowFn, Transposed};
pub use transposer::{TransposeOptions, Transposer};
