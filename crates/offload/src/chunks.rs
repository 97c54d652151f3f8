//! Chunks of a whole, put together again: which elements straddle them.
//!
//! Each chunk's item has a head and a tail. Heads, tails and what the item counted are the chunk's bytes, each once:
//! elements that straddle chunks are a tail, heads of chunks without a boundary, and a head.

use crate::codes::item_flag;
use crate::result::Item;

/// An element that lies in several chunks, or at the edge of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Straddle {
    /// Its first byte in the whole.
    pub at: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The elements that straddle chunks. Each chunk, in the order of the whole, has its place there, its length, and its
/// item.
#[must_use]
pub fn straddling<'a>(chunks: impl IntoIterator<Item = (u64, u64, &'a Item)>) -> Vec<Straddle> {
    let (mut found, mut open): (Vec<Straddle>, Straddle) = (Vec::new(), Straddle { at: 0, bytes: Vec::new() });
    for (at, length, item) in chunks {
        if open.bytes.is_empty() {
            open.at = at;
        }
        open.bytes.extend_from_slice(&item.head);
        if item.has(item_flag::NO_BREAK) {
            continue;
        }
        if !open.bytes.is_empty() {
            found.push(std::mem::replace(&mut open, Straddle { at: 0, bytes: Vec::new() }));
        }
        open = Straddle { at: at.saturating_add(length).saturating_sub(item.tail.len() as u64), bytes: item.tail.to_vec() };
    }
    if !open.bytes.is_empty() {
        found.push(open);
    }
    found
}
