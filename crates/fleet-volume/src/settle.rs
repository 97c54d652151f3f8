//! Changes of records with an unknown outcome: a drive gave no answer, and may make them later.
//!
//! Each batch that puts extents has a condition on the *turn record* of its volume: that it is as the host read it.
//! Such a change is settled by a change of the turn record. From then on each earlier batch is refused, also one that
//! was to put a new extent, which no version of its own record would keep out. What the record says then is what became
//! of the change.
//!
//! A merge after an unknown outcome changes the turn record along. So an extent that it removes does not come back.
//! Otherwise [`FleetBacking::settle_open`] does, for callers that empty drives or delete garbage.

use std::collections::BTreeMap;

use bytes::Bytes;
use skytether_common::{Key, Kind, Result};
use skytether_store::{Expect, Op};

use crate::backing::FleetBacking;
use crate::keys;

impl FleetBacking {
    /// The turn record of the volume that has the record `key`, as a part of a batch, and whether that changes it.
    pub(crate) fn turn(&self, key: &Key) -> Result<(Op, bool)> {
        let turn = keys::turn(key)?;
        let mut open = self.catalog.health().keys_of_open_generations().into_iter();
        let settles = open.any(|open| keys::turn(&open).is_ok_and(|other| other == turn));
        let expect = Expect::Any;
        let op = if settles { Op::Put { key: turn, value: Bytes::new(), expect } } else { Op::Check { key: turn, expect } };
        Ok((op, settles))
    }

    /// Settles all changes of extents whose outcome is unknown: each was made, or never will be.
    ///
    /// # Errors
    /// Those of the drives. What could not be settled stays as it is.
    pub(crate) async fn settle_open(&self) -> Result<()> {
        let health = self.catalog.health();
        let mut turns: BTreeMap<Key, Vec<(Key, Vec<u64>)>> = BTreeMap::new();
        for key in health.keys_of_open_generations() {
            let open = health.open_generations(&key);
            turns.entry(keys::turn(&key)?).or_default().push((key, open));
        }
        for (turn, records) in turns {
            self.catalog.commit_records(vec![Op::Put { key: turn, value: Bytes::new(), expect: Expect::Any }]).await?;
            for (key, open) in records {
                // One home may have made the change, and another one not.
                match self.catalog.copy_record(&key).await {
                    // Whatever it names is no garbage, as long as it can't be read.
                    Err(error) if error.kind() != Kind::Corrupt => return Err(error),
                    _ => {}
                }
                self.forget(&key);
                health.close_generations(&key, &open);
            }
        }
        Ok(())
    }
}
