//! Values that other drives have copies of: metadata, and small tables that lie everywhere.

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use skytether_common::{Detail, Error, Key, Kind, Result};
use skytether_store::Entry;

use crate::reconstruct::Reconstructor;
use crate::shard::Reconstructed;

impl Reconstructor {
    /// A copy of the value of `key` from any drive but `not`.
    ///
    /// # Errors
    /// `NotFound` where no drive has it; Unavailable where none does and some could not say.
    pub(crate) async fn copy(&self, key: &Key, not: usize) -> Result<Reconstructed> {
        let (_, value) = self.first_copy(key, not, true).await?;
        Ok(Reconstructed { read: value.len() as u64, value, within: false })
    }

    /// The entry of `key` at the first drive other than `not` that has a copy.
    ///
    /// # Errors
    /// As [`Self::copy`].
    pub(crate) async fn copy_known(&self, key: &Key, not: usize) -> Result<Entry> {
        Ok(self.first_copy(key, not, false).await?.0)
    }

    /// The entry of `key` at the first drive other than `not` that has a copy, and the value if `read` is set. All
    /// drives are asked at once: each may be busy with reads for the others.
    async fn first_copy(&self, key: &Key, not: usize, read: bool) -> Result<(Entry, Bytes)> {
        let mut trouble: Vec<String> = self.health.down().into_iter().map(|at| self.lost(at)).collect();
        let here = self.health.up().into_iter().filter(|at| *at != not);
        let mut asked: FuturesUnordered<_> = here.map(|at| async move { (at, self.ask(at, "look for a copy", self.drives[at].stat(key)).await) }).collect();
        while let Some((at, entry)) = asked.next().await {
            let found = match entry {
                Ok(None) => continue,
                Ok(Some(entry)) if read => self.ask(at, "read a copy", self.drives[at].get(key)).await.map(|value| (entry, value)),
                Ok(Some(entry)) => Ok((entry, Bytes::new())),
                Err(e) => Err(e),
            };
            match found {
                Ok(found) => return Ok(found),
                Err(e) if e.kind() == Kind::NotFound => {}
                Err(e) => trouble.push(e.report()),
            }
        }
        if trouble.is_empty() {
            return Err(Error::not_found(format!("no drive has a copy of {key}")).with_detail(Detail::missing_key(key)));
        }
        trouble.sort();
        Err(Error::unavailable(format!("no drive that is here has a copy of {key}: {}", trouble.join("; "))))
    }
}
