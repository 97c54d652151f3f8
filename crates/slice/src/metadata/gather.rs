//! Gathers metadata of stripes from several partitions for one new partition.

use arrow::array::{Array, ArrayRef, AsArray, UInt64Array};
use arrow::compute::interleave;
use arrow::datatypes::UInt64Type;
use std::sync::Arc;

use skytether_common::{Error, Result};

use super::Metadata;
use super::entry::SliceEntry;
use super::stats_table::{Bounds, StatsTable};
use crate::sections::Sections;

impl Metadata {
    /// The metadata of a partition with these `stripes`, in this order: each the partition `of` which it was, and its
    /// number there. All partitions must be of the same table; what the application keeps is that of the first.
    ///
    /// # Errors
    /// `Invalid` for no partition, partitions of different tables, and a stripe that there is not.
    pub fn gather(of: &[Self], stripes: &[(usize, usize)]) -> Result<Self> {
        let first = of.first().ok_or_else(|| Error::invalid("stripes of no partition can't be put together"))?;
        if of.iter().any(|other| other.layout != first.layout || other.schema != first.schema || other.groups != first.groups) {
            return Err(Error::invalid("stripes of different tables can't be put together"));
        }
        let mut slices: Vec<SliceEntry> = Vec::with_capacity(stripes.len() * first.groups.len());
        for (partition, stripe) in stripes {
            let from = of.get(*partition).filter(|from| *stripe < from.stripes());
            let from = from.ok_or_else(|| Error::invalid(format!("there is no stripe {stripe} in partition {partition} of {}", of.len())))?;
            let at = from.slice_of(*stripe, 0);
            slices.extend_from_slice(from.slices.get(at..at + first.groups.len()).unwrap_or_default());
        }
        let rows = picked(of, stripes, |from| Some(from.stats.rows() as &dyn Array))?;
        let rows: UInt64Array = rows.as_primitive::<UInt64Type>().clone();
        let mut columns = Vec::with_capacity(first.stats.columns().len());
        for (at, bounds) in first.stats.columns().iter().enumerate() {
            if bounds.is_none() {
                columns.push(None);
                continue;
            }
            let bound = |which: fn(&Bounds) -> &dyn Array| picked(of, stripes, |from| from.stats.columns().get(at)?.as_ref().map(which));
            columns.push(Some(Bounds {
                min: bound(|b| b.min.as_ref())?,
                max: bound(|b| b.max.as_ref())?,
                nulls: bound(|b| &b.nulls)?.as_primitive::<UInt64Type>().clone(),
            }));
        }
        let mut sections = None;
        // There are no sections without stripes. If one partition lacks them, slices are read whole.
        if !slices.is_empty() && stripes.iter().all(|(partition, _)| of[*partition].sections.is_some()) {
            // Partitions without stripes contribute nothing, and may lack sections.
            let telling: Vec<&Self> = of.iter().filter(|from| from.sections.is_some()).collect();
            let places: Vec<(usize, usize)> = stripes.iter().map(|(p, s)| (of[..*p].iter().filter(|from| from.sections.is_some()).count(), *s)).collect();
            let mut lists = Vec::with_capacity(first.groups.len());
            for group in 0..first.groups.len() {
                let list = picked(&telling, &places, |from| from.sections.as_ref()?.lists().get(group).map(|list| list as &dyn Array))?;
                lists.push(list.as_fixed_size_binary().clone());
            }
            sections = Some(Sections::read(first.groups, lists, &slices)?);
        }
        Ok(Self {
            layout: first.layout.clone(),
            schema: Arc::clone(&first.schema),
            rows: rows.values().iter().sum(),
            groups: first.groups,
            slices,
            stats: StatsTable::assemble(Arc::clone(&first.schema), rows, columns),
            sections,
            application: first.application.clone(),
        })
    }
}

/// The entries of `stripes` of an array that each partition has.
fn picked<'a, M>(of: &'a [M], stripes: &[(usize, usize)], array: impl Fn(&'a M) -> Option<&'a dyn Array>) -> Result<ArrayRef> {
    let missing = || Error::invalid("a partition lacks statistics that another one of its table has");
    let arrays: Vec<&dyn Array> = of.iter().map(|from| array(from).ok_or_else(missing)).collect::<Result<_>>()?;
    interleave(&arrays, stripes).map_err(|e| Error::invalid("statistics of partitions can't be put together").with_source(e))
}
