//! Indexes of a fleet: create, list, drop, and wait for them.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use skytether_common::{Error, Result};
use skytether_host::{IndexInfo, ListIndexes, NewIndex, OldIndex};

use crate::fleet::Fleet;

/// Interval between two looks at the progress of an index: the first, and the longest.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// How long an index may make no progress before [`Fleet::wait_for_index`] gives up.
const STUCK: Duration = Duration::from_secs(300);

impl Fleet {
    /// Has the drives build an index in the background, and gives its name. See
    /// [`skytether_host::Catalog::create_index`].
    ///
    /// # Errors
    /// As there.
    pub fn create_index<'a>(&'a self, asked: &'a NewIndex) -> BoxFuture<'a, Result<String>> {
        self.service().create_index(asked)
    }

    /// The indexes and their progress; see [`skytether_host::Catalog::indexes`].
    ///
    /// # Errors
    /// As there.
    pub fn indexes<'a>(&'a self, asked: &'a ListIndexes) -> BoxFuture<'a, Result<Vec<IndexInfo>>> {
        self.service().indexes(asked)
    }

    /// Removes an index; see [`skytether_host::Catalog::drop_index`].
    ///
    /// # Errors
    /// As there.
    pub fn drop_index<'a>(&'a self, old: &'a OldIndex) -> BoxFuture<'a, Result<()>> {
        self.service().drop_index(old)
    }

    /// Waits until an index is built. `tell` gets the progress; its error ends the wait.
    ///
    /// # Errors
    /// `NotFound` where the index was dropped; `Exhausted` where drives dropped it for lack of space; `Invalid` where
    /// it can't be built; `Unavailable` where drives do not answer, or it makes no progress; errors of `tell`.
    pub async fn wait_for_index(&self, index: &OldIndex, mut tell: impl FnMut(&IndexInfo) -> Result<()>) -> Result<IndexInfo> {
        let asked = ListIndexes { dataset: Some(index.dataset.clone()) };
        let (mut pause, mut seen, mut moved) = (LOOKS.0, None, Instant::now());
        loop {
            let infos = self.indexes(&asked).await?;
            let info = infos.into_iter().find(|info| info.index.name == index.name);
            let info = info.ok_or_else(|| Error::not_found(format!("index {} of {} was dropped", index.name, index.dataset)))?;
            tell(&info)?;
            match info.state.as_str() {
                "ready" => return Ok(info),
                "dropped" => return Err(Error::exhausted(format!("{info}"))),
                "failed" => return Err(Error::invalid(format!("{info}"))),
                "unknown" => return Err(Error::unavailable(format!("{info}"))),
                _ => {}
            }
            if seen.replace(info.done) != Some(info.done) {
                moved = Instant::now();
            } else if moved.elapsed() > STUCK {
                return Err(Error::unavailable(format!("nothing has happened for {} s: {info}", STUCK.as_secs())));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOKS.1);
        }
    }
}
