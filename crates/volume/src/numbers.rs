//! Numbers of volumes, by which block protocols address them: units of SCSI, namespaces of NVMe.
//!
//! The record `~vol/~next` has the next number, from 1 on. It is written in the same batch as the header record that
//! takes the number, so that none is given twice, also not after a removal: a client that has a number must never find
//! the data of another volume there. No name of a volume begins with `~`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Key, Kind, Result};
use skytether_store::{Expect, Op};

use crate::backing::Backing;
use crate::header::{FORMAT, Header};
use crate::keys::{names_below, read_header};
use crate::names::{PREFIX, VolumeName, header_key};

#[derive(Debug, Serialize, Deserialize)]
struct Next {
    format: u32,
    next: u32,
}

fn key() -> Result<Key> {
    Key::new(format!("{PREFIX}~next"))
}

/// The next number, and what the record must be when it is taken.
async fn next(backing: &dyn Backing) -> Result<(u32, Expect)> {
    let key = key()?;
    let Some(entry) = backing.stat(&key).await? else {
        // Lost, or the first volume of the drive.
        let mut highest = 0;
        for name in names_below(backing, PREFIX).await? {
            match read_header(backing, &format!("volume {name}"), &name.prefix()).await {
                Ok(found) => highest = highest.max(found.map_or(0, |(header, _)| header.number)),
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Unsupported) => {}
                Err(error) => return Err(error),
            }
        }
        return Ok((highest.saturating_add(1), Expect::Absent));
    };
    let damaged = |why: &str| Error::corrupt(format!("the next number of volumes on drive {} can't be read ({why}): restore key {key}", backing.name()));
    let found: Next = serde_json::from_slice(&backing.get(&key).await?).map_err(|e| damaged("it is no record").with_source(e))?;
    if found.format != FORMAT || found.next == 0 {
        return Err(damaged("it has no valid number"));
    }
    Ok((found.next, Expect::Version(entry.version)))
}

/// Writes the header record of the new volume `name`, with a number that no other had or will have.
///
/// # Errors
/// `Conflict` where a volume of the name is there, or another one is made at the same time; those of the drive.
pub(crate) async fn put_numbered(backing: &dyn Backing, name: &VolumeName, header: Header) -> Result<()> {
    let (number, expect) = next(backing).await?;
    let after = number.checked_add(1).ok_or_else(|| Error::exhausted(format!("volume {name}: drive {} has no number left", backing.name())))?;
    let record = serde_json::to_vec(&Next { format: FORMAT, next: after }).map_err(|e| Error::internal("a number can't be written").with_source(e))?;
    let header = Header { number, ..header }.encode()?;
    let batch =
        vec![Op::Put { key: key()?, value: Bytes::from(record), expect }, Op::Put { key: header_key(&name.prefix())?, value: header, expect: Expect::Absent }];
    backing.apply(batch).await.map(drop)
}
