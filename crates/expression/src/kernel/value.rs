//! The types of a matrix's values, as the kernel reads them.

mod sealed {
    pub trait Sealed {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// The value types that matrices have.
pub trait Value: Copy + PartialOrd + sealed::Sealed {
    /// Exact.
    fn as_f64(self) -> f64;
    /// Rounded where need be, as scanpy does.
    fn as_f32(self) -> f32;
    /// The value as a count, where the type holds counts; [`usize::MAX`] elsewhere.
    fn count(self) -> usize;
    /// Whether the type holds counts.
    const COUNTS: bool;
    /// Four adjacent counts, in as few loads as possible.
    ///
    /// # Safety
    /// Four values must be readable.
    #[cfg(target_arch = "x86_64")]
    #[doc(hidden)]
    unsafe fn four_counts(from: *const Self) -> [usize; 4];
}

macro_rules! value {
    ($($t:ty, $counts:literal, $count:expr, $four:expr;)*) => {$(
        impl Value for $t {
            #[inline(always)]
            fn as_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn as_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn count(self) -> usize {
                let count: fn($t) -> usize = $count;
                count(self)
            }
            const COUNTS: bool = $counts;
            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn four_counts(from: *const Self) -> [usize; 4] {
                // SAFETY: the caller's promise.
                unsafe { $four(from) }
            }
        }
    )*};
}

value! {
    u16, true, |v| v as usize, four_u16;
    u32, true, |v| v as usize, four_u32;
    f32, false, |_| usize::MAX, no_counts;
    f64, false, |_| usize::MAX, no_counts;
}

/// Four numbers in one load: the kernel is bound by its loads, so that taking a word apart is
/// cheaper than loading its parts.
///
/// # Safety
/// Four values must be readable.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn four_u16(from: *const u16) -> [usize; 4] {
    // SAFETY: the caller's promise. This processor is little-endian.
    let word = unsafe { from.cast::<u64>().read_unaligned() };
    [word & 0xffff, word >> 16 & 0xffff, word >> 32 & 0xffff, word >> 48].map(|v| v as usize)
}

/// As [`four_u16`], in two loads.
///
/// # Safety
/// As [`four_u16`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn four_u32(from: *const u32) -> [usize; 4] {
    // SAFETY: the caller's promise. This processor is little-endian.
    let (low, high) = unsafe { (from.cast::<u64>().read_unaligned(), from.add(2).cast::<u64>().read_unaligned()) };
    [low & 0xffff_ffff, low >> 32, high & 0xffff_ffff, high >> 32].map(|v| v as usize)
}

/// Nothing: only counts are looked up.
///
/// # Safety
/// None is needed.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn no_counts<T>(_: *const T) -> [usize; 4] {
    [usize::MAX; 4]
}
