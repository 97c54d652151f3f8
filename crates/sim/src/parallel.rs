//! Independent runs on all processors.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `run(0)` to `run(times - 1)` with one thread per processor, and returns their results in this order.
///
/// # Panics
/// If a run does.
pub fn parallel<T: Send>(times: usize, run: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut done: Vec<(usize, T)> = std::thread::scope(|scope| {
        let work = || {
            let mut own = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= times {
                    break own;
                }
                own.push((at, run(at)));
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, made)| made).collect()
}

/// Whether this is `make soak`, which repeats what `make test` shows in short.
#[must_use]
pub fn soak() -> bool {
    std::env::var_os("SKYTETHER_SOAK").is_some()
}
