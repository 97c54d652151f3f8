//! Verifies the extents of a volume where they are.

use skytether_common::Result;
use skytether_device::verify::{Expected, Found, Item, Verify};

use crate::backing::Backing;
use crate::names::extent_number;
use crate::names::extents_prefix;

/// Extents of one request.
const PAGE: usize = 1000;

/// What a scrub of a volume or snapshot found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scrubbed {
    /// Extents that were verified.
    pub extents: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// What is damaged.
    pub damaged: Vec<DamagedExtent>,
}

/// An extent that can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedExtent {
    /// `VOLUME`, or `VOLUME@SNAPSHOT`.
    pub of: String,
    /// Its number.
    pub extent: u64,
    /// Its first byte in the volume.
    pub at: u64,
    /// What the drive says.
    pub why: String,
    /// Whether it was written again, from what other drives have.
    pub repaired: bool,
}

/// Verifies the extents of `of`, which are below `prefix`, at most at this rate. With `repair`, those that the backing
/// can write again are.
///
/// # Errors
/// `Unavailable`. Damage is no error.
pub(crate) async fn scrub(backing: &dyn Backing, of: &str, prefix: &str, extent: u64, bytes_per_s: Option<u64>, repair: bool) -> Result<Scrubbed> {
    let mut scrubbed = Scrubbed::default();
    let mut after = None;
    loop {
        let page = backing.list(&extents_prefix(prefix), after.as_ref(), PAGE).await?;
        let Some(last) = page.last() else { return Ok(scrubbed) };
        after = Some(last.key.clone());
        let items = page.iter().map(|entry| {
            let expected = Some(Expected { len: entry.len, crc32c: entry.crc32c });
            Item { key: entry.key.clone(), expected, summed: None }
        });
        let verified = backing.verify(Verify { seed: 0, bytes_per_s, items: items.collect() }).await?;
        scrubbed.extents += page.len() as u64;
        scrubbed.bytes += verified.bytes;
        for (at, found) in verified.found {
            let Some(key) = page.get(at as usize).map(|entry| &entry.key) else { continue };
            // One that is missing or another was merged or unmapped meanwhile.
            if let (Some(number), Found::Damaged(mut why)) = (extent_number(prefix, key), found) {
                let repaired = match if repair { backing.repair(key).await } else { Ok(false) } {
                    Ok(repaired) => repaired,
                    Err(error) => {
                        why = format!("{why}; it can't be repaired: {}", error.report());
                        false
                    }
                };
                scrubbed.damaged.push(DamagedExtent { of: of.to_owned(), extent: number, at: number * extent, why, repaired });
            }
        }
    }
}
