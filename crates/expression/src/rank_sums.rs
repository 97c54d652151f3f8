//! The aggregate `rank_sums(idx, val, block, spec)` over the sparse rows of a matrix: per gene and group of cells the
//! sum of midranks, and what ties take from its variance.
//!
//! The result is `List<Struct<sum Float64, ties Float64>>`, in the order of the groups that `moments` gives with the
//! same spec, the cells in no group last. Ranks need all cells of a gene at once. Where a data set has one block of
//! cells, a row is a gene, and its sums are made when it is read. Otherwise the nonzeros of a gene are kept as keys
//! ([`crate::midranks`]) until all its blocks are there; their bytes count against the query's memory. A matrix has a
//! row for each gene and block, so the cells of the blocks tell when a gene is whole. Its blocks may be on several
//! drives, as those of cells that were appended are.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, Float64Array, ListArray, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::logical_expr::{AggregateUDF, EmitTo};
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};

use crate::aggregate::Store;
use crate::cells::CellSource;
use crate::groups::Prepared;
use crate::kernel::{Value, each_value};
use crate::midranks::{Among, Midranks, RankSum, Ranked};
use crate::sparse::{OverRows, Row, udaf};
use crate::spec::{MomentsSpec, read_spec, write_spec};

/// The name of the aggregate in queries.
pub const RANK_SUMS: &str = "rank_sums";

/// The literal argument of `rank_sums`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankSumsSpec {
    /// Cells, groups and transform, as `moments` takes them.
    pub of: MomentsSpec,
    /// The group that each group's cells are ranked with; `None`: all cells together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// The cells of the last group take no part: their ranks are 0, and no cell is ranked among them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub without_last: bool,
    /// The groups are two sets that share cells: those in the first alone, in the second alone, and in both. The first
    /// two results are those of the whole sets.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overlap: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(value: &bool) -> bool {
    !value
}

impl RankSumsSpec {
    /// The JSON text, on one line.
    ///
    /// # Errors
    /// Internal, should JSON ever fail to hold it.
    pub fn to_literal(&self) -> Result<String> {
        write_spec(RANK_SUMS, self)
    }

    /// Reads [`RankSumsSpec::to_literal`]'s text back.
    ///
    /// # Errors
    /// Invalid where it is anything else.
    pub fn from_literal(text: &str) -> Result<Self> {
        read_spec(RANK_SUMS, text)
    }
}

/// The aggregate `rank_sums`, which learns about cells from `source`.
#[must_use]
pub fn rank_sums_udaf(source: Arc<dyn CellSource>) -> AggregateUDF {
    udaf::<RankSums>(source)
}

#[derive(Debug)]
struct RankSums {
    asked: Arc<Asked>,
    /// For each group, in which ones its cells are ranked: at most two, [`NOWHERE`] otherwise.
    places: Vec<[u16; 2]>,
    /// Whether values need more than float32, as those of float64 and UInt32 do. Logarithms are float32.
    wide: bool,
    /// The keys of a row, narrow or wide.
    keys: Vec<u64>,
    wide_keys: Vec<u128>,
}

/// No group.
const NOWHERE: u16 = u16::MAX;

/// Puts the keys of `row` into `keys`.
fn fill<T: Value, K: Sorted>(keys: &mut Vec<K>, places: &[[u16; 2]], row: &Row<'_, T>) -> Result<()> {
    keys.clear();
    let put = |group: u16, value: f64| keys.extend(places[usize::from(group)].into_iter().filter(|&to| to != NOWHERE).map(|to| K::new(value, to)));
    each_value(row.block, row.idx, row.val, put).map_err(|fault| row.failed(fault))
}

impl OverRows for RankSums {
    const NAME: &'static str = RANK_SUMS;
    type Spec = RankSumsSpec;
    type Store = RankStore;

    fn read(text: &str) -> Result<RankSumsSpec> {
        RankSumsSpec::from_literal(text)
    }

