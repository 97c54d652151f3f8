//! Ctrl-C: prints one line on stderr about the state of the work, and exits with status 130.
//!
//! Most commands end at once, as the signal by itself would end them, and remove the file that they were writing. An
//! ingest that is writing rolls back first, and the line says so. An ingest that has sent all of its rows finishes:
//! after an interrupted commit it could not say whether the data set exists. A second Ctrl-C ends that ingest at once,
//! too.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use skytether_common::{Error, Result};

/// Exit status of a command that Ctrl-C ended, as in shells: 128 plus the signal's number.
pub(crate) const STOPPED: u8 = 130;

/// The line for an ingest that has written nothing or has rolled back.
pub(crate) const NOTHING_STORED: &str = "stopped: nothing was stored";

/// Prints `line` on stderr and ignores errors: the same Ctrl-C may have ended the reader, which must not keep this
/// program alive.
pub(crate) fn print_error_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether Ctrl-C was pressed, and how the command reacts to it.
#[derive(Debug)]
pub(crate) struct Stop {
    /// The line to print while no ingest is writing.
    says: &'static str,
    /// Whether an ingest is writing, which stops by itself.
    writes: AtomicBool,
    asked: AtomicBool,
    /// Whether the ingest has seen the request.
    told: AtomicBool,
}

impl Stop {
    /// Ctrl-C not pressed yet; `says` is the line to print when it is.
    pub(crate) fn new(says: &'static str) -> Arc<Self> {
        Arc::new(Self { says, writes: AtomicBool::new(false), asked: AtomicBool::new(false), told: AtomicBool::new(false) })
    }

    /// Starts a task that waits for Ctrl-C; it is registered when this returns.
    pub(crate) fn watch(self: &Arc<Self>) {
        let stop = Arc::clone(self);
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            // Without a handler, the signal ends the program by itself.
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

    /// Ends the program, or asks the ingest that is writing to stop.
    fn pressed(&self) {
        let line = self.last_words();
        if std::io::stderr().is_terminal() {
            // After the ^C that terminals show, or a progress line.
            print_error_line("");
        }
        print_error_line(line.unwrap_or("stopping: what was written is taken back; press Ctrl-C again to end at once"));
        if line.is_some() {
            skytether::remove_unfinished();
            std::process::exit(i32::from(STOPPED));
        }
    }

    /// The line to print before the program ends; `None` if the program goes on until the ingest has stopped.
    fn last_words(&self) -> Option<&'static str> {
        if !self.writes.load(Ordering::SeqCst) {
            return Some(self.says);
        }
        self.asked.swap(true, Ordering::SeqCst).then_some("stopped at once: `skytether ls` tells whether the data set was stored")
    }

    /// Marks that an ingest is writing: from now on [`Self::go_on`] returns the request to stop.
    pub(crate) fn begin_writing(&self) {
        self.writes.store(true, Ordering::SeqCst);
    }

    /// `next`, or an error if the ingest has to stop; the error makes the ingest roll back.
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

    /// Whether the ingest has seen the request to stop.
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
