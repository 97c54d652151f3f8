//! Work on several threads.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::{Error, Result};

/// Does `work` to all `items`, on up to `threads` threads with the calling one among them; results in the items' order.
/// After an error nothing more is begun.
///
/// # Errors
/// The error of the first item that has one, among those that were begun; internal, naming the work as
/// `doing`, where a thread stopped.
pub fn in_parallel<I: Send, O: Send>(threads: usize, items: Vec<I>, doing: &str, work: impl Fn(I) -> Result<O> + Sync) -> Result<Vec<O>> {
    if threads <= 1 || items.len() <= 1 {
        return items.into_iter().map(work).collect();
    }
    let count = items.len();
    let (queue, failed) = (Mutex::new(items.into_iter().enumerate()), AtomicBool::new(false));
    let next = || if failed.load(Ordering::Relaxed) { None } else { queue.lock().next() };
    let run = || {
        let mut done = Vec::new();
        while let Some((at, item)) = next() {
            let result = work(item);
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.push((at, result));
        }
        done
    };
    let mut done = std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads.min(count)).map(|_| scope.spawn(run)).collect();
        let mut done = run();
        for helper in helpers {
            done.extend(helper.join().map_err(|_| Error::internal(format!("a thread that {doing} stopped")))?);
        }
        Ok::<_, Error>(done)
    })?;
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn results_come_in_order_on_any_number_of_threads() {
        for threads in [0, 1, 2, 7, 100] {
            let squares = in_parallel(threads, (0..50u64).collect(), "squares numbers", |n| Ok(n * n)).unwrap();
            assert_eq!(squares, (0..50).map(|n| n * n).collect::<Vec<_>>());
            assert_eq!(in_parallel(threads, Vec::<u8>::new(), "does nothing", Ok).unwrap(), Vec::<u8>::new());
        }
    }

    #[test]
    fn the_first_error_counts_and_ends_the_work() {
        for threads in [1, 4] {
            let begun = AtomicUsize::new(0);
            let done = in_parallel(threads, (0..100_000u32).collect(), "fails", |n| {
                begun.fetch_add(1, Ordering::Relaxed);
                if n < 5 { Ok(n) } else { Err(Error::invalid(format!("number {n}"))) }
            });
            assert_eq!(done.unwrap_err().to_string(), "number 5");
            assert!(begun.into_inner() < 100_000);
        }
    }
}
