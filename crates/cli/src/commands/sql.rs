//! `skytether sql`: a query and its result.

use std::io::IsTerminal;

use clap::Args;
use futures::StreamExt;
use skytether_host::{Pushdown, QueryOptions};

use crate::common_args::{FleetArg, Format, pushdown};
use crate::context::{Failure, fleet};
use crate::output::Sink;

#[derive(Debug, Args)]
pub(crate) struct Sql {
    /// The query.
    query: String,
    #[command(flatten)]
    fleet: FleetArg,
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

/// Runs the query and prints its result.
pub(crate) async fn run(args: Sql) -> Result<(), Failure> {
    let fleet = fleet(&args.fleet).await?;
    let mut query = fleet.sql(&args.query, &QueryOptions { cut: args.pushdown, ..QueryOptions::default() }).await?;
    let mut sink = Sink::new(std::io::stdout(), &query.schema, args.format)?;
    while let Some(batch) = query.stream.next().await {
        sink.write(&batch?)?;
        if sink.gone {
            return Ok(());
        }
    }
    sink.finish()?;
    if args.receipt {
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        eprintln!("{}", query.receipt.receipt());
    }
    Ok(())
}
