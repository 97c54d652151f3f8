//! The `skytether` command. One crate, reached as a binary and through the Python wheel's entry point.
//!
//! [`main_with`] parses arguments (`args`), resolves them (`run`) and runs a command; each has a file in `commands`.
//! `serving` and `shutdown` are for the commands that serve; `output`, `listing` and `progress` write for people, and
//! `logging` writes the log.
//!
//! Invariants: results go to stdout, everything else to stderr. Exit status 0 means done, 1 that the work failed, 2
//! that the call was wrong, 130 that Ctrl-C was pressed. Commands hold no logic of their own: `skytether` does
//! the work.
//!
//! See also `skytether --help` and `docs/storage.md`.

mod args;
mod commands;
mod common_args;
mod context;
mod doors;
mod drives;
mod error_line;
mod fleet_volumes;
mod listing;
mod logging;
mod output;
mod progress;
mod prompt;
mod run;
mod serving;
mod shutdown;
mod statements;
mod stores;
mod volumes;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use skytether_common::Error;

use crate::context::Failure;
use crate::error_line::fail;
use crate::logging::Writer;
pub use crate::logging::log_to_stderr;
pub use crate::stores::{is_store, open_fleet};

/// Exit status of work that failed.
const FAILED: u8 = 1;
/// Exit status of a call that was wrong.
const WRONG_CALL: u8 = 2;

/// Planning recurses over expressions: long conditions need more than the usual 2 MiB. Address
/// space only, until it is used.
const STACK: usize = 32 << 20;

/// Runs the command line `arguments` (the first is the program's name) and returns the exit status.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    skytether_common::memory::tune_allocator();
    let cli = match args::Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are results and go to stdout; wrong calls go to stderr with status 2.
            let _ = e.print();
            return if e.use_stderr() { WRONG_CALL } else { 0 };
        }
    };
    logging::begin(Writer::of(&cli.command));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().max_blocking_threads(16).thread_stack_size(STACK).build() {
        Ok(runtime) => runtime,
        Err(e) => return fail(&Error::unavailable("cannot start threads").with_source(e), FAILED),
    };
    let done = runtime.block_on(run::run(cli.command));
    // Reads of a query without a reader must not hold up the exit.
    runtime.shutdown_background();
    match done {
        Ok(()) => 0,
        Err(Failure::Work(e)) => fail(&e, FAILED),
        Err(Failure::Call(e)) => fail(&e, WRONG_CALL),
        Err(Failure::Each(errors)) => {
            for e in &errors {
                fail(e, FAILED);
            }
            FAILED
        }
        Err(Failure::Status(status)) => status,
        Err(Failure::Stopped(line)) => {
            shutdown::print_error_line(line);
            shutdown::STOPPED
        }
    }
}

/// [`main_with`] of this process's own arguments.
#[must_use]
pub fn main() -> ExitCode {
    ExitCode::from(main_with(std::env::args_os()))
}
