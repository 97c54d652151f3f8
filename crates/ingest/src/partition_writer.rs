//! [`PartitionWriter`]: writes the partitions of one table, slice by slice and then the metadata slice.

use std::collections::BTreeMap;

use arrow::datatypes::SchemaRef;
use skytether_catalog::records::bounds::Bounds;
use skytether_catalog::records::partition::PartitionRecord;
use skytether_catalog::root_store::Catalog;
use skytether_common::{Error, PartitionName, Result};
use skytether_slice::{Encoded, Layout, MetadataBuilder};

use crate::stripe_encoder::StripeEncoder;
use crate::write_pipeline::WritePipeline;

/// Partitions of one table while they are written.
pub(crate) struct PartitionWriter<'a> {
    writes: &'a WritePipeline,
    name: PartitionName,
    drives: Vec<usize>,
    coder: Option<&'a StripeEncoder<'a>>,
    metadata: MetadataBuilder,
    pub(crate) rows: u64,
    pub(crate) slices: u32,
    bytes: u64,
}

impl<'a> PartitionWriter<'a> {
    /// A partition that every one of `drives` gets a copy of.
    pub(crate) fn new(writes: &'a WritePipeline, name: PartitionName, drives: Vec<usize>, layout: Layout, schema: SchemaRef) -> Self {
        let metadata = MetadataBuilder::new(layout, schema, BTreeMap::new());
        Self { writes, name, drives, coder: None, metadata, rows: 0, slices: 0, bytes: 0 }
    }

    /// The same partition, whose slices `coder` puts into code groups.
    pub(crate) fn coded(self, coder: Option<&'a StripeEncoder<'a>>) -> Self {
        Self { coder, ..self }
    }

    /// Adds the next stripe.
    pub(crate) fn add(&mut self, stripe: &Encoded) -> Result<()> {
        self.metadata.add(stripe)?;
        for slice in stripe.slices() {
            let key = self.name.slice_key(self.slices)?;
            for drive in &self.drives {
                self.writes.put(*drive, key.clone(), slice.clone())?;
            }
            if let Some(coder) = self.coder {
                coder.push(self.name.slot, self.slices, slice)?;
            }
            self.slices = self.slices.checked_add(1).ok_or_else(|| Error::exhausted(format!("too many slices in {}", self.name.table)))?;
            self.bytes += slice.len() as u64;
        }
        self.rows += stripe.stats.rows;
        Ok(())
    }

    /// Writes the metadata slice; a record per copy.
    pub(crate) fn finish(self, catalog: &Catalog) -> Result<Vec<PartitionRecord>> {
        let metadata = self.metadata.finish()?;
        // Bounds let a scan skip drives. A table with a copy on every drive needs none: a scan asks one drive.
        let bounds = if self.drives.len() == 1 { Bounds::of(&metadata) } else { Bounds::default() };
        let metadata = metadata.encode()?;
        let key = self.name.key()?;
        let bytes = self.bytes + metadata.len() as u64;
        let holders = self.coder.map_or_else(|| self.drives.clone(), |coder| coder.holders(self.name.slot));
        holders.into_iter().try_for_each(|drive| self.writes.put(drive, key.clone(), metadata.clone()))?;
        self.drives
            .iter()
            .map(|drive| {
                let drive = catalog.drives()[*drive].info().id;
                Ok(PartitionRecord { drive, slot: self.name.slot, rows: self.rows, slices: self.slices, bytes, bounds: bounds.clone() })
            })
            .collect()
    }
}
