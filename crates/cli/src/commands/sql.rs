//! `skytether sql`: queries and their results.
//!
//! The text is an argument, a file (`-f`), or what comes on standard input (`-`, or no text at all). Without a text, a
//! terminal gets a shell.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use futures::StreamExt;
use skytether::Fleet;
use skytether_common::{Error, Result};
use skytether_host::{Pushdown, Query, QueryOptions};

use crate::commands::shell;
use crate::common_args::{FleetArg, Format, pushdown};
use crate::context::{Failure, fleet};
use crate::output::Sink;
use crate::statements::split;

#[derive(Debug, Args)]
pub(crate) struct Sql {
    /// The query; `-` for standard input. Without one, a terminal gets a shell.
    #[arg(value_name = "QUERY")]
    query: Option<String>,
    /// A file with the queries, with a semicolon between them.
    #[arg(short, long, value_name = "FILE", conflicts_with = "query")]
    file: Option<PathBuf>,
    #[command(flatten)]
    fleet: FleetArg,
    #[command(flatten)]
    how: How,
}

/// How queries run, and how their results are printed.
#[derive(Debug, Args)]
pub(crate) struct How {
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// How much to send down to the drives.
    #[arg(long, alias = "cut", value_name = "POLICY", default_value = "adaptive", value_parser = pushdown())]
    pushdown: Pushdown,
    /// Say on stderr what ran where and how much moved.
    #[arg(long)]
    receipt: bool,
}

impl Sql {
    /// Whether a person on a terminal gave no query.
    pub(crate) fn is_shell(&self) -> bool {
        self.query.is_none() && self.file.is_none() && std::io::stdin().is_terminal()
    }
}

/// Runs the queries and prints their results.
pub(crate) async fn run(args: Sql) -> Result<(), Failure> {
    if args.is_shell() {
        return shell::run(fleet(&args.fleet).await?, &args.how).await;
    }
    let queries = match (&args.query, &args.file) {
        (Some(query), _) if query != "-" => vec![query.clone()],
        (_, Some(file)) if file.as_os_str() != "-" => split(&read(file)?),
        _ => split(&read_input()?),
    };
    if queries.is_empty() {
        return Err(Failure::Call(Error::invalid("there is no query in what was given")));
    }
    let fleet = fleet(&args.fleet).await?;
    let several = queries.len() > 1;
    for (at, query) in queries.iter().enumerate() {
        match answer(&fleet, query, &args.how).await {
            Ok(true) => {}
            // The reader of our output has all it wants.
            Ok(false) => return Ok(()),
            Err(e) if several => return Err(Failure::Work(e.context(format!("query {} of {}", at + 1, queries.len())))),
            Err(e) => return Err(Failure::Work(e)),
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<String> {
    let bytes = std::fs::read(file).map_err(|e| Error::io("read", file, e))?;
    text(bytes, &file.display().to_string())
}

fn read_input() -> Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).map_err(|e| Error::io("read", "standard input", e))?;
    text(bytes, "standard input")
}

fn text(bytes: Vec<u8>, from: &str) -> Result<String> {
    let text = String::from_utf8(bytes).map_err(|_| Error::invalid(format!("{from} is no text in UTF-8: save it as UTF-8")))?;
    // Editors of Windows put a mark in front.
    Ok(text.strip_prefix('\u{feff}').map(ToOwned::to_owned).unwrap_or(text))
}

/// Runs one query and prints its result. False where the reader of the output is gone.
///
/// # Errors
/// Those of the query.
pub(crate) async fn answer(fleet: &Fleet, query: &str, how: &How) -> Result<bool> {
    let query = fleet.sql(query, &QueryOptions { cut: how.pushdown, ..QueryOptions::default() }).await?;
    print(query, how.format, how.receipt).await
}

/// Runs a planned query and prints its result. False where the reader of the output is gone.
///
/// # Errors
/// Those of the query.
pub(crate) async fn print(mut query: Query, format: Format, receipt: bool) -> Result<bool> {
    let mut sink = Sink::new(std::io::stdout(), &query.schema, format)?;
    while let Some(batch) = query.stream.next().await {
        sink.write(&batch?)?;
        if sink.gone {
            return Ok(false);
        }
    }
    sink.finish()?;
    if receipt {
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        eprintln!("{}", query.receipt.receipt());
    }
    Ok(!sink.gone)
}
