//! The partitions in a drive's store.

use skytether_common::{Key, PartitionName, Result};
use skytether_store::{Entry, SliceStore};

/// Keys that are listed at a time.
pub(crate) const PAGE: usize = 256;

/// Gives `visit` each partition of `store` that has a value under its own key, without a walk through its slices.
///
/// # Errors
/// As [`SliceStore::list`].
pub(crate) fn heads(store: &dyn SliceStore, mut visit: impl FnMut(PartitionName, Entry)) -> Result<()> {
    let mut after = None::<Key>;
    loop {
        let page = store.list("", after.as_ref(), PAGE)?;
        let full = page.len() == PAGE;
        let mut next = None;
        for entry in page {
            next = Some(entry.key.clone());
            match PartitionName::parse(&entry.key) {
                Some((partition, Some(_))) => {
                    next = Some(Key::new(format!("{};~", partition.key()?))?);
                    break;
                }
                Some((at, None)) => visit(at, entry),
                None => {}
            }
        }
        let jumped = next.as_ref().is_some_and(|key| key.as_str().ends_with(";~"));
        if next.is_none() || (!full && !jumped) {
            return Ok(());
        }
        after = next;
    }
}
