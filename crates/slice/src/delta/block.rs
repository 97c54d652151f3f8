//! Blocks of delta-packed values: sizes, target types and the state that one block passes to the next.

/// Values per block and per miniblock.
pub(super) const BLOCK_VALUES: usize = 128;
pub(super) const MINI: usize = 32;
pub(super) const MINIS: usize = BLOCK_VALUES / MINI;

/// The type to which values are decoded: `u32`, or `u16` (a value that does not fit is an error).
///
/// Unsafe code relies on there being only these two: it takes a type that is not two bytes long for a `u32`.
pub(crate) trait Target: Copy + 'static {
    /// The largest value that fits.
    const MAX: u32;
    fn from_u32(value: u32) -> Self;
    fn to_u32(self) -> u32;
}

impl Target for u32 {
    const MAX: u32 = u32::MAX;
    #[inline(always)]
    fn from_u32(value: u32) -> Self {
        value
    }
    #[inline(always)]
    fn to_u32(self) -> u32 {
        self
    }
}

impl Target for u16 {
    const MAX: u32 = 0xffff;
    #[inline(always)]
    fn from_u32(value: u32) -> Self {
        value as u16
    }
    #[inline(always)]
    fn to_u32(self) -> u32 {
        u32::from(self)
    }
}

/// The state that one block passes to the next. Arrays have one number per lane of the vectorised code, combined at the
/// end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeltaState {
    pub(super) last: u32,
    pub(super) max: [u32; 8],
    /// Number of positive deltas.
    pub(super) ascents: [u32; 8],
}

/// Bytes that a vector load may read beyond a miniblock.
pub(super) const SLACK: usize = 16;

pub(super) fn unzigzag(n: u64) -> i64 {
    ((n >> 1) as i64) ^ -((n & 1) as i64)
}
