//! Decodes blocks of small steps with AVX2, sixteen values at a time: counts, and the cell numbers of rows that are not
//! very sparse.
//!
//! Some blocks have no value further than 16 bits from their beginning. There, all but the last addition is done in
//! lanes of 16 bits, twice as many as of 32. Sixteen values of `w` bits are `2 w` bytes, and each half of them begins
//! with a whole byte. Up to 9 bits, a value and its bit offset fit two bytes. A shuffle puts these into the value's
//! lane. A multiplication drops the bits after the value (there is no shift by lane for 16 bits), and a shift drops
//! those before it.

use std::arch::x86_64::*;

use super::block::{BLOCK_VALUES, MINI, MINIS, Target};
use super::lanes::Lanes;

/// The largest width: 9 bits and an offset of 7 are 16.
const WIDEST: usize = 9;

/// Values of two bytes must begin at most here,
const LAST: u32 = 0x1fff;
/// and go at most so far from there, so that what is below zero shows in the highest bit.
const SPREAD: u32 = 0x5fff;

/// Per width: which bytes go to each lane (of both halves), and what each lane is multiplied by.
#[repr(C, align(16))]
struct UnpackShuffle {
    shuffle: [u8; 16],
    factor: [u16; 8],
}

static UNPACK_SHUFFLES: [UnpackShuffle; WIDEST + 1] = unpack_shuffles();

const fn unpack_shuffles() -> [UnpackShuffle; WIDEST + 1] {
    // Without bits there is nothing to take: every lane is zero.
    const EMPTY: UnpackShuffle = UnpackShuffle { shuffle: [0x80; 16], factor: [0; 8] };
    let mut all = [EMPTY; WIDEST + 1];
    let mut width = 1;
    while width <= WIDEST {
        let mut lane = 0;
        while lane < 8 {
            let bit = lane * width;
            all[width].shuffle[2 * lane] = (bit / 8) as u8;
            all[width].shuffle[2 * lane + 1] = (bit / 8 + 1) as u8;
            all[width].factor[lane] = 1 << (16 - width - bit % 8);
            lane += 1;
        }
        width += 1;
    }
    all
}

/// Decodes the block of 128 values to `out` if its steps are small; otherwise, nothing has happened but that `out`
/// may have been written to.
///
/// # Safety
/// The machine has AVX2; `packed` is followed by the block's bytes and [`super::block::SLACK`] more, all readable;
/// `out` has room for the block.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn block<T: Target>(packed: *const u8, widths: [u8; MINIS], min_delta: u32, lanes: &mut Lanes, out: *mut u8) -> bool {
    if widths.iter().any(|&w| usize::from(w) > WIDEST) {
        return false;
    }
    let step = (min_delta as i32).unsigned_abs();
    let spread = widths.iter().fold(BLOCK_VALUES as u32 * step.min(0xffff), |sum, w| sum + MINI as u32 * ((1u32 << w) - 1));
    let last = _mm256_cvtsi256_si32(lanes.last) as u32;
    if size_of::<T>() == 2 {
        // SAFETY: the caller's promises.
        last <= LAST && spread <= SPREAD && unsafe { values(packed, widths, min_delta, lanes, out) }
    } else {
        // If values ascend, the last is the largest, and each is one ascent.
        let small = min_delta as i32 > 0 && spread <= 0xffff && last <= i32::MAX as u32;
        if small {
            // SAFETY: the caller's promises.
            unsafe { ascending(packed, widths, min_delta, lanes, out) }
        }
        small
    }
}

/// Values of two bytes. False where one is below zero.
///
/// # Safety
/// As [`block`]; the last value and the spread are such that all values fit 15 bits and a sign.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn values(packed: *const u8, widths: [u8; MINIS], min_delta: u32, lanes: &mut Lanes, mut out: *mut u8) -> bool {
    let zero = _mm256_setzero_si256();
    let (mut most, mut ascents) = (zero, zero);
    let start = _mm256_set1_epi16(_mm256_cvtsi256_si32(lanes.last) as i16);
    // SAFETY: the caller's promises; what is stored is 32 bytes for each 16 values.
    let last = unsafe {
        sixteens(packed, widths, min_delta, start, |deltas, values| {
            ascents = _mm256_sub_epi16(ascents, _mm256_cmpgt_epi16(deltas, zero));
            most = _mm256_max_epu16(most, values);
            _mm256_storeu_si256(out.cast(), values);
            out = out.add(32);
        })
    };
    if _mm256_testz_si256(most, _mm256_set1_epi16(i16::MIN)) == 0 {
        return false;
    }
    lanes.last = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(last));
    lanes.ascents = _mm256_add_epi32(lanes.ascents, _mm256_madd_epi16(ascents, _mm256_set1_epi16(1)));
    let most = _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
    lanes.max = _mm256_max_epu32(lanes.max, _mm256_cvtepu16_epi32(most));
    true
}

