//! The log on stderr: for servers with time and module, for commands as their other lines.

use std::ffi::OsStr;
use std::fmt;
use std::io::IsTerminal;

use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer as Out;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::args::Command;

/// The variable with the log's filter.
const VARIABLE: &str = "SKYTETHER_LOG";

/// The writer of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    /// Runs until it is stopped: each line has its time. It also logs drives that are back.
    Server,
    /// Runs once, for a person.
    Command,
    /// A command that shows which drives are lost. The log would repeat it.
    ShowsDrives,
}

impl Writer {
    pub(crate) fn of(command: &Command) -> Self {
        match command {
            Command::Drive(_) | Command::Host(_) => Self::Server,
            Command::Status(_) | Command::Ls(_) => Self::ShowsDrives,
            _ => Self::Command,
        }
    }

    /// What is logged unless the variable says otherwise.
    fn filter(self) -> &'static str {
        match self {
            Self::Server => "warn,skytether::drives=info",
            Self::Command => "warn",
            Self::ShowsDrives => "warn,skytether::lost=off",
        }
    }
}

/// Logs to stderr as servers do, with time and module: warnings, or what the variable `SKYTETHER_LOG` says. `info` and
/// `debug` log more; `skytether::moves=trace` logs the decisions of adaptive execution.
pub fn log_to_stderr() {
    begin(Writer::Server);
}

/// As [`log_to_stderr`], for `writer`. With the variable, the lines of all writers have time and module.
pub(crate) fn begin(writer: Writer) {
    let asked = EnvFilter::try_from_env(VARIABLE).ok();
    let plain = asked.is_none() && writer != Writer::Server;
    let colours = coloured(std::io::stderr().is_terminal(), std::env::var_os("NO_COLOR").as_deref());
    let log = tracing_subscriber::fmt().with_env_filter(asked.unwrap_or_else(|| EnvFilter::new(writer.filter()))).with_writer(std::io::stderr);
    // A second call in one process (tests, Python) finds the subscriber already there.
    let _ = if plain { log.with_ansi(false).event_format(Line).try_init() } else { log.with_ansi(colours).compact().try_init() };
}

/// Whether what is logged is coloured: on a terminal, unless `NO_COLOR` says something (<https://no-color.org>).
fn coloured(terminal: bool, no_color: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty)
}

/// An event in a line that begins as the errors of a command do.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Out<'_>, event: &Event<'_>) -> fmt::Result {
        out.write_str("skytether: ")?;
        context.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_gets_colours() {
        assert!(coloured(true, None) && coloured(true, Some(OsStr::new(""))));
        assert!(!coloured(true, Some(OsStr::new("1"))) && !coloured(false, None));
    }

    #[test]
    fn each_writer_has_a_filter_that_is_read() {
        for writer in [Writer::Server, Writer::Command, Writer::ShowsDrives] {
            assert!(writer.filter().parse::<EnvFilter>().is_ok(), "{writer:?}");
        }
    }
}
