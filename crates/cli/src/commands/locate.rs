//! `skytether locate`: which drives hold which values of a data set.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use skytether::Fleet;
use skytether_common::units::{counted, human_bytes};
use skytether_common::{DatasetName, Result};
use skytether_host::Places;

use crate::common_args::{FleetArg, ListFormat};
use crate::context::{Failure, fleet, print_line};
use crate::listing;
use crate::output::columns;

#[derive(Debug, Args)]
pub(crate) struct Locate {
    /// The data set (`domain.dataset`).
    #[arg(value_name = "DATASET")]
    dataset: DatasetName,
    #[command(flatten)]
    fleet: FleetArg,
    /// A line for each value, and not for all of one kind on a drive; JSON has them always.
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
    let fleet: Fleet = fleet(&args.fleet).await?;
    let found = fleet.places(&args.dataset).await?;
    match args.format {
        ListFormat::Json => print_line(&listing::json(&located(&args.dataset, &found))?)?,
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
