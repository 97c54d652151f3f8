//! Progress of long work, on stderr when it is a terminal.

use std::fmt;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use skytether::Progress;
use skytether_common::units::human_count;

/// A line that counts rows while a table is written. Draws nothing where stderr is no terminal.
pub(crate) struct Rows(ProgressBar);

impl Rows {
    /// Begins to count rows of `what`, `total` in all where that is known.
    pub(crate) fn new(what: &str, total: Option<u64>) -> Self {
        // Of nothing there are no shares.
        let total = total.filter(|total| *total > 0);
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new).with_message(what.to_string());
        let template = match total {
            Some(_) => "{msg} [{bar:24}] {percent:>3}% of {human_len} rows  {rate}  {eta} left",
            None => "{spinner} {msg}: {human_pos} rows, {rate}, {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            let style = style.with_key("rate", |state: &ProgressState, text: &mut dyn fmt::Write| {
                let _ = text.write_str(&rate(state.per_sec()));
            });
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

/// A rate as text: with one decimal below 100, whole above.
fn rate(per_second: f64) -> String {
    if per_second < 100.0 { format!("{per_second:.1}/s") } else { format!("{}/s", human_count(per_second.round() as u64)) }
}

/// A line that shows how many bytes are done. Draws nothing where stderr is no terminal.
pub(crate) struct Bytes(ProgressBar);

impl Bytes {
    /// Begins; `what` is said before it.
    pub(crate) fn new(what: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    /// So far it is.
    pub(crate) fn told(&self, progress: &Progress) {
        show(&self.0, progress.done, progress.total);
        self.0.set_message(progress.what.clone());
    }

    /// A callback for the bytes done and the total.
    pub(crate) fn counter(&self) -> impl FnMut(u64, u64) -> skytether_common::Result<()> + Send + use<> {
        let bar = self.0.clone();
        move |done, total| {
            show(&bar, done, total);
            Ok(())
        }
    }

    /// Takes the line away.
    pub(crate) fn finish(self) {
        self.0.finish_and_clear();
    }
}

/// Shows `done` of `total` bytes. While the total is 0 it is not known yet, and there is no share to show.
fn show(bar: &ProgressBar, done: u64, total: u64) {
    if total == 0 {
        return;
    }
    if bar.length().is_none()
        && let Ok(style) = ProgressStyle::with_template("{msg} [{bar:24}] {percent:>3}% of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left")
    {
        bar.set_style(style.progress_chars("#."));
    }
    bar.set_length(total);
    bar.set_position(done);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_whole_but_for_a_few() {
        assert_eq!([0.0, 2.34, 99.9, 100.4, 10_073_960.280_9].map(rate), ["0.0/s", "2.3/s", "99.9/s", "100/s", "10,073,960/s"]);
    }

    #[test]
    fn nothing_is_no_share_of_nothing() {
        let bytes = Bytes::new("moving");
        show(&bytes.0, 0, 0);
        assert_eq!(bytes.0.length(), None);
        show(&bytes.0, 5, 10);
        assert_eq!((bytes.0.length(), bytes.0.position()), (Some(10), 5));
    }
}
