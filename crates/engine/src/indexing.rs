//! Builds an index over a drive's own slices, stripe by stripe and segment by segment, in bounded memory.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use skytether_common::{Error, PartitionName, Result};
use skytether_index::segment::Source;
use skytether_index::{Building, Built, Definition, Order};
use skytether_slice::Layout;

use crate::reader::{Partition, Reader};

/// Rows per decoded batch.
const BATCH_ROWS: usize = 1 << 16;

/// A partition whose index is being built.
#[derive(Debug)]
pub struct Indexing {
    reader: Arc<Reader>,
    partition: Arc<Partition>,
    columns: Vec<(usize, Order)>,
    held: Vec<usize>,
    source: Source,
}

impl Indexing {
    /// Begins an index of partition `of` by `definition`. Blocks.
    ///
    /// # Errors
    /// NotFound where there is no such partition or column; Unsupported where a column has no order, or the table is a
    /// matrix; as reading.
    pub fn of(reader: &Arc<Reader>, of: &PartitionName, definition: &Definition) -> Result<Self> {
        let partition = reader.partition(of)?;
        if partition.metadata.layout != Layout::Table {
            return Err(Error::unsupported(format!("{} is a matrix, which has no indexes: its genes are found by their numbers", partition.title())));
        }
        let column = |name: &String| {
            let at = partition.column(name)?;
            let order =
                Order::of(partition.metadata.schema.field(at).data_type(), texts_between(&partition, name).as_ref().map(|(a, b)| (a.as_slice(), b.as_slice())));
            let unordered = || Error::unsupported(format!("column {name:?} of {} has no order that an index could keep", partition.title()));
            Ok((at, order.ok_or_else(unordered)?))
        };
        let columns = definition.columns.iter().map(column).collect::<Result<Vec<_>>>()?;
        let held = definition.held().map(|name| partition.column(name)).collect::<Result<Vec<_>>>()?;
        let source = reader.source(of)?;
        Ok(Self { reader: Arc::clone(reader), partition, columns, held, source })
    }

    /// How many stripes there are.
    #[must_use]
    pub fn stripes(&self) -> u32 {
        u32::try_from(self.partition.metadata.stripes()).unwrap_or(u32::MAX)
    }

    /// The content from which it is built.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// A segment without rows.
    #[must_use]
    pub fn begin(&self) -> Building {
        let name = |at: &usize| self.partition.metadata.schema.field(*at).name().clone();
        Building::new(self.columns.iter().map(|(at, order)| (name(at), order.clone())).collect(), self.held.iter().map(name).collect())
    }

    /// Adds the rows of a stripe, on the processor of the device. Blocks.
    ///
    /// # Errors
    /// As reading a slice.
    pub fn add(&self, building: &mut Building, stripe: u32) -> Result<()> {
        self.paying(|| {
            let mut wanted: Vec<usize> = self.columns.iter().map(|(at, _)| *at).chain(self.held.iter().copied()).collect();
            wanted.sort_unstable();
            wanted.dedup();
            let rows = self.read(stripe, &wanted)?;
            let pick = |columns: &mut dyn Iterator<Item = usize>| {
                let places = columns.filter_map(|at| wanted.binary_search(&at).ok()).collect::<Vec<_>>();
                rows.project(&places).map_err(|e| Error::internal("cannot pick columns").with_source(e))
            };
            let columns = pick(&mut self.columns.iter().map(|(at, _)| *at))?;
            let held = if self.held.is_empty() { None } else { Some(pick(&mut self.held.iter().copied())?) };
            building.push(&columns, held)
        })
    }

    /// Puts the rows of a segment in order, on the processor of the device. Blocks.
    ///
    /// # Errors
    /// As [`Building::finish`].
    pub fn finish(&self, building: Building, first: u32) -> Result<Built> {
        self.paying(|| building.finish(self.source, first))
    }

    fn paying<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.reader.processor() {
            Some(processor) => processor.work(work),
            None => work(),
        }
    }

    /// All rows of a stripe, with the ascending columns `wanted`.
    fn read(&self, stripe: u32, wanted: &[usize]) -> Result<RecordBatch> {
        let torn =
            |e: arrow::error::ArrowError| Error::corrupt(format!("the slices of a stripe of {} do not fit together", self.partition.title())).with_source(e);
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for part in self.reader.stripe(&self.partition, stripe, wanted)? {
            let batches = Reader::decode(&self.partition, part, BATCH_ROWS)?.collect::<Result<Vec<_>>>()?;
            let Some(first) = batches.first() else { continue };
            let schema = first.schema();
            let rows = arrow::compute::concat_batches(&schema, &batches).map_err(torn)?;
            fields.extend(schema.fields().iter().cloned());
            columns.extend(rows.columns().iter().cloned());
        }
        if columns.is_empty() {
            let schema = self.partition.metadata.schema.project(wanted).map_err(torn)?;
            return Ok(RecordBatch::new_empty(Arc::new(schema)));
        }
        RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields)), columns).map_err(torn)
    }
}

/// A lower and an upper bound of a column of texts or bytes, over all stripes.
fn texts_between(partition: &Partition, column: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let stats = &partition.metadata.stats;
    let bytes = |array: arrow::array::ArrayRef| {
        let binary = arrow::compute::cast(&array, &arrow::datatypes::DataType::LargeBinary).ok()?;
        let binary = arrow::array::AsArray::as_binary_opt::<i64>(&binary)?.clone();
        Some(binary)
    };
    let (low, high) = (bytes(stats.min(column)?)?, bytes(stats.max(column)?)?);
    if arrow::array::Array::null_count(&low) + arrow::array::Array::null_count(&high) > 0 {
        return None;
    }
    Some((low.iter().flatten().min()?.to_vec(), high.iter().flatten().max()?.to_vec()))
}
