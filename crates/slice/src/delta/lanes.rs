//! The decoder's state in AVX2 registers.

use std::arch::x86_64::*;

use super::block::DeltaState;

/// The state that one group of eight values passes to the next, in registers.
pub(super) struct Lanes {
    /// The last value, in all lanes.
    pub(super) last: __m256i,
    pub(super) max: __m256i,
    /// Number of positive deltas.
    pub(super) ascents: __m256i,
    /// The block's least delta, in all lanes.
    pub(super) min_delta: __m256i,
}

impl Lanes {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn load(state: &DeltaState) -> Self {
        // SAFETY: the arrays are 32 bytes long.
        let (max, ascents) = unsafe { (_mm256_loadu_si256(state.max.as_ptr().cast()), _mm256_loadu_si256(state.ascents.as_ptr().cast())) };
        Self { last: _mm256_set1_epi32(state.last as i32), max, ascents, min_delta: _mm256_setzero_si256() }
    }

    /// Eight values from their packed deltas.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn step(&mut self, packed: __m256i) -> __m256i {
        let delta = _mm256_add_epi32(packed, self.min_delta);
        self.ascents = _mm256_sub_epi32(self.ascents, _mm256_cmpgt_epi32(delta, _mm256_setzero_si256()));
        // Prefix sums within each half, then the total of the lower half added to the upper half.
        let sums = _mm256_add_epi32(delta, _mm256_slli_si256::<4>(delta));
        let sums = _mm256_add_epi32(sums, _mm256_slli_si256::<8>(sums));
        let low_total = _mm256_permutevar8x32_epi32(sums, _mm256_set1_epi32(3));
        let sums = _mm256_add_epi32(sums, _mm256_blend_epi32::<0xf0>(_mm256_setzero_si256(), low_total));
        let values = _mm256_add_epi32(sums, self.last);
        // Only this addition depends on the previous group.
        self.last = _mm256_add_epi32(self.last, _mm256_permutevar8x32_epi32(sums, _mm256_set1_epi32(7)));
        self.max = _mm256_max_epu32(self.max, values);
        values
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn store(&self, state: &mut DeltaState) {
        // SAFETY: the arrays are 32 bytes long.
        unsafe {
            _mm256_storeu_si256(state.max.as_mut_ptr().cast(), self.max);
            _mm256_storeu_si256(state.ascents.as_mut_ptr().cast(), self.ascents);
        }
        state.last = _mm256_cvtsi256_si32(self.last) as u32;
    }
}
