//! How the drives are.

use std::convert::Infallible;
use std::time::Duration;

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use skytether_common::{DatasetName, Error, Kind, Result};
use skytether_store::Usage;
use skytether_wire::CseInfo;
use tokio::time::MissedTickBehavior;

use crate::catalog::{Catalog, within};
use crate::session::Host;

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
    /// Why it does not, or why it is not used although it does.
    pub error: Option<String>,
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
    pub async fn status(&self) -> Vec<DriveStatus> {
        let presence = self.catalog().presence();
        join_all(self.drives().iter().enumerate().filter(|(at, _)| !presence.is_outside(*at)).map(|(at, drive)| async move {
            let info = drive.info().clone();
            let mut found = None;
            let asked = async {
                let deadline = self.options().storage_deadline;
                let there = within(deadline, &info.name, "say who it is", drive.present()).await?;
                found = (there.id != info.id).then_some(there);
                let usage = within(deadline, &info.name, "say how much it holds", drive.usage()).await?;
                Ok::<_, Error>((usage, self.catalog().unreadable_at(at).await?))
            };
            let asked = asked.await;
            let damaged = self.cover().damaged(at);
            let host = presence.domains().and_then(|domains| domains.name(at).map(str::to_owned));
            match asked {
                Ok((usage, unreadable)) => {
                    DriveStatus { info, found: None, host, usage: Some(usage), error: self.catalog().presence().why(at), damaged, unreadable }
                }
                Err(e) => DriveStatus { info, found, host, usage: None, error: Some(e.full_text()), damaged, unreadable: Vec::new() },
            }
        }))
        .await
    }

    /// Asks each drive for a sign of life as often as `every` says, for ever: connections log the loss and the return of a drive, which they would
    /// otherwise only notice when somebody needs it.
    pub async fn watch(&self, every: Duration) -> Infallible {
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
