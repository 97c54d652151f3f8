//! Progress of long work, on stderr when it is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A line that counts rows while a table is written. Draws nothing where stderr is no terminal.
pub(crate) struct Rows(ProgressBar);

impl Rows {
    /// Begins to count rows of `what`.
    pub(crate) fn new(what: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(what.to_string());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}: {human_pos} rows, {per_sec}, {elapsed}") {
            bar.set_style(style);
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
