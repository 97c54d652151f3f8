//! How the drives are.

use futures::future::BoxFuture;
use std::convert::Infallible;
use std::time::Duration;

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use skytether_common::{DatasetName, Error, Kind, Result};
use skytether_device::CseInfo;
use skytether_store::Usage;
use tokio::time::MissedTickBehavior;

use crate::catalog::root_store::{Catalog, within};
use crate::query::planner::Host;
use crate::recovery::missing_drive::advice;

/// One drive as the host sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriveStatus {
    /// Who it is.
    pub info: CseInfo,
    /// Who answers at its address in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<CseInfo>,
    /// The host that it is a drive of, where the record of the fleet says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// What it holds, if it answers.
    pub usage: Option<Usage>,
    /// Why it is lost: why it does not answer, or is not used although it does.
    pub error: Option<String>,
    /// Whether it is lost because it is blank: it is in the place of one that was lost, and nothing was rebuilt on it yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blank: bool,
    /// Which other host it takes changes from, where that is not the one that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced: Option<String>,
    /// Values of this drive that were met damaged since the host began, and not mended since: a scrub mends them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub damaged: u64,
    /// Data sets whose root records are on this drive and can't be read.
    #[serde(default)]
    pub unreadable: Vec<Unreadable>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A data set whose root record can't be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// The data set.
    pub name: DatasetName,
    /// Why.
    pub error: String,
}

impl Host {
    /// All drives, each with its usage or the reason why it does not tell, and with the data sets that are damaged at it.
    pub fn status(&self) -> BoxFuture<'_, Vec<DriveStatus>> {
        Box::pin(async move {
            let presence = self.catalog().presence();
            join_all((0..self.drives().len()).filter(|at| !presence.is_outside(*at)).map(|at| self.status_of(at))).await
        })
    }

    async fn status_of(&self, at: usize) -> DriveStatus {
        let (drive, presence) = (&self.drives()[at], self.catalog().presence());
        let info = drive.info().clone();
        let mut found = None;
        let asked = async {
            let deadline = self.options().storage_deadline;
            let there = within(deadline, &info.name, "say who it is", drive.identify()).await?;
            found = (there.id != info.id).then_some(there);
            let usage = within(deadline, &info.name, "say how much it holds", drive.usage()).await?;
            let unreadable = match self.catalog().unreadable_at(at).await {
                // With too many others lost nobody can tell which data sets there are; that this drive is here can be told all the same.
                Err(_) if self.catalog().check_presence().is_err() => Vec::new(),
                told => told?,
            };
            Ok::<_, Error>((usage, unreadable, self.other_host(at).await))
        };
        let asked = asked.await;
        let damaged = self.cover().damaged(at);
        let host = presence.domains().and_then(|domains| domains.name(at).map(str::to_owned));
        match asked {
            Ok((usage, unreadable, fenced)) => {
                let (error, blank) = (presence.why(at), presence.is_blank(at));
                DriveStatus { info, found: None, host, usage: Some(usage), error, blank, fenced, damaged, unreadable }
            }
            Err(e) => {
                let error = if found.is_some() { e.full_text() } else { self.why_lost(at, &e) };
                DriveStatus { info, found, host, usage: None, error: Some(error), blank: false, fenced: None, damaged, unreadable: Vec::new() }
            }
        }
    }

    /// Why drive `at` is lost, which answered with `error`, and what to do about it.
    fn why_lost(&self, at: usize, error: &Error) -> String {
        let (drive, presence) = (&self.drives()[at], self.catalog().presence());
        let info = drive.info();
        let (id, name) = (&info.id, &info.name);
        // With too many lost nothing can be rebuilt, and without redundancy neither.
        let spared = presence.is_redundant() && self.catalog().check_presence().is_ok();
        if self.gone().iter().any(|(gone, _)| gone == id) {
            let why = presence.why(at).unwrap_or_else(|| error.full_text());
            return format!("{why}; {}", if spared { advice(id, name, self.is_kept()) } else { "bring it back".to_owned() });
        }
        let why = error.full_text();
        if spared && drive.capabilities().remote {
            return format!(
                "{why}, or have all of it rebuilt on a blank drive at its address (`skytether drive serve --data NEW --name {name} --replace {id}`, then `skytether repair`)"
            );
        }
        why
    }

    /// Asks each drive for a sign of life as often as `every` says, for ever: connections log the loss and the return of a drive, which they would
    /// otherwise only notice when somebody needs it.
    pub fn watch(&self, every: Duration) -> BoxFuture<'_, Infallible> {
        Box::pin(async move {
            let mut ticks = tokio::time::interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                join_all(self.drives().iter().map(|drive| async {
                    // A small question that the drive itself must answer; the connection says what is to be said.
                    if let Err(e) = drive.list("", None, 1).await {
                        tracing::debug!("{e}");
                    }
                }))
                .await;
            }
        })
    }
}

impl Catalog {
    async fn unreadable_at(&self, drive: usize) -> Result<Vec<Unreadable>> {
        let mut found = Vec::new();
        for name in self.names_at(drive).await? {
            // One that lies elsewhere than at its home is nobody's, and is not read by anybody.
            if !self.homes(&name).contains(&drive) {
                continue;
            }
            match self.read(&name).await {
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) => found.push(Unreadable { name, error: e.full_text() }),
                // Dropped since its name was read.
                Err(e) if e.kind() != Kind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(found)
    }
}
