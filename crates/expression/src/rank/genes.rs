//! Rows of grouped moments as genes, with the entries of their groups.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringViewArray, StringViewBuilder, UInt32Array, new_null_array};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, UInt32Type};
use skytether_common::{Error, Result};

use super::sums::RankSums;
use crate::midranks::RankSum;
use crate::store::Results;

/// The genes to rank, ordered by number.
pub(super) struct Genes<'a> {
    pub(super) ids: Vec<u32>,
    pub(super) names: StringViewArray,
    results: Vec<Results<'a>>,
    /// Rank sums of each batch, if the test is of ranks.
    ranks: Vec<RankSums<'a>>,
    /// Batch and row of each gene.
    pub(super) place: Vec<(u32, u32)>,
}

impl<'a> Genes<'a> {
    /// The genes of `batches`, with the rank sums if the test is of `ranks`.
    pub(super) fn open(batches: &'a [RecordBatch], ranks: bool) -> Result<Self> {
        let mut genes = Self { ids: Vec::new(), names: StringViewBuilder::new().finish(), results: Vec::new(), ranks: Vec::new(), place: Vec::new() };
        let mut names: Vec<ArrayRef> = Vec::new();
        for (b, batch) in batches.iter().enumerate() {
            let column = |name: &str| batch.column_by_name(name).ok_or_else(|| Error::invalid(format!("ranking genes needs a column {name:?}")));
            let ids = column("gene_id")?;
            let ids = ids
                .as_primitive_opt::<UInt32Type>()
                .filter(|ids| ids.null_count() == 0)
                .ok_or_else(|| Error::invalid("gene_id must be UInt32 without NULLs"))?;
            genes.ids.extend_from_slice(ids.values());
            names.push(match batch.column_by_name("gene") {
                Some(named) => cast(named, &DataType::Utf8View).map_err(|e| Error::invalid("gene must be text").with_source(e))?,
                None => new_null_array(&DataType::Utf8View, batch.num_rows()),
            });
            let moments = column("moments")?;
            if moments.null_count() > 0 {
                return Err(Error::invalid("ranking genes needs moments without NULLs"));
            }
            let results = Results::open(moments.as_ref())?;
            if ranks {
                let ranks = RankSums::open(column("ranks")?)?;
                if (0..batch.num_rows()).any(|row| ranks.width(row) != results.range(row).len()) {
                    return Err(Error::invalid("ranks and moments must have the same groups: give rank_sums() and moments() the same spec"));
                }
                genes.ranks.push(ranks);
            }
            genes.results.push(results);
            genes.place.extend((0..batch.num_rows()).map(|row| (b as u32, row as u32)));
        }
        if !names.is_empty() {
            let all =
                concat(&names.iter().map(AsRef::as_ref).collect::<Vec<_>>()).map_err(|e| Error::internal("cannot join the genes' names").with_source(e))?;
            genes.names = all.as_string_view().clone();
        }
        genes.sort()?;
        Ok(genes)
    }

    /// Sorts the genes by number, so that genes of equal score have the same order whichever drive answered first.
    fn sort(&mut self) -> Result<()> {
        if self.ids.is_sorted() {
            return Ok(());
        }
        let mut order: Vec<u32> = (0..self.ids.len() as u32).collect();
        order.sort_by_key(|&row| self.ids[row as usize]);
        self.ids = order.iter().map(|&row| self.ids[row as usize]).collect();
        self.place = order.iter().map(|&row| self.place[row as usize]).collect();
        let names = take(&self.names, &UInt32Array::from(order), None).map_err(|e| Error::internal("cannot put the genes' names in order").with_source(e))?;
        self.names = names.as_string_view().clone();
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn entries(&self, gene: usize) -> (&Results<'a>, Range<usize>) {
        let (batch, row) = self.place[gene];
        let results = &self.results[batch as usize];
        (results, results.range(row as usize))
    }

    /// The rank sum of `gene` in `group`; there are some if [`Self::open`] was asked for them.
    pub(super) fn rank_sum(&self, gene: usize, group: usize) -> RankSum {
        let (batch, row) = self.place[gene];
        self.ranks[batch as usize].get(row as usize, group)
    }

    /// The groups of the first gene, which all genes must have; `None` without genes.
    pub(super) fn group_names(&self) -> Result<Option<Vec<String>>> {
        if self.len() == 0 {
            return Ok(None);
        }
        let (results, range) = self.entries(0);
        let Some(last) = range.clone().next_back() else { return Err(Error::invalid("the first gene's moments are empty: no rows were aggregated for it")) };
        if results.name(last).is_some() {
            return Err(Error::invalid("moments must end with the cells in no group"));
        }
        (range.start..last)
            .map(|at| results.name(at).map(str::to_owned).ok_or_else(|| Error::invalid("moments name a group NULL")))
            .collect::<Result<Vec<_>>>()
            .map(Some)
    }
}
