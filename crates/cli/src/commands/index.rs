//! `skytether index create|list|drop`.

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use skytether::{IndexInfo, ListIndexes, NewIndex, OldIndex};
use skytether_common::{DatasetName, Error};

use crate::common_args::{FleetArg, ListFormat};
use crate::context::{Failure, fleet, name, print_line};
use crate::listing;

#[derive(Debug, Subcommand)]
pub(crate) enum Index {
    /// Have the drives build an index of a table, in the background.
    Create(Create),
    /// List the indexes and their progress.
    #[command(visible_alias = "ls")]
    List(List),
    /// Remove an index.
    Drop(Drop),
}

#[derive(Debug, Args)]
#[command(
    after_help = "An index finds the rows that a query wants by ranges of its columns, several at once; each drive builds it over its own rows, a quarter of its time while it is asked for other things. Queries use it when that saves time, as far as it is built, \
and answer the same as without; `--receipt` says whether they did. It takes 4 to 12 bytes per row and column; with --include also the values of these columns, and then queries for no others read no slice for the rows that it finds. \
When the data set is replaced, or a drive repaired, it is built again. A drive that runs out of space drops it, which `index list` tells.\n\n\
A fleet in a directory has drives only while a command has it open: there the command waits until the index is built.\n\n\
Example:\n  skytether index create physics.particles --columns ke --include ID,x,y,z --fleet fleet --wait"
)]
pub(crate) struct Create {
    /// The data set, or one of its tables.
    #[arg(value_name = "DOMAIN.DATASET[.TABLE]")]
    table: String,
    #[command(flatten)]
    fleet: FleetArg,
    /// The columns by whose ranges the index finds rows, at most 8.
    #[arg(long, value_name = "COLUMN,...", required = true, value_delimiter = ',')]
    columns: Vec<String>,
    /// Columns whose values the index includes, besides its own.
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    include: Vec<String>,
    /// The name of the index (default: its columns).
    #[arg(long)]
    name: Option<String>,
    /// Wait until it is built.
    #[arg(long)]
    wait: bool,
    /// How to print what there is then.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// The data set (default: all).
    #[arg(value_name = "DOMAIN.DATASET")]
    dataset: Option<String>,
    #[command(flatten)]
    fleet: FleetArg,
    /// How to print them.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

#[derive(Debug, Args)]
pub(crate) struct Drop {
    /// The data set.
    #[arg(value_name = "DOMAIN.DATASET")]
    dataset: String,
    /// The index.
    name: String,
    #[command(flatten)]
    fleet: FleetArg,
    /// How to say that it is gone.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

pub(crate) async fn run(command: Index) -> Result<(), Failure> {
    match command {
        Index::Create(args) => create(args).await,
        Index::List(args) => list(args).await,
        Index::Drop(args) => drop_index(args).await,
    }
}

/// `domain.dataset`, perhaps with a table behind it.
fn table(text: &str) -> Result<(DatasetName, String), Failure> {
    match text.split('.').collect::<Vec<_>>().as_slice() {
        [domain, dataset, table] => Ok((name(&format!("{domain}.{dataset}"))?, (*table).to_owned())),
        _ => Ok((name(text)?, "data".to_owned())),
    }
}

fn print(infos: &[IndexInfo], format: ListFormat) -> Result<(), Failure> {
    let text = match format {
        ListFormat::Table if infos.is_empty() => "no indexes".to_owned(),
        ListFormat::Table => infos.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        ListFormat::Json => listing::json(&infos)?,
    };
    print_line(&text)?;
    Ok(())
}

async fn create(args: Create) -> Result<(), Failure> {
    let (dataset, table) = table(&args.table)?;
    let fleet = fleet(&args.fleet).await?;
    let new = NewIndex { dataset: dataset.clone(), table, name: args.name, columns: args.columns, include: args.include };
    let index = OldIndex { dataset: dataset.clone(), name: fleet.create_index(&new).await? };
    let built = if args.wait || !fleet.is_remote() {
        let bar = ProgressBar::new(1000).with_message(format!("index {}", index.name));
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:24}] {percent:>3}%  {elapsed}") {
            bar.set_style(style.progress_chars("#."));
        }
        let built = fleet
            .wait_for_index(&index, |info| {
                bar.set_position((1000.0 * info.done) as u64);
                Ok(())
            })
            .await;
        bar.finish_and_clear();
        built?
    } else {
        let infos = fleet.indexes(&ListIndexes { dataset: Some(dataset) }).await?;
        let gone = || Error::not_found(format!("index {} was dropped meanwhile", index.name));
        infos.into_iter().find(|info| info.index.name == index.name).ok_or_else(gone)?
    };
    print(&[built], args.format)
}

async fn list(args: List) -> Result<(), Failure> {
    let dataset = args.dataset.as_deref().map(name).transpose()?;
    print(&fleet(&args.fleet).await?.indexes(&ListIndexes { dataset }).await?, args.format)
}

async fn drop_index(args: Drop) -> Result<(), Failure> {
    let index = OldIndex { dataset: name(&args.dataset)?, name: args.name };
    fleet(&args.fleet).await?.drop_index(&index).await?;
    match args.format {
        ListFormat::Table => print_line(&format!("dropped index {} of {}", index.name, index.dataset))?,
        ListFormat::Json => print_line(&serde_json::json!({ "dropped": index.name, "dataset": index.dataset.to_string() }).to_string())?,
    }
    Ok(())
}
