//! From cell-major (or any other) sparse input to gene-major rows under a memory limit, and the text formats of such
//! input.
//!
//! A [`Transposer`] takes compressed rows, compressed columns, dense rows and triplets in any order and mixture. It
//! keeps them as a stream of bytes per gene, about two bytes for a small count. It returns them as a [`Transposed`]:
//! one ascending row per gene and block of cells, as sparse slices need them. Data beyond the memory limit goes to one
//! unnamed temporary file, written and read in sequence.
//!
//! [`mtx`] reads Matrix Market files, and [`tsv`] the gene and barcode lists that belong to them.
//!
//! This crate knows no HDF5, no AnnData and no slices; the caller moves buffers in and rows out.
//!
//! ```
//! use skytether_matrix::{TransposeOptions, Transposer};
//!
//! let (cells, genes) = (2, 3);
//! let mut transposer = Transposer::new(cells, genes, TransposeOptions::default())?;
//! // Cell 0 has 5 of gene 2 and 1 of gene 0; cell 1 has 7 of gene 2.
//! transposer.push_triplets(&[2, 0, 2], &[0, 0, 1], &[5u32, 1, 7])?;
//! let matrix = transposer.finish()?;
//! assert_eq!((matrix.nnz_per_gene(), matrix.totals()), ([1, 0, 2].as_slice(), [6.0, 7.0].as_slice()));
//!
//! let mut rows = Vec::new();
//! matrix.rows(0..genes, &mut |gene, _block, cells, _values| {
//!     rows.push((gene, cells.to_vec()));
//!     Ok(())
//! })?;
//! assert_eq!(rows, [(0, vec![0]), (1, vec![]), (2, vec![0, 1])]);
//! # Ok::<(), skytether_common::Error>(())
//! ```
//!
//! See also `docs/internals/formats/expression-tables.md`.

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
