//! `skytether explain`: how a query is cut.

use clap::{Args, ValueEnum};
use skytether_host::{Pushdown, QueryOptions};

use crate::common_args::{FleetArg, pushdown};
use crate::context::{Failure, fleet, print_line};
use crate::listing;

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The query.
    query: String,
    #[command(flatten)]
    fleet: FleetArg,
    /// Run it too, and show what happened.
    #[arg(long)]
    analyze: bool,
    /// How much to send down to the drives: adaptive, full, filter or raw.
    #[arg(long, alias = "cut", value_name = "POLICY", default_value = "adaptive", value_parser = pushdown())]
    pushdown: Pushdown,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = ExplainFormat::Text)]
    format: ExplainFormat,
}

/// How an explanation is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplainFormat {
    /// For people.
    Text,
    /// As JSON.
    Json,
}

/// Prints the explanation.
pub(crate) async fn run(args: Explain) -> Result<(), Failure> {
    let options = QueryOptions { cut: args.pushdown, ..QueryOptions::default() };
    let explanation = fleet(&args.fleet).await?.explanation(&args.query, args.analyze, &options).await?;
    let text = match args.format {
        ExplainFormat::Text => explanation.to_string(),
        ExplainFormat::Json => listing::json(&explanation)?,
    };
    print_line(text.trim_end())?;
    Ok(())
}
