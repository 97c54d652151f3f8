//! The metadata slice of a partition: what its slices hold, without their bytes.
//!
//! ```text
//! "SKYMETA\0"   8 bytes
//! version       u32, little endian: 1, or 2 if there are several groups or sections,
//!               which a program that knows only 1 would take for damage
//! crc32c        u32, little endian: of everything that follows
//! length        u32, little endian: of the header
//! header        JSON: layout, rows, slices (their number), schema_bytes (length of the next part),
//!               application (map of strings);
//!               with several groups of columns (see `groups`) also group_columns: the columns of each but the last;
//!               sections: true where statistics list them
//! schema        an Arrow IPC stream: the table's schema, no batch
//! statistics    an Arrow IPC stream: one batch, a row per stripe of rows (see `StatsTable`);
//!               a stripe is a slice per group
//! ```
//!
//! Readers accept version 1 with several groups as well: such slices were written before version 2 existed.

pub(crate) mod builder;
pub mod column_types;
pub(crate) mod entry;
mod gather;
pub mod ipc;
pub(crate) mod stats_table;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Result};

use self::entry::SliceEntry;
use self::stats_table::{Bounds, StatsTable};
use crate::groups::Groups;
use crate::guard::guarded;
use crate::layout::Layout;
use crate::sections::{self, Picked, Sections};
use crate::stats::stats_type;

const MAGIC: &[u8; 8] = b"SKYMETA\0";
/// The newest format that this version writes and reads.
pub const FORMAT_VERSION: u32 = 2;
/// Magic, version, checksum and the header's length.
const PREFIX: usize = 20;

/// A partition's metadata.
#[derive(Debug, Clone, PartialEq)]
pub struct Metadata {
    /// How the slices are laid out.
    pub layout: Layout,
    /// The table's schema.
    pub schema: SchemaRef,
    /// Rows of all slices.
    pub rows: u64,
    /// How the columns are divided among the slices of a stripe of rows.
    pub groups: Groups,
    /// The slices, in order: those of the first stripe, group by group, and so on.
    pub slices: Vec<SliceEntry>,
    /// Statistics of the stripes.
    pub stats: StatsTable,
    /// Where the columns are in the slices; `None` for matrices, and for slices of older writers.
    pub sections: Option<Sections>,
    /// Whatever the writer wants to keep with the partition.
    pub application: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    layout: Layout,
    rows: u64,
    slices: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group_columns: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sections: bool,
    schema_bytes: u64,
    application: BTreeMap<String, String>,
}

impl Metadata {
    /// How many stripes of rows there are.
    #[must_use]
    pub fn stripes(&self) -> usize {
        self.stats.stripes()
    }

    /// Rows of a stripe; `None` where there is no such stripe.
    #[must_use]
    pub fn stripe_rows(&self, stripe: usize) -> Option<u64> {
        (stripe < self.stripes()).then(|| self.stats.rows().value(stripe))
    }

    /// The number of the slice of a stripe with the columns of a group.
    #[must_use]
    pub fn slice_of(&self, stripe: usize, group: usize) -> usize {
        stripe.saturating_mul(self.groups.len()).saturating_add(group)
    }

    /// What to read of slice `n` for the columns at `places` of its group, each with a checksum; `None` where that is
    /// not known, so that slices are read whole.
    #[must_use]
    pub fn pick(&self, n: usize, places: &[usize]) -> Option<Picked> {
        self.sections.as_ref()?.pick(n, self.slices.get(n)?.len, places)
    }

    /// Where the sections of slice `n` end: one for each column of its group, and the footer; `None` where that is not
    /// known, so that the slice is read whole.
    #[must_use]
    pub fn section_ends(&self, n: usize) -> Option<Vec<u64>> {
        self.sections.as_ref()?.ends(n, self.slices.get(n)?.len)
    }

