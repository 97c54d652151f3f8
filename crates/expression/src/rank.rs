//! Ranks genes per group of cells, as scanpy's `rank_genes_groups` does for t-tests and Wilcoxon's rank sum test.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, RecordBatch, StringViewArray, UInt32Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde::{Deserialize, Serialize};
use skytether_common::parallel::in_parallel;
use skytether_common::{Error, Result};

mod genes;
mod order;
mod sums;
mod tester;

pub use self::sums::Test;

use self::genes::Genes;
use self::order::{ascending, in_order};
use self::sums::rank_sum;
use self::tester::Tester;
use crate::pairs::Pairs;
use crate::spec::shorten;
use crate::ttest::Method;

/// What a group is compared to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// All other cells, those in no group included.
    #[default]
    Rest,
    /// One group.
    Group(String),
}

/// How p-values are corrected for the number of genes tested.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Correction {
    /// Benjamini & Hochberg's false discovery rate.
    #[default]
    #[serde(rename = "benjamini-hochberg")]
    BenjaminiHochberg,
    /// p times the number of genes.
    #[serde(rename = "bonferroni")]
    Bonferroni,
}

impl Correction {
    /// The correction of that name.
    ///
    /// # Errors
    /// Invalid, listing the corrections.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "benjamini-hochberg" => Ok(Correction::BenjaminiHochberg),
            "bonferroni" => Ok(Correction::Bonferroni),
            _ => Err(Error::invalid(format!("there is no correction {:?}: use 'benjamini-hochberg' or 'bonferroni'", shorten(name)))),
        }
    }
}

/// What to rank, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct RankOptions {
    /// The groups to rank genes for, in this order; `None`: all, in their own order. The reference group is left out.
    pub groups: Option<Vec<String>>,
    /// What each is compared to.
    pub reference: Reference,
    /// The test.
    pub test: Test,
    /// The correction, over all genes given.
    pub correction: Correction,
    /// At most this many genes per group, those with the highest scores; `None`: all.
    pub n_genes: Option<usize>,
    /// The base of the values' logarithm; `None`: natural.
    pub log_base: Option<f64>,
}

impl Default for RankOptions {
    fn default() -> Self {
        Self { groups: None, reference: Reference::Rest, test: Test::T(Method::Welch), correction: Correction::default(), n_genes: None, log_base: None }
    }
}

/// The columns of the ranking.
#[must_use]
pub fn ranking_schema() -> SchemaRef {
    let number = |name| Field::new(name, DataType::Float64, false);
    Arc::new(Schema::new(vec![
        Field::new("group", DataType::Utf8View, false),
        Field::new("gene_id", DataType::UInt32, false),
        Field::new("names", DataType::Utf8View, true),
        number("scores"),
        number("logfoldchanges"),
        number("pvals"),
        number("pvals_adj"),
        number("pct_nz_group"),
        number("pct_nz_reference"),
    ]))
}

/// One gene in one group.
#[derive(Debug, Clone, Copy, Default)]
struct Tested {
    score: f64,
    p: f64,
    fold: f64,
    pct_group: f64,
    pct_reference: f64,
}

/// Ranks the genes of `batches` (columns `gene_id` UInt32, `gene` text, `moments`: the result of `moments()`; a row per
/// gene) for each group. [`Test::RankSum`] needs the column `ranks` as well. Without the column `gene`, genes have no
/// names.
///
/// The result is a batch per group, with the columns of [`ranking_schema`]; none where there are no genes. Its rows are
/// ordered by score, the highest first; genes of equal score by number. Scores are never NaN (see
/// [`crate::ttest::t_test`]); infinite ones come first or last.
///
/// # Errors
/// Invalid where a group or the reference has fewer than two cells, or the rows' groups differ; not found, listing the
/// groups there are, for an unknown group.
pub fn rank_genes(batches: &[RecordBatch], options: &RankOptions) -> Result<Vec<RecordBatch>> {
    rank_on(batches, options, |tests| if tests < 4096 { 1 } else { std::thread::available_parallelism().map_or(1, usize::from).min(16) })
}

