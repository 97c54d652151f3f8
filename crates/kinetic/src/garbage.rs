//! Stripes that no key names, and sub-plans and rows that no one reads: what clients left that crashed.

use bytes::Bytes;
use skytether_common::{Error, Result};

use crate::drive::Inner;
use crate::layout::{PLANS, ROWS, STRIPES, given_at, parse_stripe_version, passing_since};
use crate::values::Delete;

impl Inner {
    /// Deletes stripes that no key names and that were given their version before `before`, in microseconds since
    /// 1970. Younger ones may have a writer that has not committed yet.
    pub(crate) async fn collect_garbage(&self, before: u64) -> Result<u64> {
        let end = Bytes::from(format!("{}0", STRIPES.trim_end_matches('/')));
        let mut start = Bytes::from_static(STRIPES.as_bytes());
        let mut deleted = self.collect_passing(PLANS, before).await? + self.collect_passing(ROWS, before).await?;
        // Stripes of one value are neighbours: its key is asked once.
        let mut last: Option<(Bytes, bool)> = None;
        loop {
            let (keys, most) = self.page((start.clone(), false), (end.clone(), false), usize::MAX).await.map_err(|e| self.failed_to("list stripes", e))?;
            for key in &keys {
                let value = key.slice(..key.len().min(STRIPES.len() + 32));
                let is_garbage = match &last {
                    Some((of, is_garbage)) if *of == value => *is_garbage,
                    _ => self.is_garbage(key, before).await.map_err(|e| self.named(e))?,
                };
                last = Some((value, is_garbage));
                if is_garbage {
                    self.delete_garbage(key).await?;
                    deleted += 1;
                }
            }
            match keys.last() {
                Some(last) if keys.len() >= most => start = last.clone(),
                _ => return Ok(deleted),
            }
        }
    }

    /// Deletes what was under `prefix` for a moment, before `before`.
    async fn collect_passing(&self, prefix: &'static str, before: u64) -> Result<u64> {
        let end = Bytes::from(format!("{}0", prefix.trim_end_matches('/')));
        let mut start = Bytes::from_static(prefix.as_bytes());
        let mut deleted = 0;
        loop {
            let (keys, most) = self.page((start.clone(), false), (end.clone(), false), usize::MAX).await.map_err(|e| self.failed_to("list keys", e))?;
            for key in &keys {
                if passing_since(prefix, key).is_some_and(|since| since < before) {
                    self.delete_garbage(key).await?;
                    deleted += 1;
                }
            }
            match keys.last() {
                Some(last) if keys.len() >= most => start = last.clone(),
                _ => return Ok(deleted),
            }
        }
    }

    async fn delete_garbage(&self, key: &Bytes) -> Result<()> {
        let delete = Delete::new(key.clone(), None);
        let ask = |on: std::sync::Arc<crate::Connection>| {
            let delete = delete.clone();
            async move { on.delete(delete).await }
        };
        self.client.read(ask).await.map_err(|e| self.failed_to("delete a key that no one needs", e))
    }

    async fn is_garbage(&self, stripe: &Bytes, before: u64) -> Result<bool, Error> {
        // What has another form is not ours.
        let Some((version, key)) = self.raw_version(stripe).await?.as_ref().and_then(parse_stripe_version) else { return Ok(false) };
        if given_at(version) >= before {
            return Ok(false);
        }
        let stamp = self.raw_version(&key).await?.as_deref().and_then(crate::layout::Stamp::parse);
        if stamp.is_some_and(|stamp| stamp.version == version) {
            return Ok(false);
        }
        // An intent that is still to be done may name it as well.
        Ok(!self.is_unfinished())
    }
}
