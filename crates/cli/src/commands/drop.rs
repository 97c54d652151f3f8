//! `skytether drop`: the end of a data set.

use clap::Args;

use crate::common_args::{FleetArg, ListFormat};
use crate::context::{Failure, fleet, name, print_line};

#[derive(Debug, Args)]
pub(crate) struct Drop {
    /// The data set's name.
    #[arg(value_name = "DOMAIN.DATASET")]
    name: String,
    #[command(flatten)]
    fleet: FleetArg,
    /// How to say it.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

/// Removes the data set.
pub(crate) async fn run(args: Drop) -> Result<(), Failure> {
    let name = name(&args.name)?;
    fleet(&args.fleet).await?.drop_dataset(&name).await?;
    match args.format {
        ListFormat::Table => print_line(&format!("dropped {name}"))?,
        ListFormat::Json => print_line(&serde_json::json!({ "dropped": name.to_string() }).to_string())?,
    }
    Ok(())
}
