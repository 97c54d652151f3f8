//! Builds a partition's metadata while its slices are written.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt64Array, new_empty_array};
use arrow::compute;
use arrow::datatypes::SchemaRef;
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Result};

use super::Metadata;
use super::entry::SliceEntry;
use super::stats_table::{Bounds, StatsTable};
use crate::encoded::Encoded;
use crate::groups::Groups;
use crate::layout::Layout;
use crate::sections;
use crate::stats::stats_type;

/// Builds a partition's metadata while its slices are written.
#[derive(Debug)]
pub struct MetadataBuilder {
    layout: Layout,
    schema: SchemaRef,
    application: BTreeMap<String, String>,
    groups: Groups,
    rows: Vec<u64>,
    slices: Vec<SliceEntry>,
    /// `None` from the first stripe on that has no section ends.
    sections: Option<sections::SectionsBuilder>,
    columns: Vec<Option<BoundsBuilder>>,
}

#[derive(Debug, Default)]
struct BoundsBuilder {
    min: Chunks,
    max: Chunks,
    nulls: Vec<u64>,
}

/// One-row arrays, joined as they become many, so that a wide table of many slices does not hold millions of tiny
/// arrays.
#[derive(Debug, Default)]
struct Chunks(Vec<ArrayRef>);

impl Chunks {
    fn push(&mut self, array: ArrayRef) -> Result<()> {
        self.0.push(array);
        while let [.., a, b] = self.0.as_slice()
            && a.len() <= b.len()
        {
            let joined = concat(&[a, b])?;
            self.0.truncate(self.0.len() - 2);
            self.0.push(joined);
        }
        Ok(())
    }

    fn finish(self) -> Result<Option<ArrayRef>> {
        if self.0.is_empty() { Ok(None) } else { concat(&self.0.iter().collect::<Vec<_>>()).map(Some) }
    }
}

fn concat(arrays: &[&ArrayRef]) -> Result<ArrayRef> {
    let arrays: Vec<&dyn Array> = arrays.iter().map(|a| a.as_ref()).collect();
    compute::concat(&arrays).map_err(|e| Error::internal("cannot join bounds").with_source(e))
}

impl MetadataBuilder {
    /// The builder of a partition without slices.
    #[must_use]
    pub fn new(layout: Layout, schema: SchemaRef, application: BTreeMap<String, String>) -> Self {
        let columns = schema.fields().iter().map(|f| stats_type(f.data_type()).map(|_| BoundsBuilder::default())).collect();
        let groups = Groups::of(schema.fields().len());
        Self { layout, schema, application, groups, rows: Vec::new(), slices: Vec::new(), sections: Some(sections::SectionsBuilder::new(groups)), columns }
    }

    /// Adds the next stripe.
    ///
    /// # Errors
    /// `Invalid` where its slices or statistics are not those of a stripe of this schema.
    pub fn add(&mut self, stripe: &Encoded) -> Result<()> {
        let stats = &stripe.stats;
        let fits = stripe.slices().count() == self.groups.len()
            && stats.columns.len() == self.columns.len()
            && stats.columns.iter().zip(self.schema.fields()).all(|(column, field)| match (column, stats_type(field.data_type())) {
                (None, None) => true,
                (Some(c), Some(due)) => c.min.len() == 1 && c.max.len() == 1 && *c.min.data_type() == due && *c.max.data_type() == due,
                _ => false,
            });
        if !fits {
            return Err(Error::invalid(format!("a stripe's slices or statistics do not fit a table of {}", self.schema)));
        }
        match (&stripe.ends, &mut self.sections) {
            (Some(ends), Some(sections)) => sections.add(self.groups, stripe.slices(), ends)?,
            _ => self.sections = None,
        }
        for (growing, column) in self.columns.iter_mut().zip(&stats.columns) {
            if let (Some(growing), Some(column)) = (growing, column) {
                growing.min.push(Arc::clone(&column.min))?;
                growing.max.push(Arc::clone(&column.max))?;
                growing.nulls.push(column.nulls);
            }
        }
        self.rows.push(stats.rows);
        self.slices.extend(stripe.slices().map(|bytes| SliceEntry { rows: stats.rows, len: bytes.len() as u64, crc32c: crc32c(bytes) }));
        Ok(())
    }

    /// The metadata of all slices so far.
    ///
    /// # Errors
    /// `Internal` where bounds cannot be joined.
    pub fn finish(self) -> Result<Metadata> {
        let mut columns = Vec::with_capacity(self.columns.len());
        for (growing, field) in self.columns.into_iter().zip(self.schema.fields()) {
            let Some((growing, bound)) = growing.zip(stats_type(field.data_type())) else {
                columns.push(None);
                continue;
            };
            columns.push(Some(Bounds {
                min: growing.min.finish()?.unwrap_or_else(|| new_empty_array(&bound)),
                max: growing.max.finish()?.unwrap_or_else(|| new_empty_array(&bound)),
                nulls: UInt64Array::from(growing.nulls),
            }));
        }
        let sections = self.sections.filter(|_| !self.slices.is_empty()).map(|sections| sections.finish(self.groups)).transpose()?;
        Ok(Metadata {
            sections,
            layout: self.layout,
            rows: self.rows.iter().sum(),
            groups: self.groups,
            stats: StatsTable::assemble(Arc::clone(&self.schema), UInt64Array::from(self.rows), columns),
            schema: self.schema,
            slices: self.slices,
            application: self.application,
        })
    }
}