    fn cells(spec: &RankSumsSpec) -> &MomentsSpec {
        &spec.of
    }

    fn begin(spec: &RankSumsSpec, prepared: &Prepared) -> Result<Self> {
        let among = match &spec.against {
            None => Among::All,
            Some(name) => {
                let unknown = || crate::rank::unknown_group(name, prepared.names.iter().map(String::as_str));
                Among::With(prepared.names.iter().position(|n| n == name).ok_or_else(unknown)?)
            }
        };
        let (width, last) = (prepared.width(), prepared.width().saturating_sub(1));
        let mut places: Vec<[u16; 2]> = (0..width).map(|group| [group as u16, NOWHERE]).collect();
        if spec.without_last || spec.overlap {
            let few = if spec.overlap { last != 3 } else { last == 0 };
            if few || (spec.overlap && spec.without_last) {
                return Err(Error::invalid("the groups of rank_sums are not those that without_last or overlap is about"));
            }
            places[last - 1] = if spec.overlap { [0, 1] } else { [NOWHERE; 2] };
        }
        if among != Among::All {
            // Cells in no group are in no pair.
            places[last] = [NOWHERE; 2];
        }
        let mut cells = vec![0u64; width];
        for (n, places) in prepared.cells.iter().zip(&places) {
            places.iter().filter(|&&to| to != NOWHERE).for_each(|&to| cells[usize::from(to)] += *n);
        }
        Ok(Self { asked: Arc::new(Asked { cells, among, all: prepared.n_cells() }), places, wide: false, keys: Vec::new(), wide_keys: Vec::new() })
    }

    fn reserve(&mut self, spec: &RankSumsSpec, _: &Prepared, store: &mut RankStore, rows: usize, values: &DataType) -> Result<()> {
        self.wide = spec.of.transform.is_none() && matches!(values, DataType::UInt32 | DataType::Float64);
        store.genes.resize_with(rows.max(store.genes.len()), Gene::default);
        Ok(())
    }

    fn row<T: Value>(&mut self, _: &RankSumsSpec, store: &mut RankStore, at: usize, row: &Row<'_, T>) -> Result<()> {
        let cells = row.cells().len() as u32;
        if self.wide {
            fill(&mut self.wide_keys, &self.places, row)?;
            store.add(at, &self.asked, cells, &mut self.wide_keys)
        } else {
            fill(&mut self.keys, &self.places, row)?;
            store.add(at, &self.asked, cells, &mut self.keys)
        }
    }

    fn size(&self) -> usize {
        self.keys.capacity() * size_of::<u64>() + self.wide_keys.capacity() * size_of::<u128>()
    }
}

/// What all genes of a query share.
#[derive(Debug, PartialEq)]
struct Asked {
    /// Cells of each group, those in none last.
    cells: Vec<u64>,
    among: Among,
    /// Cells of the data set. The rows of a gene are about all of them, each once.
    all: u32,
}

/// A gene so far.
#[derive(Debug, Default)]
enum Gene {
    #[default]
    Nothing,
    Done(Vec<RankSum>),
    /// Keys of some blocks, but not of all.
    Kept(Box<Kept>),
}

/// Some blocks of a gene.
#[derive(Debug)]
struct Kept {
    asked: Arc<Asked>,
    wide: bool,
    /// How many cells these blocks have.
    seen: u32,
    /// [`Ranked::BYTES`] each.
    keys: Vec<u8>,
}

/// Ranks genes of either width.
#[derive(Debug, Default)]
struct Rankers {
    narrow: Midranks<u64>,
    wide: Midranks<u128>,
}

/// The genes of an accumulator.
#[derive(Debug, Default)]
pub struct RankStore {
    genes: Vec<Gene>,
    bytes: usize,
    rankers: Rankers,
}

/// The form of a state, its first byte.
const DONE: u8 = 1;
const NARROW: u8 = 2;
const WIDE: u8 = 3;

fn twice() -> Error {
    Error::invalid("rank_sums needs the rows of one gene, each once: group by gene_id")
}