    /// The bytes of the metadata slice.
    ///
    /// # Errors
    /// `Invalid` where the schema has a type that Arrow IPC cannot carry.
    pub fn encode(&self) -> Result<Bytes> {
        let schema = ipc::write(&self.schema, None)?;
        let stats = self.stats_batch()?;
        let stats = ipc::write(&stats.schema(), Some(&stats))?;
        let header = Header {
            layout: self.layout.clone(),
            rows: self.rows,
            slices: self.slices.len() as u64,
            group_columns: (self.groups.len() > 1).then(|| u32::try_from(self.groups.width()).unwrap_or(u32::MAX)),
            sections: self.sections.is_some(),
            schema_bytes: schema.len() as u64,
            application: self.application.clone(),
        };
        let header = serde_json::to_vec(&header).map_err(|e| Error::internal("cannot write a metadata header").with_source(e))?;
        let header_len = u32::try_from(header.len()).map_err(|_| Error::invalid("the application's entries are larger than 4 GiB"))?;

        let mut out = Vec::with_capacity(PREFIX + header.len() + schema.len() + stats.len());
        out.extend_from_slice(MAGIC);
        let version: u32 = if self.groups.len() > 1 || self.sections.is_some() { 2 } else { 1 };
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&header_len.to_le_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(&schema);
        out.extend_from_slice(&stats);
        let crc = crc32c(&out[16..]);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        Ok(Bytes::from(out))
    }

