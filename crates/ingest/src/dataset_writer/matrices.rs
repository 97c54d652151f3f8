//! Matrices of an ingest, and parts that a version adds to them.

use futures::future::BoxFuture;
use skytether_catalog::records::root::{MatrixRecord, PartRecord, RootRecord, TableRecord};
use skytether_common::names::part_table;
use skytether_common::{Error, Result, Span};
use skytether_matrix::Transposed;
use skytether_partitioning::Placement;
use skytether_runtime::within;
use skytether_slice::{Layout, Metadata, ValueType};

use super::{DatasetWriter, State, settle};
use crate::matrix_writer;
use crate::write_pipeline::WritePipeline;

/// Parts of a matrix, at most: a query asks each drive once for each.
pub const MOST_PARTS: usize = 8;

/// What a table with a matrix, or with a part of one, holds.
struct Shape {
    span: Span,
    value: ValueType,
    part: Option<PartRecord>,
}

impl DatasetWriter {
    /// Writes a matrix as contiguous ranges of genes with about equal numbers of nonzeros, one range per drive. All
    /// cores encode.
    ///
    /// # Errors
    /// The transposition's errors; errors of the drives. After an error the caller can only drop the writer.
    pub fn write_matrix<'a>(&'a mut self, table: &'a str, matrix: &'a Transposed) -> BoxFuture<'a, Result<()>> {
        let shape = Shape { span: Span::whole(matrix.n_cells()), value: matrix.value_type(), part: None };
        Box::pin(async move {
            self.check_table(table)?;
            self.write_shaped(table, matrix, shape).await
        })
    }

    /// For a version: adds the cells of `matrix` behind those of the stored matrix `table`, as a part of their own.
    /// What is stored stays as it is. All matrices of the data set need the same cells before the commit.
    ///
    /// # Errors
    /// `Unsupported` where the matrix can't take them as a part, so that it must be written again. It has
    /// [`MOST_PARTS`], no cells or no genes, or values of a narrower type. The writer can go on after that. `Invalid`
    /// for a writer that is no version's, for a table that is no matrix or was written, and for another number of
    /// genes. Else as [`Self::write_matrix`].
    pub fn append_cells<'a>(&'a mut self, table: &'a str, matrix: &'a Transposed) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if self.has(table) {
                return Err(Error::invalid(format!("{} has been given the table {table:?} twice", self.name)));
            }
            let (name, part, stored) = self.next_part(table, matrix)?;
            let value = self.stored_type(table).await?;
            if !fits(matrix.value_type(), value) {
                return Err(Error::unsupported(format!(
                    "{}.{table} stores values as {value:?}, and the new ones need {:?}: write the matrix again with all cells",
                    self.name,
                    matrix.value_type()
                )));
            }
            let end = u64::from(stored.end) + u64::from(matrix.n_cells());
            let end = u32::try_from(end).ok().filter(|end| i32::try_from(*end).is_ok());
            let end = end.ok_or_else(|| Error::unsupported(format!("{} would have more than {} cells, which no matrix has", self.name, i32::MAX)))?;
            let span = Span { block: part.first_block, cell: part.first_cell, end };
            self.write_shaped(&name, matrix, Shape { span, value, part: Some(part) }).await
        })
    }

    /// The name and the place of the part that `matrix` becomes, and the cells of the part before.
    fn next_part(&self, table: &str, matrix: &Transposed) -> Result<(String, PartRecord, Span)> {
        let refused = |why: &str| Error::unsupported(format!("{}.{table} {why}: write the matrix again with all cells", self.name));
        let from = self.from.as_ref().ok_or_else(|| Error::invalid(format!("{} is written as a whole: there is nothing to append to", self.name)))?;
        let known = from.table(table)?;
        let shape = known.matrix.filter(|_| known.part.is_none()).ok_or_else(|| Error::invalid(format!("{}.{table} is no matrix", self.name)))?;
        if shape.genes != matrix.n_genes() {
            return Err(Error::invalid(format!("{}.{table} has {} genes, and the new cells have {}", self.name, shape.genes, matrix.n_genes())));
        }
        let parts = from.parts(table);
        if parts.len() >= MOST_PARTS {
            return Err(refused(&format!("has {} parts already", parts.len())));
        }
        let blocks = from.blocks(table)?;
        let last = blocks.as_ref().and_then(|blocks| blocks.parts().last()).filter(|last| last.cells() > 0);
        match last {
            Some(last) if shape.genes > 0 && matrix.n_cells() > 0 => {
                let part = PartRecord { first_cell: last.end, first_block: last.next_block() };
                Ok((part_table(parts.len(), table), part, *last))
            }
            _ => Err(refused("has no cells or genes, or there are no new cells")),
        }
    }

    /// The type of the values of a stored matrix.
    async fn stored_type(&self, table: &str) -> Result<ValueType> {
        let from: &RootRecord = self.from.as_deref().ok_or_else(|| Error::internal("a part of a matrix that is not there"))?;
        let lacks = || Error::corrupt(format!("the root record of {} names no partition of {table}", self.name));
        let partition = from.table(table)?.partitions.iter().min_by_key(|partition| partition.slices).ok_or_else(lacks)?;
        let key = from.partition(table, partition.slot).key()?;
        let drive = &self.catalog.drives()[self.catalog.drive(&partition.drive, &self.name)?];
        let read = within(self.catalog.deadline(), &drive.info().name, "read a table's metadata", drive.get(&key));
        let bytes = read.await.map_err(|e| e.context(format!("{} could not tell what {}.{table} stores", drive.info().name, self.name)))?;
        match Metadata::decode(&bytes).map_err(|e| e.context(format!("the metadata slice {key} can't be read")))?.layout {
            Layout::Sparse { value, .. } => Ok(value),
            Layout::Table => Err(Error::corrupt(format!("{}.{table} is a matrix by its root record, and none by its metadata", self.name))),
        }
    }

    async fn write_shaped(&mut self, table: &str, matrix: &Transposed, shape: Shape) -> Result<()> {
        self.state = State::Failed;
        let writes = WritePipeline::new(&self.catalog);
        let Shape { span, value, part } = shape;
        let encoded = tokio::task::block_in_place(|| {
            let drives = self.order(Placement::Spread, true)?;
            let coder = self.coder(&writes, table, &drives)?;
            let name = |slot: u32| self.partition(table, slot);
            let to = matrix_writer::To { catalog: &self.catalog, writes: &writes, drives: &drives, coder: coder.as_ref(), name: &name, span, value };
            let partitions = matrix_writer::write(&to, &self.slices, matrix)?;
            Ok((partitions, coder.map(|coder| coder.finish(&self.catalog)).transpose()?))
        });
        let (partitions, redundancy) = settle(writes, encoded).await?;
        let rows = partitions.iter().map(|p| p.rows).sum();
        let shape = MatrixRecord { cells: span.end, genes: matrix.n_genes(), nonzeros: matrix.nnz() };
        self.tables.insert(
            table.to_owned(),
            TableRecord {
                generation: None,
                placement: Placement::Spread,
                rows,
                matrix: Some(shape),
                part,
                memory_bytes: None,
                partitioned_by: None,
                partitions,
                redundancy,
            },
        );
        self.state = State::Writing;
        Ok(())
    }
}

/// Whether a stored type holds every value of another exactly.
fn fits(value: ValueType, stored: ValueType) -> bool {
    let of = |value: ValueType| match value {
        ValueType::UInt16 => 0,
        ValueType::UInt32 => 1,
        ValueType::Float32 => 2,
        ValueType::Float64 => 3,
    };
    // Not all whole numbers of 32 bits are numbers of single precision.
    of(value) <= of(stored) && !(value == ValueType::UInt32 && stored == ValueType::Float32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_types_hold_narrower_ones() {
        let all = [ValueType::UInt16, ValueType::UInt32, ValueType::Float32, ValueType::Float64];
        let fitting: Vec<Vec<bool>> = all.iter().map(|stored| all.iter().map(|value| fits(*value, *stored)).collect()).collect();
        assert_eq!(fitting, [[true, false, false, false], [true, true, false, false], [true, false, true, false], [true; 4]]);
    }
}
