//! `skytether locate`: which drives hold which values of a data set; where a file lies (`locate_file`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use skytether::Fleet;
use skytether_common::units::{counted, human_bytes};
use skytether_common::{DatasetName, Error, Result};
use skytether_host::Places;

use crate::commands::locate_file;
use crate::common_args::{ClientArgs, FleetArg, ListFormat};
use crate::context::{Failure, fleet, print_line};
use crate::listing;
use crate::output::columns;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  skytether locate city.trips --fleet fleet        the drives that hold the data set
  skytether locate /mnt/disk/trips.csv             the places of a file's bytes on the disk below
  skytether locate ./stripes.toml --values         the chunks of a striped file, by its description")]
pub(crate) struct Locate {
    /// The data set (domain.dataset) or the file. What exists here as a file, or has a /, is a file. For a
    /// description of a striped file (TOML or JSON), that file is located.
    #[arg(value_name = "FILE|DATASET")]
    what: String,
    /// The fleet with the data set: a directory, or a host's address (HOST:PORT, grpc://HOST:PORT or, with TLS,
    /// grpc+tls://HOST:PORT).
    #[arg(long, value_name = "DIR|URL", env = "SKYTETHER_FLEET")]
    fleet: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// It is a data set, also where there is a file of that name.
    #[arg(long, conflicts_with_all = ["target", "itself"])]
    dataset: bool,
    /// The target that has the disk below the file: its address is shown next to the places.
    #[arg(long, value_name = "URL", env = "SKYTETHER_TARGET")]
    target: Option<String>,
    /// Where a description lies, and not the striped file that it describes.
    #[arg(long)]
    itself: bool,
    /// A line for each value, or for each chunk of a striped file, and not a summary; JSON has them always.
    #[arg(long)]
    values: bool,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

/// As JSON.
#[derive(Debug, Serialize)]
struct Located<'a> {
    dataset: String,
    values: Vec<Value<'a>>,
    /// Drives that could not be asked.
    unasked: Vec<Unasked<'a>>,
}

#[derive(Debug, Serialize)]
struct Value<'a> {
    drive: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<&'a str>,
    role: &'static str,
    key: &'a str,
    bytes: u64,
    /// As eight hexadecimal digits.
    crc32c: String,
}

#[derive(Debug, Serialize)]
struct Unasked<'a> {
    drive: &'a str,
    why: &'a str,
}

/// Prints where the data set lies.
pub(crate) async fn run(args: Locate) -> Result<(), Failure> {
    let path = PathBuf::from(&args.what);
    let is_file = !args.dataset && (args.what.contains('/') || path.exists());
    if is_file {
        if !args.what.contains('/') && args.fleet.is_some() && args.what.parse::<DatasetName>().is_ok() {
            return Err(Failure::Call(oas::locate::ambiguous(&args.what)));
        }
        let asked = locate_file::Asked { path, target: args.target, itself: args.itself, values: args.values, format: args.format };
        return locate_file::run(asked).await;
    }
    let dataset: DatasetName = args.what.parse().map_err(|e: Error| {
        Failure::Call(Error::invalid(format!("{:?} is no file here, and no name of a data set: write a path, or domain.dataset", args.what)).with_source(e))
    })?;
    let Some(at) = args.fleet else {
        let text = format!("{:?} is no file here; for the data set of that name, give its fleet: --fleet DIR|URL", args.what);
        return Err(Failure::Call(Error::invalid(text)));
    };
    let fleet: Fleet = fleet(&FleetArg { fleet: at, client: args.client }).await?;
    let found = fleet.places(&dataset).await?;
    match args.format {
        ListFormat::Json => print_line(&listing::json(&located(&dataset, &found))?)?,
        ListFormat::Table => {
            let table = if args.values { each(&found) } else { summed(&found) };
            print_line(table.trim_end())?;
        }
    }
    for (drive, why) in &found.unasked {
        eprintln!("{drive} was not asked: {why}");
    }
    Ok(())
}

fn located<'a>(dataset: &DatasetName, found: &'a Places) -> Located<'a> {
    let value = |place: &'a skytether_host::Place| Value {
        drive: &place.drive,
        table: place.table.as_deref(),
        role: place.purpose.as_str(),
        key: place.key.as_str(),
        bytes: place.bytes,
        crc32c: format!("{:08x}", place.crc32c),
    };
    Located {
        dataset: dataset.to_string(),
        values: found.values.iter().map(value).collect(),
        unasked: found.unasked.iter().map(|(drive, why)| Unasked { drive, why }).collect(),
    }
}

/// A line for each value.
fn each(found: &Places) -> String {
    let rows: Vec<Vec<String>> = found
        .values
        .iter()
        .map(|place| {
            let table = place.table.clone().unwrap_or_default();
            vec![place.drive.clone(), table, place.purpose.as_str().into(), place.key.to_string(), place.bytes.to_string(), format!("{:08x}", place.crc32c)]
        })
        .collect();
    columns(&["drive", "table", "what", "key", "bytes", "crc32c"], &[false, false, false, false, true, false], &rows)
}

/// A line for all values of one kind of one table on one drive.
fn summed(found: &Places) -> String {
    let mut sums: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for place in &found.values {
        let sum = sums.entry((place.drive.as_str(), place.table.as_deref().unwrap_or_default(), place.purpose)).or_default();
        *sum = (sum.0 + 1, sum.1 + place.bytes);
    }
    let rows: Vec<Vec<String>> = sums
        .into_iter()
        .map(|((drive, table, role), (values, bytes))| {
            vec![drive.to_owned(), table.to_owned(), role.as_str().to_owned(), counted(values, "value"), human_bytes(bytes)]
        })
        .collect();
    columns(&["drive", "table", "what", "values", "bytes"], &[false, false, false, true, true], &rows)
}
