//! Keys of volumes as keys on the drives of a fleet.
//!
//! | key of crate `volume` | on the fleet |
//! |---|---|
//! | `~vol/~next` | record `~fvol/~numbers/next` |
//! | `~vol/<name>/header` | record `~fvol/<name>/header` |
//! | - | turn record `~fvol/<name>/turn` |
//! | `~vol/<name>/x/<n>` | extent record `~fvol/<name>/x/<n>`, shards `~fext/<name>/x/<n>/<generation>` |
//!
//! The prefixes differ from those of a drive's own volumes, so that one drive can serve both.

use skytether_catalog::volume_records::{DATA_PREFIX, PREFIX as RECORDS};
use skytether_common::{Error, Key, Result};
use skytether_volume::names::PREFIX as VOLUMES;

const NUMBERS: (&str, &str) = ("~next", "~numbers/next");

/// The key, or the beginning of a key, of a record.
pub(crate) fn record(volume: &str) -> Result<String> {
    let rest = volume.strip_prefix(VOLUMES).ok_or_else(|| Error::internal(format!("{volume} is no key of a volume")))?;
    Ok(format!("{RECORDS}{}", if rest == NUMBERS.0 { NUMBERS.1 } else { rest }))
}

/// The same of a whole key.
pub(crate) fn record_key(volume: &Key) -> Result<Key> {
    Key::new(record(volume.as_str())?)
}

/// The key of a volume that has this record.
pub(crate) fn volume_key(record: &Key) -> Result<Key> {
    let rest = record.as_str().strip_prefix(RECORDS).ok_or_else(|| Error::internal(format!("{record} is no key of a record")))?;
    Key::new(format!("{VOLUMES}{}", if rest == NUMBERS.1 { NUMBERS.0 } else { rest }))
}

/// The key of the turn record of the volume that has this record.
pub(crate) fn turn(record: &Key) -> Result<Key> {
    let rest = record.as_str().strip_prefix(RECORDS).and_then(|rest| rest.split_once('/'));
    let (volume, _) = rest.ok_or_else(|| Error::internal(format!("{record} is no key of a record")))?;
    Key::new(format!("{RECORDS}{volume}/turn"))
}

/// Whether the key of a volume is that of an extent.
pub(crate) fn is_extent(volume: &Key) -> bool {
    let mut parts = volume.as_str().rsplit('/');
    let is_number = parts.next().is_some_and(|number| number.len() == 12);
    // Not a snapshot of the name `x`.
    is_number && parts.next() == Some("x") && matches!(parts.count(), 2 | 4)
}

/// The key of the shards of a generation of an extent.
pub(crate) fn shard(record: &Key, generation: u64) -> Result<Key> {
    let rest = record.as_str().strip_prefix(RECORDS).ok_or_else(|| Error::internal(format!("{record} is no key of a record")))?;
    Key::new(format!("{DATA_PREFIX}{rest}/{generation:016x}"))
}

/// The key of the extent record, and the generation, of a shard.
pub(crate) fn of_shard(shard: &Key) -> Option<(Key, u64)> {
    let (rest, generation) = shard.as_str().strip_prefix(DATA_PREFIX)?.rsplit_once('/')?;
    let generation = Some(generation).filter(|digits| digits.len() == 16).and_then(|digits| u64::from_str_radix(digits, 16).ok())?;
    Some((Key::new(format!("{RECORDS}{rest}")).ok()?, generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_volumes_are_read_back() {
        for (volume, on_fleet, extent) in [
            ("~vol/~next", "~fvol/~numbers/next", false),
            ("~vol/a/header", "~fvol/a/header", false),
            ("~vol/a/x/00000000000f", "~fvol/a/x/00000000000f", true),
            ("~vol/a/s/b/x/00000000000f", "~fvol/a/s/b/x/00000000000f", true),
            ("~vol/a/s/x/header", "~fvol/a/s/x/header", false),
        ] {
            let (volume, record) = (Key::new(volume).unwrap(), Key::new(on_fleet).unwrap());
            assert_eq!(record_key(&volume).unwrap(), record);
            assert_eq!(volume_key(&record).unwrap(), volume);
            assert_eq!(is_extent(&volume), extent, "{volume}");
            assert_eq!(of_shard(&shard(&record, 77).unwrap()), Some((record.clone(), 77)));
            assert_eq!(turn(&record).unwrap().as_str().starts_with("~fvol/a/"), volume.as_str().starts_with("~vol/a/"));
        }
        assert_eq!(record("~vol/").unwrap(), RECORDS);
        assert_eq!(of_shard(&Key::new("~fext/a/x/1").unwrap()), None);
    }
}
