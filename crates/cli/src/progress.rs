//! Progress of long work, on stderr when it is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use skytether_fleet::Progress;

/// A line that counts rows while a table is written. Draws nothing where stderr is no terminal.
pub(crate) struct Rows(ProgressBar);

impl Rows {
    /// Begins to count rows of `what`, `total` in all where that is known.
    pub(crate) fn new(what: &str, total: Option<u64>) -> Self {
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new).with_message(what.to_string());
        let template = match total {
            Some(_) => "{msg} [{bar:24}] {percent:>3}% of {human_len} rows  {per_sec}  {eta} left",
            None => "{spinner} {msg}: {human_pos} rows, {per_sec}, {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            // As the bars of `msgx` look.
            bar.set_style(style.progress_chars("#."));
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    /// A handle that other threads may count with.
    pub(crate) fn counter(&self) -> impl Fn(usize) + Send + use<> {
        let bar = self.0.clone();
        move |rows| bar.inc(rows as u64)
    }

    /// Takes the line away.
    pub(crate) fn finish(self) {
        self.0.finish_and_clear();
    }
}

/// A line that shows how many bytes are done. Draws nothing where stderr is no terminal.
pub(crate) struct Bytes(ProgressBar);

impl Bytes {
    /// Begins; `what` is said before it.
    pub(crate) fn new(what: &str) -> Self {
        let bar = ProgressBar::new(0).with_message(what.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:24}] {percent:>3}% of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left") {
            bar.set_style(style.progress_chars("#."));
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    /// So far it is.
    pub(crate) fn told(&self, progress: &Progress) {
        self.0.set_length(progress.total);
        self.0.set_position(progress.done);
        self.0.set_message(progress.what.clone());
    }

    /// What is to be told how many bytes are done, and of how many.
    pub(crate) fn counter(&self) -> impl FnMut(u64, u64) -> skytether_common::Result<()> + Send + use<> {
        let bar = self.0.clone();
        move |done, total| {
            bar.set_length(total);
            bar.set_position(done);
            Ok(())
        }
    }

    /// Takes the line away.
    pub(crate) fn finish(self) {
        self.0.finish_and_clear();
    }
}

/// A line that shows which of some steps is under way. Draws nothing where stderr is no terminal.
pub(crate) struct Steps(ProgressBar);

impl Steps {
    /// Begins `total` steps.
    pub(crate) fn new(total: u64) -> Self {
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template("[{bar:24}] {pos} of {len} done, {msg}  {elapsed}") {
            bar.set_style(style.progress_chars("#."));
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    /// `what` begins; what was before it is done.
    pub(crate) fn begin(&self, what: &'static str) {
        if !self.0.message().is_empty() {
            self.0.inc(1);
        }
        self.0.set_message(what);
    }

    /// Takes the line away.
    pub(crate) fn finish(self) {
        self.0.finish_and_clear();
    }
}
