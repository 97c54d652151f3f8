//! Decodes blocks with AVX2.
//!
//! Eight values of `w` bits are exactly `w` bytes. Up to 25 bits, each value and its bit offset fit four bytes. The
//! lower four values are loaded with the 16 bytes at the group's start, the upper four with those at `w / 2` (4·w bits
//! on). A shuffle puts each value's four bytes into its lane; a variable shift drops the bits before it, and a mask
//! those after it. Wider values, which real data never has, are unpacked one by one. Then the least delta is added, a
//! prefix sum is made within the register, and the sum of earlier values is added.

use std::arch::x86_64::*;

use super::block::{BLOCK_VALUES, DeltaState, MINI, MINIS, SLACK, Target, unzigzag};
use super::lanes::Lanes;
use super::{narrow, scalar};

/// The largest width that the shuffle can take: 25 bits and an offset of 7 are 32.
const SHUFFLED: usize = 25;

/// Per width: which bytes go to each lane, how far each lane is shifted, and which bits remain.
#[repr(C, align(32))]
struct UnpackShuffle {
    shuffle: [u8; 32],
    shift: [u32; 8],
    mask: u32,
}

static UNPACK_SHUFFLES: [UnpackShuffle; SHUFFLED + 1] = unpack_shuffles();

const fn unpack_shuffles() -> [UnpackShuffle; SHUFFLED + 1] {
    const EMPTY: UnpackShuffle = UnpackShuffle { shuffle: [0; 32], shift: [0; 8], mask: 0 };
    let mut all = [EMPTY; SHUFFLED + 1];
    let mut width = 0;
    while width <= SHUFFLED {
        let mut lane = 0;
        while lane < 8 {
            // The upper half is loaded from the byte in which its first value begins.
            let bit = if lane < 4 { lane * width } else { (4 * width) % 8 + (lane - 4) * width };
            let mut byte = 0;
            while byte < 4 {
                all[width].shuffle[lane * 4 + byte] = (bit / 8 + byte) as u8;
                byte += 1;
            }
            all[width].shift[lane] = (bit % 8) as u32;
            lane += 1;
        }
        all[width].mask = (1u32 << width) - 1;
        width += 1;
    }
    all
}

/// The 32 packed deltas of a miniblock, eight by eight, each register handed to `take` with its number.
///
/// # Safety
/// `packed` is followed by the miniblock's `4 * width` bytes and [`SLACK`] more, all readable; `width` is at most 32.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn groups(packed: *const u8, width: usize, mut take: impl FnMut(usize, __m256i)) {
    if width > SHUFFLED {
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(packed, 4 * width + SLACK) };
        for group in 0..MINI / 8 {
            let mut eight = [0u32; 8];
            for (i, slot) in eight.iter_mut().enumerate() {
                *slot = scalar::unpack(bytes, width, group * 8 + i);
            }
            // SAFETY: the array is 32 bytes long.
            take(group, unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) });
        }
        return;
    }
    let unpack = &UNPACK_SHUFFLES[width];
    // SAFETY: both arrays are 32 bytes long.
    let (shuffle, shift) = unsafe { (_mm256_loadu_si256(unpack.shuffle.as_ptr().cast()), _mm256_loadu_si256(unpack.shift.as_ptr().cast())) };
    let mask = _mm256_set1_epi32(unpack.mask as i32);
    for group in 0..MINI / 8 {
        // SAFETY: the last group begins at 3·w, its upper half at most w / 2 <= 12 bytes on: 16 bytes from there end at
        // most 16 bytes after the miniblock's 4·w.
        let (low, high) = unsafe {
            let at = packed.add(group * width);
            (_mm_loadu_si128(at.cast()), _mm_loadu_si128(at.add(width / 2).cast()))
        };
        let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
        let lanes = _mm256_shuffle_epi8(both, shuffle);
        take(group, _mm256_and_si256(_mm256_srlv_epi32(lanes, shift), mask));
    }
}

/// Decodes up to `count` blocks in a row, as long as they are valid and well within the page; returns their number. The
/// caller decodes the page's last bytes and any invalid block one by one, and finds values too large for `T` in
/// `state.max`.
///
/// # Safety
/// The machine has AVX2; `out` has room for `count` times 128 values.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn blocks<T: Target>(page: &[u8], at: &mut usize, count: usize, state: &mut DeltaState, out: *mut T) -> usize {
    const { assert!(size_of::<T>() == 2 || size_of::<T>() == 4) };
    let mut lanes = Lanes::load(state);
    let mut out = out.cast::<u8>();
    let mut done = 0;
    while done < count {
        let Some((min_delta, widths, body, len)) = head(page, *at) else { break };
        // SAFETY: `head` has found the block's bytes and `SLACK` more, and widths of at most 32; the caller's promise.
        unsafe {
            let packed = page.as_ptr().add(body);
            if !narrow::block::<T>(packed, widths, min_delta, &mut lanes, out) {
                block::<T>(packed, widths, min_delta, &mut lanes, out);
            }
            out = out.add(BLOCK_VALUES * size_of::<T>());
        }
        *at = body + len;
        done += 1;
    }
    lanes.store(state);
    done
}

/// Decodes one block of any steps.
///
/// # Safety
/// As [`blocks`]; `packed` is followed by the block's bytes and [`SLACK`] more, all readable; widths are at most 32.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn block<T: Target>(mut packed: *const u8, widths: [u8; MINIS], min_delta: u32, lanes: &mut Lanes, mut out: *mut u8) {
    lanes.min_delta = _mm256_set1_epi32(min_delta as i32);
    for width in widths.map(usize::from) {
        let store = |group: usize, eight: __m256i| {
            let values = lanes.step(eight);
            // SAFETY: the caller's promise; group numbers are below four.
            unsafe {
                if size_of::<T>() == 2 {
                    let narrow = _mm_packus_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256::<1>(values));
                    _mm_storeu_si128(out.add(group * 16).cast(), narrow);
                } else {
                    _mm256_storeu_si256(out.add(group * 32).cast(), values);
                }
            }
        };
        // SAFETY: the caller's promises.
        unsafe {
            groups(packed, width, store);
            packed = packed.add(4 * width);
            out = out.add(MINI * size_of::<T>());
        }
    }
}

/// The head of the block at `at`: least delta, widths, where its packed bytes begin and how many they are. `None` where
/// the least delta has more than five bytes, a width is above 32, or fewer than [`SLACK`] bytes follow.
#[inline(always)]
fn head(page: &[u8], mut at: usize) -> Option<(u32, [u8; MINIS], usize, usize)> {
    let mut number = 0u64;
    let mut shift = 0;
    loop {
        let byte = *page.get(at)?;
        at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            break;
        }
        if shift == 35 {
            return None;
        }
    }
    let widths: [u8; MINIS] = page.get(at..at + MINIS)?.try_into().ok()?;
    if widths.iter().any(|&w| w > 32) {
        return None;
    }
    let (body, len) = (at + MINIS, widths.iter().map(|&w| usize::from(w) * MINI / 8).sum::<usize>());
    (page.len() - body >= len + SLACK).then_some((unzigzag(number) as u32, widths, body, len))
}