    /// Reads a metadata slice.
    ///
    /// # Errors
    /// `Unsupported` for a newer format version, `Corrupt` for anything else that is not what [`Self::encode`] writes.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        guarded("a metadata slice", || Self::parse(bytes))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let corrupt = |why: &str| Error::corrupt(format!("a metadata slice of {} bytes {why}", bytes.len()));
        let number = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).ok_or_else(|| corrupt("is too short"));
        if bytes.get(..8) != Some(MAGIC) {
            return Err(corrupt("does not begin with SKYMETA"));
        }
        let version = number(8)?;
        if version > FORMAT_VERSION {
            return Err(Error::unsupported(format!(
                "a metadata slice has format version {version}, this program reads up to {FORMAT_VERSION}: use a newer program"
            )));
        }
        if version == 0 {
            return Err(corrupt("has format version 0, which never was"));
        }
        let header_len = number(16)? as usize;
        if crc32c(&bytes[16..]) != number(12)? {
            return Err(corrupt("does not match its checksum"));
        }
        let rest = &bytes[PREFIX..];
        let header = rest.get(..header_len).ok_or_else(|| corrupt("is shorter than its header"))?;
        let header: Header = serde_json::from_slice(header).map_err(|e| corrupt("has a header that cannot be read").with_source(e))?;
        let streams = &rest[header_len..];
        let schema_len = usize::try_from(header.schema_bytes).ok().filter(|&n| n <= streams.len()).ok_or_else(|| corrupt("is shorter than its schema"))?;
        let (schema, stats) = streams.split_at(schema_len);
        let (schema, None) = ipc::read(schema)? else {
            return Err(corrupt("has rows where only a schema is due"));
        };
        let (_, Some(stats)) = ipc::read(stats)? else {
            return Err(corrupt("has no statistics"));
        };
        Self::assemble(header, schema, &stats)
    }

    fn assemble(header: Header, schema: SchemaRef, batch: &RecordBatch) -> Result<Self> {
        let corrupt = |why: String| Error::corrupt(format!("a metadata slice's statistics {why}"));
        let columns = schema.fields().len();
        let groups = match header.group_columns {
            None => Groups::new(columns, columns),
            Some(width) if (1..columns as u64).contains(&u64::from(width)) => Groups::new(columns, width as usize),
            Some(width) => return Err(corrupt(format!("are of groups of {width} among {columns} columns"))),
        };
        if (batch.num_rows() as u64).checked_mul(groups.len() as u64) != Some(header.slices) {
            return Err(corrupt(format!("are of {} times {} slices where its header counts {}", batch.num_rows(), groups.len(), header.slices)));
        }
        if *batch.schema() != stats_schema(&schema, groups, header.sections) {
            return Err(corrupt("do not fit its schema".into()));
        }
        let unsigned = |i: usize| batch.column(i).as_primitive::<UInt64Type>();
        let rows = unsigned(0);
        let total = rows.values().iter().try_fold(0u64, |a, &b| a.checked_add(b));
        if total != Some(header.rows) {
            return Err(corrupt(format!("do not count the {} rows of its header", header.rows)));
        }
        let mut slices = Vec::with_capacity(batch.num_rows().saturating_mul(groups.len()));
        for stripe in 0..batch.num_rows() {
            slices.extend((0..groups.len()).map(|group| SliceEntry {
                rows: rows.value(stripe),
                len: unsigned(1 + 2 * group).value(stripe),
                crc32c: batch.column(2 + 2 * group).as_primitive::<UInt32Type>().value(stripe),
            }));
        }
        let mut next = 1 + 2 * groups.len();
        let mut sections = None;
        if header.sections {
            if header.layout != Layout::Table {
                return Err(corrupt("list sections of a matrix, whose slices are read whole".into()));
            }
            let lists = (next..next + groups.len()).map(|at| batch.column(at).as_fixed_size_binary().clone()).collect();
            sections = Some(Sections::read(groups, lists, &slices)?);
            next += groups.len();
        }
        let mut bounds = Vec::with_capacity(columns);
        for field in schema.fields() {
            bounds.push(stats_type(field.data_type()).map(|_| {
                let at = next;
                next += 3;
                Bounds {
                    min: Arc::clone(batch.column(at)),
                    max: Arc::clone(batch.column(at + 1)),
                    nulls: batch.column(at + 2).as_primitive::<UInt64Type>().clone(),
                }
            }));
        }
        let stats = StatsTable::assemble(Arc::clone(&schema), rows.clone(), bounds);
        Ok(Self { layout: header.layout, schema, rows: header.rows, groups, slices, stats, sections, application: header.application })
    }

    fn stats_batch(&self) -> Result<RecordBatch> {
        let schema = Arc::new(stats_schema(&self.schema, self.groups, self.sections.is_some()));
        let groups = self.groups.len();
        let mut columns: Vec<ArrayRef> = vec![Arc::new(self.stats.rows().clone())];
        for group in 0..groups {
            let slices = || self.slices.iter().skip(group).step_by(groups);
            columns.push(Arc::new(UInt64Array::from_iter_values(slices().map(|s| s.len))));
            columns.push(Arc::new(UInt32Array::from_iter_values(slices().map(|s| s.crc32c))));
        }
        for list in self.sections.iter().flat_map(Sections::lists) {
            columns.push(Arc::new(list.clone()));
        }
        for bounds in self.stats.columns().iter().flatten() {
            columns.extend([Arc::clone(&bounds.min), Arc::clone(&bounds.max), Arc::new(bounds.nulls.clone()) as ArrayRef]);
        }
        RecordBatch::try_new(schema, columns).map_err(|e| Error::invalid("a partition's statistics do not fit its schema").with_source(e))
    }
}

/// The schema of the batch of statistics for a table's schema. The second group's `len` is `len.1`, and so on.
fn stats_schema(schema: &Schema, groups: Groups, with_sections: bool) -> Schema {
    let mut fields =
        vec![Field::new("rows", DataType::UInt64, false), Field::new("len", DataType::UInt64, false), Field::new("crc32c", DataType::UInt32, false)];
    for group in 1..groups.len() {
        fields.push(Field::new(format!("len.{group}"), DataType::UInt64, false));
        fields.push(Field::new(format!("crc32c.{group}"), DataType::UInt32, false));
    }
    if with_sections {
        fields.extend((0..groups.len()).map(|group| Field::new(format!("sections.{group}"), sections::data_type(groups, group), false)));
    }
    for (i, field) in schema.fields().iter().enumerate() {
        if let Some(bound) = stats_type(field.data_type()) {
            fields.push(Field::new(format!("min.{i}"), bound.clone(), true));
            fields.push(Field::new(format!("max.{i}"), bound, true));
            fields.push(Field::new(format!("nulls.{i}"), DataType::UInt64, false));
        }
    }
    Schema::new(fields)
}

#[cfg(test)]
mod tests;
