//! The portable decoder: the reference for the vectorised code, and the fallback where AVX2 is missing.

use super::block::{DeltaState, MINI, MINIS, Target};

/// Value `i` of a miniblock of `width` bits (0 to 32). `packed` holds the miniblock and at least 8 bytes after it.
#[inline(always)]
pub(super) fn unpack(packed: &[u8], width: usize, i: usize) -> u32 {
    let bit = i * width;
    let at = bit / 8;
    let mut word = [0u8; 8];
    word.copy_from_slice(&packed[at..at + 8]);
    let mask = (1u64 << width) - 1;
    ((u64::from_le_bytes(word) >> (bit % 8)) & mask) as u32
}

/// The next value, from its packed delta.
#[inline(always)]
fn step(packed: u32, min_delta: u32, state: &mut DeltaState) -> u32 {
    let delta = packed.wrapping_add(min_delta);
    state.ascents[0] += u32::from(delta as i32 > 0);
    state.last = state.last.wrapping_add(delta);
    state.max[0] = state.max[0].max(state.last);
    state.last
}

/// The first `n` values of a block; `packed` as for [`unpack`].
#[inline(always)]
pub(super) fn some<T: Target>(packed: &[u8], widths: [u8; MINIS], n: usize, min_delta: u32, state: &mut DeltaState, out: &mut Vec<T>) {
    let mut at = 0;
    for (m, width) in widths.into_iter().enumerate() {
        let width = usize::from(width);
        for i in 0..MINI.min(n.saturating_sub(m * MINI)) {
            out.push(T::from_u32(step(unpack(&packed[at..], width, i), min_delta, state)));
        }
        at += width * MINI / 8;
    }
}
