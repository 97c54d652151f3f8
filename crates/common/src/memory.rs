//! Settings of the process's allocator.

/// The largest allocation that comes from the heap instead of a mapping of its own, in bytes;
/// glibc takes no larger value.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGEST_ON_HEAP: libc::c_int = 32 << 20;

/// How much freed memory the heap keeps, in bytes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: libc::c_int = 64 << 20;

/// Sets glibc's allocator up for buffers of some hundred kilobytes that live for milliseconds, if that is the
/// allocator. Call it before threads start.
///
/// One arena: it makes up to eight for each core otherwise, and slices that one thread reads and another lets go leave
/// memory behind in all of them, 50 to 80 MB in a query over four drives; two arenas still 25 to 30 MB. The lock of the
/// one arena is rarely waited for (measured: no difference in time) but by queries of a thousand aggregates.
///
/// Freed memory is kept: by default it goes back to the kernel as soon as the heap's end is free, to be cleared and
/// mapped page by page for the next query, which took a tenth of the time of one over 71 million nonzeros. The most
/// memory in use stays the same (measured).
pub fn tune_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt only sets parameters of the allocator; it may be called at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_ON_HEAP);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}