/// [`rank_genes`] on the threads that `threads` gives for the number of tests; the result is the same on any number.
fn rank_on(batches: &[RecordBatch], options: &RankOptions, threads: impl FnOnce(usize) -> usize) -> Result<Vec<RecordBatch>> {
    let genes = Genes::open(batches, matches!(options.test, Test::RankSum { .. }))?;
    let Some(names) = genes.group_names()? else { return Ok(Vec::new()) };
    let find = |name: &String| names.iter().position(|n| n == name).ok_or_else(|| unknown_group(name, names.iter().map(String::as_str)));
    let reference = match &options.reference {
        Reference::Rest => None,
        Reference::Group(name) => Some(find(name)?),
    };
    let chosen: Vec<usize> = match &options.groups {
        None => (0..names.len()).collect(),
        Some(asked) => asked.iter().map(find).collect::<Result<_>>()?,
    };
    let chosen: Vec<usize> = chosen.into_iter().filter(|g| Some(*g) != reference).collect();
    let mut seen = std::collections::HashSet::with_capacity(chosen.len());
    if let Some(&twice) = chosen.iter().find(|&&g| !seen.insert(g)) {
        return Err(Error::invalid(format!("group {:?} is asked for twice: name each group once", shorten(&names[twice]))));
    }

    let threads = threads(genes.len() * chosen.len()).max(1);
    let tested = genes.test(&names, &chosen, reference, options, threads)?;
    let keep = options.n_genes.unwrap_or(usize::MAX).min(genes.len());
    genes.table(&names, &chosen, &tested, options.correction, keep, threads)
}

/// Not found, listing the groups there are.
pub(crate) fn unknown_group<'a>(name: &str, there_are: impl Iterator<Item = &'a str>) -> Error {
    const SHOWN: usize = 50;
    let all: Vec<&str> = there_are.collect();
    let more = if all.len() > SHOWN { format!(" and {} more", all.len() - SHOWN) } else { String::new() };
    let near = near(name, &all).map(|n| format!("; did you mean {:?}?", shorten(n))).unwrap_or_default();
    Error::not_found(format!(
        "there is no group {:?}; the groups are {}{more}{near}",
        shorten(name),
        all.iter().take(SHOWN).map(|n| format!("{:?}", shorten(n))).collect::<Vec<_>>().join(", ")
    ))
}

/// The name among `all` that `name` is most like: with other signs or capitals, or a few letters apart.
fn near<'a>(name: &str, all: &[&'a str]) -> Option<&'a str> {
    /// Longer names are not compared: it takes the product of the lengths.
    const LONGEST: usize = 200;
    let plain = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect::<String>();
    let asked = plain(name);
    let distances =
        all.iter().filter(|other| other.len() <= LONGEST && name.len() <= LONGEST).map(|other| (strsim::levenshtein(&asked, &plain(other)), *other));
    distances.filter(|(distance, _)| *distance <= asked.chars().count() / 4).min_by_key(|(distance, _)| *distance).map(|(_, other)| other)
}

/// What threads do here.
const TESTING: &str = "tests genes";

/// Tests that are made together.
const TOGETHER: usize = 256;

