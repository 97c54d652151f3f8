//! Status of the drives, and a watch over them.

use futures::future::BoxFuture;
use std::convert::Infallible;
use std::time::Duration;

use futures::future::join_all;
use skytether_common::Error;
use tokio::time::MissedTickBehavior;

use crate::cluster::Cluster;
use skytether_api::status::DriveStatus;
use skytether_recovery::missing_drive::advice;
use skytether_runtime::within;

impl Cluster {
    /// The status of all members: usage or the reason why it is unknown, and the data sets with damage on the drive. It
    /// checks first whether lost drives are back, and whether blank ones are in their places.
    pub fn status(&self) -> BoxFuture<'_, Vec<DriveStatus>> {
        Box::pin(async move {
            self.catalog().probe_lost().await;
            let health = self.catalog().health();
            join_all((0..self.drives().len()).filter(|at| !health.is_outside(*at)).map(|at| self.status_of(at))).await
        })
    }

    async fn status_of(&self, at: usize) -> DriveStatus {
        let (drive, health) = (&self.drives()[at], self.catalog().health());
        let info = drive.info().clone();
        let mut found = None;
        let asked = async {
            let deadline = self.options().storage_deadline;
            let there = within(deadline, &info.name, "say who it is", drive.identify()).await?;
            found = (there.id != info.id).then_some(there);
            let usage = within(deadline, &info.name, "say how much it holds", drive.usage()).await?;
            let unreadable = match self.catalog().unreadable_at(at).await {
                // With too many drives lost, the host can't list the data sets. It still reports that this drive
                // answers.
                Err(_) if self.catalog().check_presence().is_err() => Vec::new(),
                told => told?,
            };
            Ok::<_, Error>((usage, unreadable, self.other_host(at).await))
        };
        let asked = asked.await;
        let damaged = self.reconstructor().damaged(at);
        let node = health.failure_domains().and_then(|domains| domains.name(at).map(str::to_owned));
        match asked {
            Ok((usage, unreadable, fenced)) => {
                let (error, blank) = (health.down_reason(at), health.is_blank(at));
                DriveStatus { info, found: None, node, usage: Some(usage), error, blank, fenced, damaged, unreadable }
            }
            Err(e) => {
                let error = if found.is_some() { e.report() } else { self.why_lost(at, &e) };
                DriveStatus { info, found, node, usage: None, error: Some(error), blank: false, fenced: None, damaged, unreadable: Vec::new() }
            }
        }
    }

    /// Why drive `at` is lost, whose last answer was `error`, and what an operator can do.
    fn why_lost(&self, at: usize, error: &Error) -> String {
        let (drive, health) = (&self.drives()[at], self.catalog().health());
        let info = drive.info();
        let (id, name) = (&info.id, &info.name);
        // With too many drives lost, or without redundancy, no drive can be rebuilt.
        let spared = health.is_redundant() && self.catalog().check_presence().is_ok();
        if self.gone().iter().any(|(gone, _)| gone == id) {
            let why = health.down_reason(at).unwrap_or_else(|| error.report());
            return format!("{why}; {}", if spared { advice(id, name, self.is_kept()) } else { "bring it back".to_owned() });
        }
        let why = error.report();
        if spared && drive.capabilities().remote {
            return format!(
                "{why}, or have all of it rebuilt on a blank drive at its address (`skytether drive serve --data NEW --name {name} --replace {id}`, then `skytether repair`)"
            );
        }
        why
    }

    /// Sends each drive a small request once per `every`, for ever. So connections log the loss and the return of a
    /// drive at once, and not only when a query needs it.
    pub fn watch(&self, every: Duration) -> BoxFuture<'_, Infallible> {
        Box::pin(async move {
            let mut ticks = tokio::time::interval(every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                join_all(self.drives().iter().map(|drive| async {
                    // A small request that the drive itself must answer. The connection logs a loss.
                    if let Err(e) = drive.list("", None, 1).await {
                        tracing::debug!("{e}");
                    }
                }))
                .await;
            }
        })
    }
}