fn lost() -> Error {
    Error::internal("a gene has no place in its accumulator")
}

fn bad(what: &str) -> Error {
    Error::corrupt(format!("a state of rank_sums {what}"))
}

/// Keys that [`Rankers`] has room for.
trait Sorted: Ranked {
    fn midranks(rankers: &mut Rankers) -> &mut Midranks<Self>;
}

impl Sorted for u64 {
    fn midranks(rankers: &mut Rankers) -> &mut Midranks<Self> {
        &mut rankers.narrow
    }
}

impl Sorted for u128 {
    fn midranks(rankers: &mut Rankers) -> &mut Midranks<Self> {
        &mut rankers.wide
    }
}

impl RankStore {
    fn at(&mut self, gene: usize) -> Result<&mut Gene> {
        self.genes.get_mut(gene).ok_or_else(lost)
    }

    fn finish(&mut self, gene: usize, sums: Vec<RankSum>) -> Result<()> {
        let bytes = sums.len() * size_of::<RankSum>();
        let at = self.at(gene)?;
        if !matches!(at, Gene::Nothing) {
            return Err(twice());
        }
        *at = Gene::Done(sums);
        self.bytes += bytes;
        Ok(())
    }

    /// Adds a block of `cells` cells of a gene.
    fn add<K: Sorted>(&mut self, gene: usize, asked: &Arc<Asked>, cells: u32, keys: &mut Vec<K>) -> Result<()> {
        if asked.all == cells {
            let sums = K::midranks(&mut self.rankers).sums(keys, &asked.cells, asked.among);
            return self.finish(gene, sums);
        }
        let mut bytes = Vec::with_capacity(keys.len() * K::BYTES);
        keys.iter().for_each(|key| key.put(&mut bytes));
        self.keep(gene, asked, K::BYTES == u128::BYTES, cells, &bytes)
    }

