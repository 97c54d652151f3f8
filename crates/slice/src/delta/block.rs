//! A block of packed values: its measures, what its values are decoded to, and what is carried to the next.

/// Values per block and per miniblock.
pub(super) const BLOCK_VALUES: usize = 128;
pub(super) const MINI: usize = 32;
pub(super) const MINIS: usize = BLOCK_VALUES / MINI;

/// What values are decoded to: `u32`, or `u16` (values that do not fit are an error).
///
/// It is one of the two: what is not two bytes long is taken to be four.
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

/// Running state between blocks; arrays are one number per lane of the vectorised code, to be combined at the end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeltaState {
    pub(super) last: u32,
    pub(super) max: [u32; 8],
    /// Deltas that are positive.
    pub(super) ascents: [u32; 8],
}

/// How far vector loads may reach beyond a miniblock.
pub(super) const SLACK: usize = 16;

pub(super) fn unzigzag(n: u64) -> i64 {
    ((n >> 1) as i64) ^ -((n & 1) as i64)
}
