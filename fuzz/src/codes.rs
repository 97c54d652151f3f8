//! Targets for code maps and digests of data sets with redundancy.

use skytether_erasure::Code;
use skytether_erasure::digest::{Digest, Digesting};
use skytether_erasure::map::{CodeMap, Role, Shard};

/// Bytes of a map before what its checksum covers.
const HEAD: usize = 16;

pub(crate) fn code_maps() -> Vec<Vec<u8>> {
    let map = |data: u32, parity: u32, groups: u32| {
        let code = Code::new(data as usize, parity as usize).ok()?;
        let shard = |drive: u32, home: u32, number: u32, len: u64| Shard { drive, home, number, len, crc32c: drive.wrapping_mul(0x9e37_79b9) ^ number };
        let groups: Vec<(Vec<Shard>, Vec<Shard>)> = (0..groups)
            .map(|group| {
                let shards = data - group % data;
                let home = |drive: u32| if group % 5 == 4 { drive + 1 } else { drive };
                let longest = 1000 + u64::from(group);
                let padded = if data == 1 { longest } else { longest.next_multiple_of(64) };
                let own = (0..shards).map(|drive| shard(drive, home(drive), group, longest - u64::from(drive))).collect();
                (own, (data..data + parity).map(|drive| shard(drive, drive, group, padded)).collect())
            })
            .collect();
        CodeMap::new(code, groups.iter().map(|(data, parity)| (data.as_slice(), parity.as_slice()))).ok()
    };
    [map(4, 1, 9), map(1, 2, 5), map(8, 3, 20), map(2, 1, 0)].into_iter().flatten().map(|map| map.to_bytes()).collect()
}

/// A code map, with the checksum put right so that the parser behind it is reached: an error, or a map whose bytes read
/// back as the same, and in which every shard is found.
pub(crate) fn code_map_read(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    if bytes.len() > HEAD {
        let crc = crc32c::crc32c(&bytes[HEAD..]);
        bytes[HEAD - 4..HEAD].copy_from_slice(&crc.to_le_bytes());
    }
    let Ok(map) = CodeMap::from_bytes(&bytes) else { return false };
    for (group, members) in map.iter().enumerate() {
        assert!((1..=map.code().data()).contains(&members.data.len()) && members.parity.len() == map.code().parity());
        for (at, shard) in members.all().iter().enumerate() {
            let role = if at < members.data.len() { Role::Data } else { Role::Parity };
            let place = map.find(role, shard.home, shard.number);
            assert!(place.is_some_and(|place| (place.group as usize, place.shard as usize) == (group, at)), "{shard:?}");
        }
    }
    assert!(CodeMap::from_bytes(&map.to_bytes()).is_ok_and(|again| again == map));
    true
}

pub(crate) fn digests() -> Vec<Vec<u8>> {
    let shards: [&[u8]; 3] = [b"", &[7; 100], &[1; 5000]];
    shards.into_iter().map(|shard| Digesting::new(3).digest(shard).to_bytes()).collect()
}

/// A digest: an error, or one whose bytes are these.
pub(crate) fn digest_read(data: &[u8]) -> bool {
    let Ok(digest) = Digest::from_bytes(data) else { return false };
    assert_eq!(digest.to_bytes(), data);
    true
}
