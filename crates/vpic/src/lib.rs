//! Particles of plasma simulations, as VPIC writes them.
//!
//! [`vpic`] reads and writes the raw records. [`generate`] makes synthetic particles with the published distribution of
//! energies. Both have one table, [`schema`]. Particles follow from a seed. This crate does I/O only through the
//! readers and writers that it is given. `skytether` (module `files`) makes data sets of them.
//!
//! ```
//! use skytether_vpic::{Particles, Records};
//!
//! let particles = Particles::new(1000, 7);
//! let dump = particles.records(0..10)?;
//! let read: Vec<_> = Records::new("dump.vpic", dump.as_slice(), 4).collect::<Result<_, _>>()?;
//! assert_eq!(read.iter().map(|batch| batch.num_rows()).collect::<Vec<_>>(), [4, 4, 2]);
//! assert_eq!(read[0].schema(), skytether_vpic::schema());
//! # Ok::<(), skytether_common::Error>(())
//! ```
//!
//! See also `docs/physicists.md`.

pub mod generate;
pub mod vpic;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Float32Type, Schema, SchemaRef, UInt64Type};
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

pub use generate::{PUBLISHED, Particles};
pub use vpic::{RECORD, Records};

/// The columns of a table of particles: `ID: UInt64, x, y, z, ke: Float32`, nothing nullable. 24 bytes a row.
#[must_use]
pub fn schema() -> SchemaRef {
    let float = |name: &str| Field::new(name, DataType::Float32, false);
    Arc::new(Schema::new(vec![Field::new("ID", DataType::UInt64, false), float("x"), float("y"), float("z"), float("ke")]))
}

/// Particles column by column, before they are a batch.
#[derive(Debug, Default)]
struct Columns {
    id: Vec<u64>,
    place: [Vec<f32>; 3],
    ke: Vec<f32>,
}

impl Columns {
    fn with_capacity(rows: usize) -> Self {
        Self { id: Vec::with_capacity(rows), place: std::array::from_fn(|_| Vec::with_capacity(rows)), ke: Vec::with_capacity(rows) }
    }

    fn finish(self) -> Result<RecordBatch> {
        let [x, y, z] = self.place;
        let float = |values: Vec<f32>| Arc::new(Float32Array::from(values)) as ArrayRef;
        RecordBatch::try_new(schema(), vec![Arc::new(UInt64Array::from(self.id)), float(x), float(y), float(z), float(self.ke)])
            .map_err(|e| Error::internal("particles do not fit their schema").with_source(e))
    }
}

/// The columns of a batch of particles: ID, x, y, z, ke.
///
/// # Errors
/// `Invalid` where it is none.
fn columns(batch: &RecordBatch) -> Result<(&[u64], [&[f32]; 4])> {
    let fits = batch.num_columns() == 5 && batch.columns().iter().zip(schema().fields()).all(|(c, f)| c.data_type() == f.data_type() && c.null_count() == 0);
    if !fits {
        return Err(Error::invalid(format!("a batch of {} is none of particles, which are {}", batch.schema(), schema())));
    }
    let float = |at: usize| batch.column(at).as_primitive::<Float32Type>().values().as_ref();
    Ok((batch.column(0).as_primitive::<UInt64Type>().values(), [float(1), float(2), float(3), float(4)]))
}
