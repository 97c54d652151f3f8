//! A bounded cache of slices that were reconstructed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use skytether_common::Key;
use tokio::sync::OnceCell;

use crate::shard::Reconstructed;

/// Bytes of decoded slices that are kept, unless an eighth of the host's memory is less.
const MOST: usize = 64 << 20;

/// Values that were decoded or are being decoded, oldest first. Readers stream through them and come back to the last
/// ones. A cache of frequently used values (quick_cache) would keep the first ones and drop the last.
#[derive(Debug, Default)]
pub(crate) struct Values {
    pub(crate) known: HashMap<Key, Arc<OnceCell<Reconstructed>>>,
    order: VecDeque<(Key, usize)>,
    bytes: usize,
}

impl Values {
    /// One of `len` bytes was made; the oldest go, until no more than `most` bytes are kept, nor [64 MiB](MOST).
    pub(crate) fn keep(&mut self, key: &Key, len: usize, most: usize) {
        self.bytes += len;
        self.order.push_back((key.clone(), len));
        while self.bytes > most.min(MOST)
            && let Some((oldest, bytes)) = self.order.pop_front()
        {
            self.bytes = self.bytes.saturating_sub(bytes);
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_cache_evicts_the_oldest_values() {
        let key = |n: usize| Key::new(format!("d/t.{n}")).unwrap();
        let mut values = Values::default();
        for n in 0..100 {
            values.known.insert(key(n), Arc::default());
            values.keep(&key(n), 10, 55);
            assert!(values.bytes <= 55 && values.known.len() == values.order.len(), "{values:?}");
        }
        let kept: Vec<usize> = (0..100).filter(|n| values.known.contains_key(&key(*n))).collect();
        assert_eq!(kept, [95, 96, 97, 98, 99]);
        // One that is larger than all the room is used, and not kept.
        values.known.insert(key(100), Arc::default());
        values.keep(&key(100), 60, 55);
        assert!(values.known.is_empty() && values.bytes == 0, "{values:?}");
    }
}
