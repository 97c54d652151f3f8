//! A backend in memory, for tests and models. It can lose its power.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{RwLock, RwLockReadGuard};
use skytether_common::Result;

use crate::backend::{Backend, Entries, Erased, Space, Step, View};

type Map = BTreeMap<Bytes, Bytes>;

#[derive(Debug, Clone, Default)]
struct Maps {
    records: Map,
    values: Map,
}

impl Maps {
    fn of(&self, space: Space) -> &Map {
        match space {
            Space::Records => &self.records,
            Space::Values => &self.values,
        }
    }

    fn apply(&mut self, step: &Step) -> (Space, Bytes, Option<Bytes>) {
        let (space, key, value) = match step {
            Step::Put(space, key, value) => (*space, key, Some(value)),
            Step::Remove(space, key) => (*space, key, None),
        };
        let map = match space {
            Space::Records => &mut self.records,
            Space::Values => &mut self.values,
        };
        let before = match value {
            Some(value) => map.insert(key.clone(), value.clone()),
            None => map.remove(key),
        };
        (space, key.clone(), before)
    }
}

#[derive(Debug, Default)]
struct Content {
    maps: Maps,
    /// For each commit that is not durable, what undoes it; `None` where the power is never cut.
    undo: Option<Vec<Vec<(Space, Bytes, Option<Bytes>)>>>,
}

/// The maps. Clones share them, so that a store can be opened again over what another one left.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<RwLock<Content>>);

impl Memory {
    /// An empty backend whose power can be cut: it remembers what is not durable yet.
    #[must_use]
    pub fn with_power() -> Self {
        Self(Arc::new(RwLock::new(Content { maps: Maps::default(), undo: Some(Vec::new()) })))
    }

    /// How many commits are not durable.
    #[must_use]
    pub fn volatile(&self) -> usize {
        self.0.read().undo.as_ref().map_or(0, Vec::len)
    }

    /// Cuts the power: of the commits that are not durable, the first `kept` remain.
    pub fn lose_power(&self, kept: usize) {
        let mut content = self.0.write();
        let Content { maps, undo } = &mut *content;
        let Some(undo) = undo else { return };
        while undo.len() > kept {
            for (space, key, before) in undo.pop().unwrap_or_default().into_iter().rev() {
                maps.apply(&match before {
                    Some(value) => Step::Put(space, key, value),
                    None => Step::Remove(space, key),
                });
            }
        }
        undo.clear();
    }

    /// How many entries a space has, for tests of what remains.
    #[must_use]
    pub fn entries(&self, space: Space) -> usize {
        self.0.read().maps.of(space).len()
    }
}

struct Reading<'a>(RwLockReadGuard<'a, Content>);

impl View for Reading<'_> {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.0.maps.of(space).get(key).cloned())
    }

    fn range<'a>(&'a self, from: Bound<&[u8]>, to: Bound<&[u8]>, reverse: bool) -> Entries<'a> {
        let found = self.0.maps.records.range::<[u8], _>((from, to)).map(|(key, value)| Ok((key.clone(), value.clone())));
        if reverse { Box::new(found.rev()) } else { Box::new(found) }
    }
}

impl Backend for Memory {
    fn view(&self) -> Result<Box<dyn View + '_>> {
        Ok(Box::new(Reading(self.0.read())))
    }

    fn commit(&self, steps: Vec<Step>, _commit: u64, sync: bool) -> Result<()> {
        let mut content = self.0.write();
        let Content { maps, undo } = &mut *content;
        let before: Vec<_> = steps.iter().map(|step| maps.apply(step)).collect();
        if let Some(undo) = undo {
            undo.push(before);
            if sync {
                undo.clear();
            }
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn sync(&self, _commit: u64) -> Result<()> {
        if let Some(undo) = &mut self.0.write().undo {
            undo.clear();
        }
        Ok(())
    }

    fn throttle(&self) -> Result<()> {
        Ok(())
    }

    fn room(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn erase(&self, _secure: bool) -> Erased {
        let mut content = self.0.write();
        content.maps = Maps::default();
        if let Some(undo) = &mut content.undo {
            undo.clear();
        }
        Erased::Done
    }

    fn stored_bytes(&self) -> Result<u64> {
        let content = self.0.read();
        let of = |map: &Map| map.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>();
        Ok(of(&content.maps.records) + of(&content.maps.values))
    }
}
