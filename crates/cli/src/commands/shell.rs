//! The shell of `skytether sql`: answers what a person types ([`Prompt`]).

use skytether::Fleet;
use skytether_common::{Error, Result};

use crate::commands::describe;
use crate::commands::sql::{How, answer};
use crate::context::{Failure, print_line};
use crate::error_line::fail;
use crate::listing;
use crate::prompt::{Prompt, Typed};

const HELP: &str = "A query ends with a semicolon, and may have several lines.
\\d            the data sets
\\d TABLE      the columns of a table, or the tables of a data set
\\q            leave (also Ctrl-D)
Ctrl-C stops a query, or drops what was typed of one.";

/// Reads and answers queries until the end of the input.
pub(crate) async fn run(fleet: Fleet, how: &How) -> Result<(), Failure> {
    let reading = |e: rustyline::error::ReadlineError| Failure::Work(Error::unavailable("cannot read from the terminal").with_source(e));
    let mut prompt = Prompt::new().map_err(reading)?;
    eprintln!("{}: \\? shows the shell's own commands", fleet.location());
    loop {
        // The line editor waits for keys.
        match tokio::task::block_in_place(|| prompt.next()).map_err(reading)? {
            Typed::End => return Ok(()),
            Typed::Command(command) => drop(told(obey(&fleet, &command).await)),
            Typed::Queries(queries) => {
                for query in queries {
                    if !stoppable(&fleet, &query, how).await {
                        break;
                    }
                }
            }
        }
    }
}

/// Does what one of the shell's own commands says.
async fn obey(fleet: &Fleet, command: &str) -> Result<()> {
    let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    match (word, rest.trim()) {
        ("?" | "h", _) => print_line(HELP),
        ("d" | "dt", "") => print_line(listing::datasets(&fleet.list().await?).trim_end()),
        ("d", table) => print_line(describe::text(fleet, table).await?.trim_end()),
        _ => Err(Error::invalid(format!("there is no command \\{word}: \\? shows those that there are"))),
    }
}

/// Answers `query` unless Ctrl-C stops it. False where those behind it must not run.
async fn stoppable(fleet: &Fleet, query: &str, how: &How) -> bool {
    tokio::select! {
        answered = answer(fleet, query, how) => told(answered.map(drop)),
        _ = tokio::signal::ctrl_c() => {
            eprintln!("\nskytether: stopped");
            false
        }
    }
}

/// Whether there was no error; prints one.
fn told(done: Result<()>) -> bool {
    if let Err(e) = &done {
        // The shell goes on, so the status counts for nothing.
        fail(e, 0);
    }
    done.is_ok()
}
