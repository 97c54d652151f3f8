//! What is on the drive below a prefix: header records, extents, names.

use skytether_common::{Error, Key, Kind, Result};
use skytether_store::{Entry, Expect, Op};

use crate::backing::Backing;
use crate::header::Header;
use crate::index::Index;
use crate::names::{VolumeName, extent_number, extents_prefix, header_key};

/// Keys that are listed at a time.
pub(crate) const PAGE: usize = 1000;

/// The header record below `prefix` and its version, if there is one.
///
/// # Errors
/// `Corrupt` and `Unsupported` for the record; those of the drive.
pub(crate) async fn read_header(backing: &dyn Backing, what: &str, prefix: &str) -> Result<Option<(Header, u64)>> {
    let key = header_key(prefix)?;
    loop {
        let Some(entry) = backing.stat(&key).await? else { return Ok(None) };
        let bytes = match backing.get(&key).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == Kind::NotFound => continue,
            Err(error) => return Err(error.context(format!("{what}: its header record can't be read"))),
        };
        // Another version came between.
        if backing.stat(&key).await?.is_some_and(|after| after.version == entry.version) {
            return Ok(Some((Header::decode(what, &bytes)?, entry.version)));
        }
    }
}

/// Writes a header record; its version.
pub(crate) async fn put_header(backing: &dyn Backing, prefix: &str, header: &Header, expect: Expect) -> Result<u64> {
    let put = Op::Put { key: header_key(prefix)?, value: header.encode()?, expect };
    let versions = backing.apply(vec![put]).await?;
    versions.first().copied().ok_or_else(|| Error::internal("a store told no version"))
}

/// Deletes all keys below `prefix`, the header record last.
pub(crate) async fn delete_keys(backing: &dyn Backing, prefix: &str) -> Result<()> {
    let header = header_key(prefix)?;
    let mut after = None;
    loop {
        let page = backing.list(prefix, after.as_ref(), PAGE).await?;
        let Some(last) = page.last().map(|entry| entry.key.clone()) else { break };
        let delete = |key| Op::Delete { key, expect: Expect::Any };
        let batch: Vec<Op> = page.into_iter().map(|entry| entry.key).filter(|key| *key != header).map(delete).collect();
        if !batch.is_empty() {
            backing.apply(batch).await?;
        }
        after = Some(last);
    }
    backing.apply(vec![Op::Delete { key: header, expect: Expect::Any }]).await?;
    Ok(())
}

/// Calls `found` for the number of each extent below `prefix`.
pub(crate) async fn each_extent(backing: &dyn Backing, prefix: &str, mut found: impl FnMut(Entry, u64)) -> Result<()> {
    let extents = extents_prefix(prefix);
    let mut after = None;
    loop {
        let page = backing.list(&extents, after.as_ref(), PAGE).await?;
        let full = page.len() == PAGE;
        after = page.last().map(|entry| entry.key.clone()).or(after);
        for entry in page {
            if let Some(number) = extent_number(prefix, &entry.key) {
                found(entry, number);
            }
        }
        if !full {
            return Ok(());
        }
    }
}

/// Notes in `index` which extents of a volume or snapshot are in the store. Keys beyond its size are left alone: they
/// are no extents of it, and one bit for each number up to them may be more than the memory has.
pub(crate) async fn stored_extents(backing: &dyn Backing, what: &str, prefix: &str, header: &Header, index: &mut Index) -> Result<()> {
    let (end, mut strange) = (header.size.div_ceil(header.extent.into()), 0u64);
    each_extent(backing, prefix, |_, number| if number < end { index.set_stored(number) } else { strange += 1 }).await?;
    if strange > 0 {
        tracing::warn!(volume = what, extents = strange, "extents beyond its end are ignored");
    }
    Ok(())
}

/// The names right below `prefix` that have any key, in their order.
///
/// # Errors
/// Those of the drive.
pub(crate) async fn names_below(backing: &dyn Backing, prefix: &str) -> Result<Vec<VolumeName>> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = backing.list(prefix, after.as_ref(), 1).await?;
        let Some(first) = page.into_iter().next() else { return Ok(found) };
        let rest = first.key.as_str().strip_prefix(prefix).unwrap_or_default();
        let Some((name, _)) = rest.split_once('/') else {
            after = Some(first.key);
            continue;
        };
        // All other keys of this name are passed over at once: none of their parts begins with `~`.
        after = Some(Key::new(format!("{prefix}{name}/~"))?);
        found.extend(VolumeName::new(name));
    }
}
