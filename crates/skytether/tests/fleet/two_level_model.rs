//! Redundancy on two levels against its model: after random losses exactly the values come back that the groups allow.

use std::collections::BTreeMap;

use bytes::Bytes;
use skytether_common::Key;
use skytether_erasure::map::CodeMap;

use crate::redundancy::dir_of;
use crate::two_level::{DRIVES, had, maps, open};
use crate::util::Random;
use crate::util::{batches, ingest, name};

/// What the maps say of a value that is not there: whether it is made within its node, from other nodes, or not at all.
struct Model {
    across: CodeMap,
    within: CodeMap,
    drives: u32,
    record: skytether_host::RootRecord,
    gone: std::collections::BTreeSet<Key>,
}

impl Model {
    /// The key of a shard: its number, and that of its home; on the inner level that of parities across
    /// nodes is beyond the drives.
    fn key(&self, inner: bool, parity: bool, home: u32, number: u32) -> Key {
        let (table, home) = match (inner, parity) {
            (true, true) => ("inner-parity/data", home),
            (true, false) if home >= self.drives => ("parity/data", home - self.drives),
            (false, true) => ("parity/data", home),
            _ => ("data", home),
        };
        self.record.partition(table, home).slice_key(number).unwrap()
    }

    fn keys(&self, map: &CodeMap, inner: bool) -> Vec<(usize, Vec<Key>)> {
        let group = |members: skytether_erasure::map::Members<'_>| {
            let keys = members.all().iter().enumerate().map(|(at, shard)| self.key(inner, at >= members.data.len(), shard.home, shard.number));
            (members.data.len(), keys.collect())
        };
        map.iter().map(group).collect()
    }

    fn there(&self, key: &Key) -> bool {
        !self.gone.contains(key)
    }

    /// Which of all values are to be had.
    fn had(&self) -> BTreeMap<Key, bool> {
        let (inner, outer) = (self.keys(&self.within, true), self.keys(&self.across, false));
        let mut near: BTreeMap<&Key, bool> = BTreeMap::new();
        for (need, keys) in &inner {
            let whole = keys.iter().filter(|key| self.there(key)).count() >= *need;
            near.extend(keys.iter().map(|key| (key, self.there(key) || whole)));
        }
        let mut had: BTreeMap<Key, bool> = near.iter().map(|(key, near)| ((*key).clone(), *near)).collect();
        for (need, keys) in &outer {
            let whole = keys.iter().filter(|key| near[*key]).count() >= *need;
            keys.iter().for_each(|key| *had.get_mut(key).unwrap() |= whole);
        }
        // Parities within nodes, of data that come from elsewhere.
        for (need, keys) in &inner {
            let whole = keys.iter().enumerate().filter(|(at, key)| if at < need { had[*key] } else { self.there(key) }).count() >= *need;
            keys.iter().skip(*need).for_each(|key| *had.get_mut(key).unwrap() |= whole);
        }
        had
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_losses_recover_exactly_what_the_groups_allow() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path()).await.unwrap();
    ingest(&fleet, "lab.t", &batches(10, 1000), false).await.unwrap();
    let record = fleet.describe(&name("lab.t")).await.unwrap();
    drop(fleet);
    let (across, within, drives, _) = maps(dir.path(), "lab.t");
    let mut whole: Vec<(usize, Key, Bytes)> = Vec::new();
    for n in 0..DRIVES {
        whole.extend(had(dir.path(), n).into_iter().filter(|(key, _)| key.as_str().contains(';')).map(|(key, value)| (n, key, value)));
    }
    let mut model = Model { across, within, drives, record, gone: Default::default() };
    assert_eq!(model.had().len(), whole.len());
    let (mut made, mut lost) = (0, 0);
    for seed in 0..24u64 {
        let random = &mut Random(seed);
        // From a few to half of all.
        let share = [5, 12, 25, 50][seed as usize % 4];
        model.gone = whole.iter().filter(|_| random.below(100) < share).map(|(_, key, _)| key.clone()).collect();
        for n in 0..DRIVES {
            let drive = skytether_drive::Drive::open(&dir_of(dir.path(), n), None, Default::default()).unwrap();
            let ops = whole.iter().filter(|(own, key, _)| *own == n && model.gone.contains(key));
            let ops = ops.map(|(_, key, _)| skytether_store::Op::Delete { key: key.clone(), expect: skytether_store::Expect::Any }).collect();
            drive.store().apply(ops).unwrap();
        }
        let fleet = open(dir.path()).await.unwrap();
        let expected = model.had();
        for (n, key, value) in whole.iter().filter(|(_, key, _)| model.gone.contains(key)) {
            match fleet.host().unwrap().drives()[*n].get(key).await {
                Ok(own) => {
                    assert!(expected[key] && own == value, "seed {seed}: {key}");
                    made += 1;
                }
                Err(e) => {
                    assert!(!expected[key], "seed {seed}: {key}: {}", e.report());
                    lost += 1;
                }
            }
        }
        drop(fleet);
        for n in 0..DRIVES {
            let drive = skytether_drive::Drive::open(&dir_of(dir.path(), n), None, Default::default()).unwrap();
            let ops = whole.iter().filter(|(own, key, _)| *own == n && model.gone.contains(key));
            let ops =
                ops.map(|(_, key, value)| skytether_store::Op::Put { key: key.clone(), value: value.clone(), expect: skytether_store::Expect::Any }).collect();
            drive.store().apply(ops).unwrap();
        }
    }
    assert!(made > 100 && lost > 20, "{made} were made, {lost} were lost");
}