impl Genes<'_> {
    /// Tests every gene in every chosen group.
    fn test(&self, names: &[String], chosen: &[usize], reference: Option<usize>, options: &RankOptions, threads: usize) -> Result<TestedGenes> {
        let chunk = self.len().div_ceil(threads * 4).max(1);
        let starts: Vec<usize> = (0..self.len()).step_by(chunk).collect();
        let parts = in_parallel(threads, starts, TESTING, |start| {
            let end = self.len().min(start + chunk);
            let mut out: Vec<Vec<Tested>> = chosen.iter().map(|_| Vec::with_capacity(end - start)).collect();
            // The number of genes per round is bounded, so that their data stays in the first-level cache.
            let together = (TOGETHER / chosen.len().max(1)).clamp(1, end - start);
            let mut tester = Tester::new(names, together);
            let mut pairs = Pairs::new(options.test.t(), options.log_base.map_or(1.0, f64::ln), together * chosen.len());
            for from in (start..end).step_by(together) {
                let genes = from..end.min(from + together);
                let mut gene = genes.start;
                while gene < genes.end {
                    let run = tester.read(self, gene..genes.end)?;
                    tester.pair(run, chosen, reference, |place, mine, other| {
                        let at = place * together + gene - from;
                        pairs.set(at, run, mine, other);
                        if let Test::RankSum { tie_correct } = options.test {
                            for k in 0..run {
                                (pairs.t[at + k], pairs.p[at + k]) = rank_sum(self.rank_sum(gene + k, chosen[place]), mine.n, other.n, tie_correct);
                            }
                        }
                    })?;
                    gene += run;
                }
                pairs.test();
                for (out, start) in out.iter_mut().zip((0..).step_by(together)) {
                    out.extend((start..start + genes.len()).map(|at| Tested {
                        score: pairs.t[at],
                        p: pairs.p[at],
                        fold: pairs.fold[at],
                        pct_group: pairs.pct[0][at],
                        pct_reference: pairs.pct[1][at],
                    }));
                }
            }
            Ok(out)
        })?;
        Ok(TestedGenes { parts })
    }

    /// Ranks and corrects group by group; a batch for each.
    fn table(&self, names: &[String], chosen: &[usize], tested: &TestedGenes, correction: Correction, keep: usize, threads: usize) -> Result<Vec<RecordBatch>> {
        let schema = ranking_schema();
        let failed = |e: arrow::error::ArrowError| Error::internal("cannot build the ranking").with_source(e);
        in_parallel(threads, (0..chosen.len()).collect(), TESTING, |place| {
            let group = tested.of(place);
            let Ranked { order, adjusted } = rank_one(&group, correction, keep);
            let (ids, (scores, folds), (p, adjusted), (group_pct, reference_pct)): (Vec<u32>, Columns, Columns, Columns) = order
                .iter()
                .zip(adjusted)
                .map(|(&gene, adjusted)| {
                    let t = &group[gene as usize];
                    (self.ids[gene as usize], (t.score, t.fold), (t.p, adjusted), (t.pct_group, t.pct_reference))
                })
                .collect();
            let genes = if self.names.null_count() == self.len() {
                new_null_array(&DataType::Utf8View, keep)
            } else {
                take(&self.names, &UInt32Array::from(order), None).map_err(failed)?
            };
            let name = StringViewArray::from_iter_values([&names[chosen[place]]]);
            // SAFETY: every view is that of an array with these very buffers.
            let name = unsafe { StringViewArray::new_unchecked(vec![name.views()[0]; keep].into(), name.data_buffers().to_vec(), None) };
            let columns: [ArrayRef; 3] = [Arc::new(name), Arc::new(UInt32Array::from(ids)), genes];
            let numbers = [scores, folds, p, adjusted, group_pct, reference_pct].map(|column| Arc::new(Float64Array::from(column)) as ArrayRef);
            RecordBatch::try_new(Arc::clone(&schema), columns.into_iter().chain(numbers).collect()).map_err(failed)
        })
    }
}

/// Two columns of numbers.
type Columns = (Vec<f64>, Vec<f64>);

/// What came of all genes in all chosen groups.
struct TestedGenes {
    /// For each run of genes, group by group.
    parts: Vec<Vec<Vec<Tested>>>,
}

impl TestedGenes {
    /// The genes' results in the group at `place`, in order.
    fn of(&self, place: usize) -> Vec<Tested> {
        self.parts.iter().map(|part| part[place].as_slice()).collect::<Vec<_>>().concat()
    }
}

/// The genes of one group in order of rank.
struct Ranked {
    order: Vec<u32>,
    /// Corrected p-values in the same order.
    adjusted: Vec<f64>,
}

fn rank_one(tested: &[Tested], correction: Correction, keep: usize) -> Ranked {
    let mut order = in_order(&tested.iter().map(|t| !ascending(t.score)).collect::<Vec<_>>());
    let p: Vec<f64> = tested.iter().map(|t| t.p).collect();
    let all = corrected(&p, correction);
    order.truncate(keep);
    let adjusted = order.iter().map(|&gene| all[gene as usize]).collect();
    Ranked { order, adjusted }
}

/// p-values corrected for their number; they must be within 0 and 1.
#[must_use]
pub fn corrected(p: &[f64], correction: Correction) -> Vec<f64> {
    let count = p.len() as f64;
    match correction {
        Correction::Bonferroni => p.iter().map(|p| (p * count).min(1.0)).collect(),
        Correction::BenjaminiHochberg => {
            let mut least = 1.0f64;
            let mut adjusted = vec![0.0; p.len()];
            for (rank, i) in in_order(&p.iter().map(|&p| ascending(p)).collect::<Vec<_>>()).into_iter().enumerate().rev() {
                least = least.min(p[i as usize] * (count / (rank + 1) as f64));
                adjusted[i as usize] = least;
            }
            adjusted
        }
    }
}

#[cfg(test)]
mod tests;
