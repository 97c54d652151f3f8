//! How the process's allocator behaves.

/// Keeps glibc's allocator to one arena, if that is the allocator. It makes up to eight for each core otherwise, and slices that one thread reads and another
/// lets go leave memory behind in all of them: 50 to 80 MB in a query over four drives. What is large and short-lived is recycled anyway, so the lock of
/// the one arena is rarely waited for (measured: no difference in time). Call it before threads start.
pub fn few_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt only sets a parameter of the allocator; it may be called at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
