//! Generations that others took the place of: they are kept as long as queries read them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skytether_common::{DatasetName, Generation, Result};
use tokio::runtime::Handle;

use skytether_cluster::cluster::Cluster;

/// How long queries that began before have to end before what they read is deleted. Those that take longer are told
/// that their data set was replaced.
const GRACE: Duration = Duration::from_secs(60);

/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(20);

/// Generations to be deleted, the oldest first. What is left of them when nobody waits any more is deleted in the
/// background, as long as the host is there.
pub(crate) struct Replaced<'a> {
    cluster: &'a Cluster,
    old: VecDeque<Old>,
}

struct Old {
    until: Instant,
    /// Held by those who may read it still.
    held: Arc<()>,
    name: DatasetName,
    generation: Generation,
}

impl Old {
    fn is_read(&self) -> bool {
        Arc::strong_count(&self.held) > 1 && self.until > Instant::now()
    }

    async fn delete(&self, cluster: &Cluster) -> Result<()> {
        cluster.catalog().delete_generation(&self.name, self.generation).await
    }
}

impl<'a> Replaced<'a> {
    pub(crate) fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, old: VecDeque::new() }
    }

    /// A generation was replaced just now.
    pub(crate) fn push(&mut self, name: DatasetName, generation: Generation) {
        self.old.push_back(Old { until: Instant::now() + GRACE, held: self.cluster.ran(), name, generation });
    }

    /// Deletes what nobody reads any more; waits for it if it is the `last` time.
    ///
    /// # Errors
    /// What the drives say; it is tried again in the background.
    pub(crate) async fn tidy(&mut self, last: bool) -> Result<()> {
        loop {
            // In order: who began before one was replaced may read all that were replaced since.
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
        // Outside of a runtime nobody can: it goes when the fleet is opened next.
        let (false, Ok(runtime)) = (old.is_empty(), Handle::try_current()) else { return };
        let cluster = self.cluster.downgrade();
        runtime.spawn(async move {
            for old in old {
                while old.is_read() {
                    tokio::time::sleep(LOOK).await;
                }
                // It is not kept open for this.
                let Some(cluster) = cluster.upgrade() else { return };
                if let Err(e) = old.delete(&cluster).await {
                    tracing::debug!("{e}");
                }
            }
        });
    }
}
