//! Moments of some genes at a time, column by column, for each group and for its reference, so that merging becomes
//! vector instructions.

use std::ops::Range;

use skytether_common::{Error, Result};

use super::genes::Genes;
use crate::pairs::Moments;
use crate::store::Results;
use crate::ttest::{Share, check_size};

/// Reads runs of genes and pairs their groups; keeps its room.
pub(super) struct Tester<'a> {
    names: &'a [String],
    /// Moments of each group; last those of the cells in no group.
    groups: Vec<Moments>,
    /// `before[g]`: groups 0 to g - 1 merged. `after[g]`: those from g on.
    before: Vec<Moments>,
    after: Vec<Moments>,
    rest: Moments,
    /// Shares to merge `before[g]` with group `g`, group `g` with those after it, and `before[g]` with those after `g`.
    shares: Vec<[Share; 3]>,
    /// The batch of the last gene, whose names were checked, and where its entries begin.
    checked: Option<(usize, usize)>,
}

impl<'a> Tester<'a> {
    /// For runs of at most `room` genes.
    pub(super) fn new(names: &'a [String], room: usize) -> Self {
        let none = Moments::new(room);
        let all = vec![none.clone(); names.len() + 1];
        Self { names, groups: all.clone(), before: all.clone(), after: all, rest: none, shares: vec![], checked: None }
    }

    /// Reads the first gene of `range` and those after it whose groups have the same numbers of cells. Returns how
    /// many.
    ///
    /// # Errors
    /// Invalid where a gene has other groups than those named.
    pub(super) fn read(&mut self, genes: &Genes<'_>, range: Range<usize>) -> Result<usize> {
        for (k, gene) in range.clone().enumerate() {
            let (results, entries) = genes.entries(gene);
            self.check(genes.place[gene].0 as usize, results, &entries).map_err(|e| e.context(format!("gene number {}", genes.ids[gene])))?;
            if k == 0 && (self.shares.is_empty() || !self.fits(results, &entries)) {
                for (group, at) in self.groups.iter_mut().zip(entries.clone()) {
                    group.n = results.moments(at).n;
                }
                self.share();
            } else if k > 0 && !self.fits(results, &entries) {
                return Ok(k);
            }
            for (group, at) in self.groups.iter_mut().zip(entries) {
                let moments = results.moments(at);
                (group.nnz[k], group.mean[k], group.m2[k]) = (moments.nnz, moments.mean, moments.m2);
            }
        }
        Ok(range.len())
    }

    fn fits(&self, results: &Results<'_>, entries: &Range<usize>) -> bool {
        self.groups.iter().zip(entries.clone()).all(|(group, at)| group.n == results.moments(at).n)
    }

    fn check(&mut self, batch: usize, results: &Results<'_>, entries: &Range<usize>) -> Result<()> {
        let as_named = || entries.clone().zip(self.names).all(|(at, name)| results.name(at) == Some(name)) && results.name(entries.end - 1).is_none();
        let as_checked = |start: usize| (0..entries.len()).all(|k| results.same_name(start + k, entries.start + k));
        // Entries of one batch mostly share their names' bytes, so that comparing with checked ones need not read them.
        let same = entries.len() == self.groups.len()
            && match self.checked {
                Some((of, start)) if of == batch => as_checked(start) || as_named(),
                _ => as_named(),
            };
        if !same {
            return Err(Error::invalid("its moments have other groups than the first gene's: rank the genes of one query at a time"));
        }
        self.checked = Some((batch, entries.start));
        Ok(())
    }

    /// Divides once what does not change from gene to gene.
    fn share(&mut self) {
        self.shares = vec![[Share::default(); 3]; self.groups.len()];
        let mut before = 0u64;
        for (share, group) in self.shares.iter_mut().zip(&self.groups) {
            share[0] = Share::of(before, group.n);
            before = before.saturating_add(group.n);
        }
        let mut after = 0u64;
        for (g, group) in self.groups.iter().enumerate().rev() {
            let before = self.groups[..g].iter().fold(0u64, |sum, group| sum.saturating_add(group.n));
            self.shares[g][1] = Share::of(group.n, after);
            self.shares[g][2] = Share::of(before, after);
            after = after.saturating_add(group.n);
        }
    }

    /// Gives for each chosen group its place in `chosen`, and the moments of the `run` genes for it and for its
    /// reference.
    ///
    /// # Errors
    /// Invalid where either has fewer than two cells.
    pub(super) fn pair(&mut self, run: usize, chosen: &[usize], reference: Option<usize>, mut put: impl FnMut(usize, &Moments, &Moments)) -> Result<()> {
        let Self { names, groups, before, after, rest, shares, .. } = self;
        if reference.is_none() {
            // The rest of g is the groups before it and those after it.
            let last = groups.len() - 1;
            for g in 0..last {
                let (known, next) = before.split_at_mut(g + 1);
                next[0].merge(&known[g], &groups[g], shares[g][0], run);
            }
            after[last].copy(&groups[last], run);
            for g in (1..last).rev() {
                let (next, known) = after.split_at_mut(g + 1);
                next[g].merge(&groups[g], &known[0], shares[g][1], run);
            }
        }
        for (place, &g) in chosen.iter().enumerate() {
            let (mine, other) = match reference {
                Some(r) => (&groups[g], &groups[r]),
                None => {
                    rest.merge(&before[g], &after[g + 1], shares[g][2], run);
                    (&groups[g], &*rest)
                }
            };
            if mine.n < 2 {
                check_size(&names[g], mine.n).map_err(|e| Error::invalid(format!("{}; name with groups= those to test", e.message())))?;
            }
            if other.n < 2 {
                match reference {
                    Some(r) => check_size(&names[r], other.n)?,
                    None => check_size(&format!("rest (all cells but those in {})", names[g]), other.n)?,
                }
            }
            put(place, mine, other);
        }
        Ok(())
    }
}
