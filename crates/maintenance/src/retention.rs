//! Replaced generations. A host keeps each one while queries read it, and then deletes it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skytether_catalog::records::root::RootRecord;
use skytether_common::Result;
use tokio::runtime::Handle;

use skytether_cluster::cluster::Cluster;

/// How long queries that began before the replacement may read the old generation. A longer query fails, as its data
/// set was replaced.
const GRACE: Duration = Duration::from_secs(60);

/// Interval of the checks whether these queries have ended.
const LOOK: Duration = Duration::from_millis(20);

/// Generations to delete, the oldest first. When the value is dropped, a background task deletes the rest, while the
/// cluster is in use.
pub(crate) struct Replaced<'a> {
    cluster: &'a Cluster,
    old: VecDeque<Old>,
}

struct Old {
    until: Instant,
    /// Held by the queries that may read the generation.
    held: Arc<()>,
    record: RootRecord,
}

impl Old {
    fn is_read(&self) -> bool {
        Arc::strong_count(&self.held) > 1 && self.until > Instant::now()
    }

    /// Nothing of it is in the generation that replaced it, which is whole.
    async fn delete(&self, cluster: &Cluster) -> Result<()> {
        cluster.catalog().delete_replaced(&self.record, None).await
    }
}

impl<'a> Replaced<'a> {
    pub(crate) fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, old: VecDeque::new() }
    }

    /// What `record` names was replaced just now, all of it.
    pub(crate) fn push(&mut self, record: RootRecord) {
        self.old.push_back(Old { until: Instant::now() + GRACE, held: self.cluster.ran(), record });
    }

    /// Deletes the generations that no query reads any more. With `last` it waits until all are deleted.
    ///
    /// # Errors
    /// Errors of the drives. A background task tries again.
    pub(crate) async fn tidy(&mut self, last: bool) -> Result<()> {
        loop {
            // In order: a query that began before one replacement may also read all generations that were replaced
            // later.
            while let Some(oldest) = self.old.front().filter(|oldest| !oldest.is_read()) {
                oldest.delete(self.cluster).await?;
                self.old.pop_front();
            }
            if !last || self.old.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Replaced<'_> {
    fn drop(&mut self) {
        let old = std::mem::take(&mut self.old);
        // Outside of a runtime no task can be spawned. The next open of the fleet deletes the generations.
        let (false, Ok(runtime)) = (old.is_empty(), Handle::try_current()) else { return };
        let cluster = self.cluster.downgrade();
        runtime.spawn(async move {
            for old in old {
                while old.is_read() {
                    tokio::time::sleep(LOOK).await;
                }
                // The task does not keep the cluster alive.
                let Some(cluster) = cluster.upgrade() else { return };
                if let Err(e) = old.delete(&cluster).await {
                    tracing::debug!("{e}");
                }
            }
        });
    }
}