    /// Adds blocks with `seen` cells of a gene, and ranks it if these were the last ones.
    fn keep(&mut self, gene: usize, of: &Arc<Asked>, wide: bool, seen: u32, more: &[u8]) -> Result<()> {
        let Self { genes, bytes, .. } = self;
        let at = genes.get_mut(gene).ok_or_else(lost)?;
        if matches!(at, Gene::Nothing) {
            *at = Gene::Kept(Box::new(Kept { asked: Arc::clone(of), wide, seen: 0, keys: Vec::new() }));
            *bytes += size_of::<Kept>();
        }
        let Gene::Kept(kept) = at else { return Err(twice()) };
        if kept.wide != wide || !(Arc::ptr_eq(&kept.asked, of) || kept.asked == *of) {
            return Err(Error::internal("rows and states of different groups met in one accumulator"));
        }
        let before = kept.keys.capacity();
        kept.keys.extend_from_slice(more);
        kept.seen = kept.seen.saturating_add(seen);
        let most = kept.asked.cells.iter().fold(0u64, |all, n| all.saturating_add(*n));
        let each = if wide { u128::BYTES } else { u64::BYTES };
        if kept.seen > kept.asked.all || (kept.keys.len() / each) as u64 > most {
            return Err(twice());
        }
        let whole = kept.seen == kept.asked.all;
        *bytes += kept.keys.capacity() - before;
        if whole {
            let gene_so_far = std::mem::take(self.at(gene)?);
            self.bytes = self.bytes.saturating_sub(gene_so_far.size());
            if let Gene::Kept(kept) = gene_so_far {
                let sums = kept.sums(&mut self.rankers);
                self.finish(gene, sums)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, emit: EmitTo, rows: usize) -> Vec<Gene> {
        self.genes.resize_with(rows.max(self.genes.len()), Gene::default);
        let taken = match emit {
            EmitTo::All => std::mem::take(&mut self.genes),
            EmitTo::First(n) => self.genes.drain(..n.min(self.genes.len())).collect(),
        };
        let freed: usize = taken.iter().map(Gene::size).sum();
        self.bytes = self.bytes.saturating_sub(freed);
        taken
    }

    /// Merges the column of states, each into the row that `groups` says, of `rows` in all.
    ///
    /// # Errors
    /// Corrupt where a state is none; invalid where a gene has more blocks than its data set.
    pub fn merge_states(&mut self, states: &[ArrayRef], groups: &[usize], rows: usize) -> Result<()> {
        self.merge(states, groups, rows)
    }

    /// The result of all `rows` rows.
    ///
    /// # Errors
    /// Invalid where a gene has not all blocks of its data set.
    pub fn finished(&mut self, rows: usize) -> Result<ArrayRef> {
        self.result(EmitTo::All, rows)
    }
}

impl Kept {
    fn sums(&self, rankers: &mut Rankers) -> Vec<RankSum> {
        let Asked { cells, among, .. } = &*self.asked;
        if self.wide { rankers.wide.sums(&mut read(&self.keys), cells, *among) } else { rankers.narrow.sums(&mut read(&self.keys), cells, *among) }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let Asked { cells, among, all } = &*self.asked;
        out.push(if self.wide { WIDE } else { NARROW });
        let among = match among {
            Among::All => u32::MAX,
            Among::With(group) => *group as u32,
        };
        [among, *all, self.seen, cells.len() as u32].iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        cells.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        out.extend_from_slice(&self.keys);
    }
}

impl Gene {
    fn size(&self) -> usize {
        match self {
            Gene::Nothing => 0,
            Gene::Done(sums) => sums.len() * size_of::<RankSum>(),
            Gene::Kept(kept) => size_of::<Kept>() + kept.keys.capacity(),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Gene::Nothing => {}
            Gene::Done(sums) => {
                out.push(DONE);
                sums.iter().for_each(|s| {
                    out.extend_from_slice(&s.sum.to_le_bytes());
                    out.extend_from_slice(&s.ties.to_le_bytes());
                });
            }
            Gene::Kept(kept) => kept.write(out),
        }
    }
}

fn read<K: Ranked>(keys: &[u8]) -> Vec<K> {
    keys.chunks_exact(K::BYTES).filter_map(K::of_bytes).collect()
}

fn number<const N: usize>(from: &mut &[u8]) -> Result<[u8; N]> {
    let (first, rest) = from.split_first_chunk::<N>().ok_or_else(|| bad("is too short"))?;
    *from = rest;
    Ok(*first)
}

/// The kept keys of a state: what was asked, how many cells they are of, and their bytes.
fn kept(wide: bool, mut from: &[u8]) -> Result<(Asked, u32, &[u8])> {
    let among = u32::from_le_bytes(number(&mut from)?);
    let all = u32::from_le_bytes(number(&mut from)?);
    let seen = u32::from_le_bytes(number(&mut from)?);
    if seen == 0 || seen >= all {
        return Err(bad("is not of some of its cells"));
    }
    let groups = u32::from_le_bytes(number(&mut from)?) as usize;
    if groups > from.len() / 8 {
        return Err(bad("is too short"));
    }
    let cells = (0..groups).map(|_| Ok(u64::from_le_bytes(number(&mut from)?))).collect::<Result<Vec<_>>>()?;
    let among = match among {
        u32::MAX => Among::All,
        group if (group as usize) < groups => Among::With(group as usize),
        _ => return Err(bad("ranks cells with those of a group that it does not have")),
    };
    let each = if wide { u128::BYTES } else { u64::BYTES };
    if !from.len().is_multiple_of(each) {
        return Err(bad("ends within a value"));
    }
    // The group is in the first two bytes of a key.
    if from.chunks_exact(each).any(|key| usize::from(u16::from_le_bytes([key[0], key[1]])) >= groups) {
        return Err(bad("has a cell of a group that it does not have"));
    }
    if cells.iter().try_fold(0u64, |all, n| all.checked_add(*n)).is_none_or(|all| all > u64::from(u32::MAX)) {
        return Err(bad("has more cells than a data set"));
    }
    Ok((Asked { cells, among, all }, seen, from))
}

fn fields() -> Fields {
    Fields::from(vec![Field::new("sum", DataType::Float64, false), Field::new("ties", DataType::Float64, false)])
}

fn item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Struct(fields()), false))
}

