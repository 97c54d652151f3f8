//! The commit of an ingest: one compare-and-set of the root record.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use skytether_catalog::commit::lost_update;
use skytether_catalog::fencing::is_refusal;
use skytether_catalog::records::root::{PLAIN_FORMAT, RootRecord, TableRecord};
use skytether_common::names::part_of;
use skytether_common::{Error, Kind, Result};
use skytether_partitioning::Placement;
use skytether_store::Expect;
use uuid::Uuid;

use super::{DatasetWriter, IngestReport, State};

/// Attempts of a commit that conflicts with a change of the record that did not change the content, such as a move.
const ATTEMPTS: usize = 8;

/// Versions whose replaced tables stay on the drives, for queries that began before.
const RETAINED: usize = 2;

impl DatasetWriter {
    /// Makes all tables visible at once, instead of the previous content.
    ///
    /// # Errors
    /// `Conflict` if another writer changed this data set meanwhile: nothing changed, and the written values are
    /// deleted. After any other error the commit may have happened: read the data set. A caller that stops waiting does
    /// not stop the commit.
    pub fn commit(self) -> BoxFuture<'static, Result<IngestReport>> {
        Box::pin(async move {
            let mut this = self;

            if this.state != State::Writing {
                return Err(Error::invalid(format!("this ingest of {} has failed before: begin again", this.name)));
            }
            if this.tables.is_empty() && this.left_out.is_none() {
                return Err(Error::invalid(format!("{} has no table: nothing to commit", this.name)));
            }
            this.catalog.raise_homes(this.scheme).await?;
            let record = RootRecord {
                format: PLAIN_FORMAT,
                name: this.name.clone(),
                kind: this.kind,
                generation: this.generation,
                content: None,
                change: this.catalog.next_change(this.change),
                tables: BTreeMap::new(),
                superseded: Vec::new(),
                indexes: Vec::new(),
                application: std::mem::take(&mut this.application),
            };
            // From here on a drop deletes nothing: the root record may name the new generation.
            this.state = State::Settled;
            let name = this.name.clone();
            let runtime = this.runtime.clone();
            runtime
                .spawn(this.settle_commit(record))
                .await
                .map_err(|e| Error::internal(format!("the commit of {name} stopped: see whether it is there")).with_source(e))?
        })
    }

    /// What the commit expects to replace: the current record and its version. Its content must be that of the ingest's
    /// start. Another home drive, with versions of its own, may decide by now, and a resize may have moved the content.
    async fn expected_now(&self) -> Result<(Expect, Option<RootRecord>)> {
        self.catalog.look_around().await?;
        let (expect, now) = match self.catalog.read_versioned(&self.name).await? {
            None => (Expect::Absent, None),
            Some((record, version)) => (Expect::Version(version), Some(record)),
        };
        if now.as_ref().map(RootRecord::written) == self.replaced { Ok((expect, now)) } else { Err(lost_update(&self.name)) }
    }

    /// Commits `record` instead of the previous content, and gives what it replaced. An error comes with whether it is
    /// certain that nothing was committed.
    async fn commit_now(&self, record: &mut RootRecord) -> std::result::Result<Option<RootRecord>, (Error, bool)> {
        for attempt in 0.. {
            let (expect, now) = self.expected_now().await.map_err(|e| (e, true))?;
            self.compose(record, now.as_ref()).map_err(|e| (e, true))?;
            self.is_all_there(record).map_err(|e| (e, true))?;
            record.change = self.catalog.next_change(now.as_ref().map_or(self.change, |now| now.change.max(self.change)));
            match self.catalog.commit(record, expect, now.as_ref().map(|now| now.change)).await {
                // A resize may just have moved the data set.
                Err(e) if e.kind() == Kind::Conflict && attempt < ATTEMPTS && !is_refusal(&e) => {}
                // After any other error the drive may have committed in spite of it.
                Err(e) => {
                    let certain = matches!(e.kind(), Kind::Conflict | Kind::Invalid);
                    return Err((e, certain));
                }
                Ok(()) => return Ok(now),
            }
        }
        Err((lost_update(&self.name), true))
    }

    /// Gives `record` its tables and indexes: the written tables and, for a version, those that it keeps of `now`. They
    /// lie where `now` says: a resize may have moved them since the version began.
    fn compose(&self, record: &mut RootRecord, now: Option<&RootRecord>) -> Result<()> {
        record.tables = self.tables.clone();
        record.superseded.clear();
        if let (Some(left_out), Some(now)) = (&self.left_out, now) {
            let mut replaced = BTreeMap::new();
            for (name, table) in &now.tables {
                let generation = now.generation_of(name);
                // The parts of a matrix go with it.
                let of = if table.part.is_some() { part_of(name).unwrap_or(name) } else { name };
                let gone = |name: &str| self.tables.contains_key(name) || left_out.contains(name);
                if gone(name) || gone(of) {
                    replaced.insert(name.clone(), generation);
                } else {
                    record.tables.insert(name.clone(), TableRecord { generation: Some(generation), ..table.clone() });
                }
            }
            if record.tables.is_empty() {
                return Err(Error::invalid(format!("{} would have no table", self.name)));
            }
            self.check_cells(record)?;
            let before = now.superseded.iter().take(RETAINED.saturating_sub(1)).cloned();
            record.superseded = std::iter::once(replaced).filter(|tables| !tables.is_empty()).chain(before).collect();
        }
        record.indexes = now.map_or_else(Vec::new, |now| now.indexes.iter().filter(|index| record.tables.contains_key(&index.table)).cloned().collect());
        record.set_format();
        Ok(())
    }

    /// Checks that all matrices have the same cells, where cells were appended to some.
    fn check_cells(&self, record: &RootRecord) -> Result<()> {
        if !self.tables.values().any(|table| table.part.is_some()) {
            return Ok(());
        }
        let cells = |name: &String| record.matrix(name).map(|matrix| (name.clone(), matrix.cells));
        let all: Vec<(String, u32)> = record.whole_tables().filter_map(|(name, _)| cells(name)).collect();
        match all.iter().find(|(_, n)| *n != all[0].1) {
            None => Ok(()),
            Some((name, n)) => Err(Error::invalid(format!(
                "{} would have {n} cells in {name} and {} in {}: append to all matrices, or leave the others out",
                self.name, all[0].1, all[0].0
            ))),
        }
    }

    /// Checks that no drive with a part of this ingest was replaced: a rebuild restores only what root records name, so
    /// a replaced drive lacks the part. Also checks that no drive with the only copy of a part is lost.
    fn is_all_there(&self, record: &RootRecord) -> Result<()> {
        let now = self.catalog.health().incarnations();
        let replaced = |id: &Uuid| now.get(id) != self.incarnations.get(id) && record.names(id);
        if let Some(at) = self.drives.iter().find(|at| replaced(&self.catalog.drives()[**at].info().id)) {
            let drive = &self.catalog.drives()[*at].info().name;
            return Err(Error::unavailable(format!("{drive} was replaced while {} was written, in part there: ingest it again", self.name)));
        }
        for table in record.tables.values().filter(|table| table.redundancy.is_none() && table.placement == Placement::Spread) {
            for partition in &table.partitions {
                let at = self.catalog.drive(&partition.drive, &self.name)?;
                if self.catalog.health().is_down(at) {
                    let drive = &self.catalog.drives()[at].info().name;
                    return Err(Error::unavailable(format!("{drive} was lost while {} was written, which has no redundancy: ingest it again", self.name)));
                }
            }
        }
        Ok(())
    }

    /// The part of a commit that must run to its end: a task of its own.
    async fn settle_commit(self, mut record: RootRecord) -> Result<IngestReport> {
        let replaced = match self.commit_now(&mut record).await {
            Ok(replaced) => replaced,
            Err((e, certain)) => {
                // Only a generation that no root record names may be deleted. Where that is uncertain, the next open
                // decides.
                if certain && let Err(left) = self.catalog.delete_generation(&self.name, self.generation).await {
                    tracing::debug!("{left}");
                }
                return Err(e);
            }
        };
        if let Err(e) = self.catalog.define_indexes(&record).await {
            // The drives learn of the indexes when a client lists them or the fleet is opened.
            tracing::warn!("drives were not told of the indexes of {}: {e}", self.name);
        }
        if let Some(old) = replaced
            && let Err(e) = self.catalog.delete_replaced(&old, Some(&record)).await
        {
            // The commit holds. The next open of the fleet deletes what is left of the old generation.
            tracing::warn!("{e}");
        }
        Ok(IngestReport {
            rows: record.tables.values().map(|t| t.rows).sum(),
            slices: record.tables.values().flat_map(|t| &t.partitions).map(|p| u64::from(p.slices)).sum(),
            bytes_stored: record.bytes(),
            bytes_written: record.bytes_of(record.generation),
            seconds: self.started.elapsed().as_secs_f64(),
        })
    }
}
