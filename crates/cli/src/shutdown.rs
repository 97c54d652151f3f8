//! Ctrl-C: one line on stderr that says what became of the work, and exit status 130.
//!
//! Most commands end at once, as the signal by itself would end them; a file that was being written is removed. An ingest that writes takes back what it wrote first, which the line can say then; one that has all of its rows
//! on their way ends as if nothing had happened, since nobody could say whether a commit that was cut off is there. A second Ctrl-C ends that, too, at once.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use skytether_common::{Error, Result};

/// Exit status of a command that Ctrl-C ended, as shells have it: 128 and the signal's number.
pub(crate) const STOPPED: u8 = 130;

/// What is said of an ingest that has written nothing, or has taken it back.
pub(crate) const NOTHING_STORED: &str = "stopped: nothing was stored";

/// `line` on stderr, if anybody reads that still: whoever did may have been ended by the same Ctrl-C, which must not keep this program alive.
pub(crate) fn print_error_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether somebody pressed Ctrl-C, and what is to come of it.
#[derive(Debug)]
pub(crate) struct Stop {
    /// What is said as long as nothing is written.
    says: &'static str,
    /// Whether an ingest writes, which stops by itself.
    writes: AtomicBool,
    asked: AtomicBool,
    /// Whether the ingest was told.
    told: AtomicBool,
}

impl Stop {
    /// Nobody has pressed it; where somebody does, `says` is said.
    pub(crate) fn new(says: &'static str) -> Arc<Self> {
        Arc::new(Self { says, writes: AtomicBool::new(false), asked: AtomicBool::new(false), told: AtomicBool::new(false) })
    }

    /// Waits for Ctrl-C on a task of its own, from when this returns.
    pub(crate) fn watch(self: &Arc<Self>) {
        let stop = Arc::clone(self);
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            // Where it can't be had, the signal ends the program by itself.
            if let Ok(mut pressed) = signal(SignalKind::interrupt()) {
                tokio::spawn(async move {
                    while pressed.recv().await.is_some() {
                        stop.pressed();
                    }
                });
            }
        }
        #[cfg(not(unix))]
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                stop.pressed();
            }
        });
    }

    /// Ends the program, unless an ingest writes, which is asked to.
    fn pressed(&self) {
        let line = self.last_words();
        if std::io::stderr().is_terminal() {
            // Behind the ^C that terminals show, or a line of progress.
            print_error_line("");
        }
        print_error_line(line.unwrap_or("stopping: what was written is taken back; press Ctrl-C again to end at once"));
        if line.is_some() {
            skytether_fleet::remove_unfinished();
            std::process::exit(i32::from(STOPPED));
        }
    }

    /// What to say before the program ends; nothing where it is to go on until the ingest has ended.
    fn last_words(&self) -> Option<&'static str> {
        if !self.writes.load(Ordering::SeqCst) {
            return Some(self.says);
        }
        self.asked.swap(true, Ordering::SeqCst).then_some("stopped at once: `skytether ls` tells whether the data set was stored")
    }

    /// From now on an ingest writes: [`Self::go_on`] tells it that it is to stop.
    pub(crate) fn begin_writing(&self) {
        self.writes.store(true, Ordering::SeqCst);
    }

    /// `next`, unless the ingest is to stop: the error in its place has it take back what it wrote.
    ///
    /// # Errors
    /// Unavailable after Ctrl-C.
    pub(crate) fn go_on<T>(&self, next: Result<T>) -> Result<T> {
        if self.asked.load(Ordering::SeqCst) {
            self.told.store(true, Ordering::SeqCst);
            return Err(Error::unavailable("Ctrl-C was pressed"));
        }
        next
    }

    /// Whether the ingest was told to stop.
    pub(crate) fn was_told(&self) -> bool {
        self.told.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ingest_stops_by_itself_and_everything_else_at_once() {
        let query = Stop::new("stopped");
        assert_eq!(query.last_words(), Some("stopped"));
        let ingest = Stop::new(NOTHING_STORED);
        assert_eq!(ingest.last_words(), Some(NOTHING_STORED), "it has not begun");
        let ingest = Stop::new(NOTHING_STORED);
        ingest.begin_writing();
        assert!(ingest.go_on(Ok(1)).is_ok() && !ingest.was_told());
        assert_eq!(ingest.last_words(), None);
        assert!(!ingest.was_told(), "it may have all of its rows");
        assert!(ingest.go_on(Ok(2)).is_err() && ingest.was_told());
        assert!(ingest.last_words().is_some_and(|line| line.contains("skytether ls")), "the second one ends it");
    }
}