/// Ascending values of four bytes.
///
/// # Safety
/// As [`block`]; every delta is positive, and all together are below 2^16.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn ascending(packed: *const u8, widths: [u8; MINIS], min_delta: u32, lanes: &mut Lanes, mut out: *mut u8) {
    let start = lanes.last;
    // SAFETY: the caller's promises; what is stored is 64 bytes for each 16 values.
    let last = unsafe {
        sixteens(packed, widths, min_delta, _mm256_setzero_si256(), |_, beyond| {
            let low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(beyond));
            let high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256::<1>(beyond));
            _mm256_storeu_si256(out.cast(), _mm256_add_epi32(start, low));
            _mm256_storeu_si256(out.add(32).cast(), _mm256_add_epi32(start, high));
            out = out.add(64);
        })
    };
    lanes.last = _mm256_add_epi32(start, _mm256_cvtepu16_epi32(_mm256_castsi256_si128(last)));
    lanes.max = _mm256_max_epu32(lanes.max, lanes.last);
    lanes.ascents = _mm256_add_epi32(lanes.ascents, _mm256_set1_epi32((BLOCK_VALUES / 8) as i32));
}

/// The block's values, 16 by 16: their deltas, and themselves counted from `last`, which all lanes have. Gives the
/// last value, in all lanes.
///
/// # Safety
/// As [`block`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn sixteens(mut packed: *const u8, widths: [u8; MINIS], min_delta: u32, mut last: __m256i, mut take: impl FnMut(__m256i, __m256i)) -> __m256i {
    let (zero, least) = (_mm256_setzero_si256(), _mm256_set1_epi16(min_delta as i16));
    // The last lane of each half, everywhere in that half.
    let totals = _mm256_set1_epi16(0x0f0e);
    for width in widths.map(usize::from) {
        let unpack = &UNPACK_SHUFFLES[width];
        // SAFETY: both arrays are 16 bytes long.
        let (shuffle, factor) = unsafe {
            (
                _mm256_broadcastsi128_si256(_mm_load_si128(unpack.shuffle.as_ptr().cast())),
                _mm256_broadcastsi128_si256(_mm_load_si128(unpack.factor.as_ptr().cast())),
            )
        };
        let shift = _mm_cvtsi32_si128(16 - width as i32);
        for group in 0..MINI / 16 {
            // SAFETY: the last 16 bytes begin at 3·w, so that they end at most 16 bytes after the miniblock's 4·w.
            let (low, high) = unsafe {
                let at = packed.add(group * 2 * width);
                (_mm_loadu_si128(at.cast()), _mm_loadu_si128(at.add(width).cast()))
            };
            let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high);
            let unpacked = _mm256_srl_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(both, shuffle), factor), shift);
            let deltas = _mm256_add_epi16(unpacked, least);
            // Sums within each half, then the lower half's total onto the upper half.
            let sums = _mm256_add_epi16(deltas, _mm256_slli_si256::<2>(deltas));
            let sums = _mm256_add_epi16(sums, _mm256_slli_si256::<4>(sums));
            let sums = _mm256_add_epi16(sums, _mm256_slli_si256::<8>(sums));
            let own = _mm256_shuffle_epi8(sums, totals);
            let other = _mm256_permute4x64_epi64::<0x4e>(own);
            let sums = _mm256_add_epi16(sums, _mm256_blend_epi32::<0xf0>(zero, other));
            take(deltas, _mm256_add_epi16(sums, last));
            // Only this addition depends on the values before.
            last = _mm256_add_epi16(last, _mm256_add_epi16(own, other));
        }
        // SAFETY: the next miniblock, or the end of the block.
        packed = unsafe { packed.add(4 * width) };
    }
    last
}