impl Store for RankStore {
    fn result_type() -> DataType {
        DataType::List(item())
    }

    fn state_types() -> Vec<(&'static str, DataType)> {
        vec![("ranks", DataType::Binary)]
    }

    fn result(&mut self, emit: EmitTo, rows: usize) -> Result<ArrayRef> {
        let genes = self.take(emit, rows);
        let (mut sums, mut ties, mut lengths) = (Vec::new(), Vec::new(), Vec::with_capacity(genes.len()));
        for gene in genes {
            let of = match gene {
                Gene::Nothing => Vec::new(),
                Gene::Done(sums) => sums,
                Gene::Kept(kept) => {
                    let text = format!(
                        "rank_sums has {} of the {} cells of a gene, and ranks need them all: leave conditions on block and cells out",
                        kept.seen, kept.asked.all
                    );
                    return Err(Error::invalid(text));
                }
            };
            lengths.push(of.len());
            sums.extend(of.iter().map(|s| s.sum));
            ties.extend(of.iter().map(|s| s.ties));
        }
        let columns: Vec<ArrayRef> = vec![Arc::new(Float64Array::from(sums)), Arc::new(Float64Array::from(ties))];
        let failed = |e| Error::internal("cannot build the rank sums").with_source(e);
        let entries = StructArray::try_new(fields(), columns, None).map_err(failed)?;
        let list = ListArray::try_new(item(), OffsetBuffer::from_lengths(lengths), Arc::new(entries), None).map_err(failed)?;
        Ok(Arc::new(list))
    }

    fn state(&mut self, emit: EmitTo, rows: usize) -> Result<Vec<ArrayRef>> {
        let (mut out, mut one) = (BinaryBuilder::new(), Vec::new());
        for gene in self.take(emit, rows) {
            one.clear();
            gene.write(&mut one);
            out.append_value(&one);
        }
        Ok(vec![Arc::new(out.finish())])
    }

    fn merge(&mut self, states: &[ArrayRef], groups: &[usize], rows: usize) -> Result<()> {
        let states: &BinaryArray = states.first().and_then(|s| s.as_binary_opt::<i32>()).ok_or_else(|| bad("is no binary column"))?;
        self.genes.resize_with(rows.max(self.genes.len()), Gene::default);
        // Nearly all genes share what was asked.
        let mut last: Option<Arc<Asked>> = None;
        for (i, &gene) in groups.iter().enumerate().filter(|(i, _)| !states.is_null(*i)) {
            match states.value(i).split_first() {
                None => {}
                Some((&DONE, sums)) => {
                    if !sums.len().is_multiple_of(16) {
                        return Err(bad("ends within a sum"));
                    }
                    let float = |at: &[u8]| at.first_chunk::<8>().map_or(0.0, |b| f64::from_le_bytes(*b));
                    self.finish(gene, sums.chunks_exact(16).map(|s| RankSum { sum: float(s), ties: float(&s[8..]) }).collect())?;
                }
                Some((form @ (&NARROW | &WIDE), rest)) => {
                    let (asked, seen, keys) = kept(*form == WIDE, rest)?;
                    let asked = last.filter(|known| **known == asked).unwrap_or_else(|| Arc::new(asked));
                    self.keep(gene, &asked, *form == WIDE, seen, keys)?;
                    last = Some(asked);
                }
                Some((form, _)) => return Err(bad(&format!("has the unknown form {form}"))),
            }
        }
        Ok(())
    }

    fn size(&self) -> usize {
        self.bytes + self.genes.capacity() * size_of::<Gene>() + self.rankers.narrow.size() + self.rankers.wide.size()
    }
}

#[cfg(test)]
mod tests;
