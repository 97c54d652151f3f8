//! `skytether describe`: the columns of a table, or the tables of a data set.

use clap::Args;
use serde::Serialize;
use skytether::{DatasetKind, Fleet};
use skytether_common::units::{counted, human_bytes};
use skytether_common::{DatasetName, Result};
use skytether_host::RootRecord;

use crate::common_args::{FleetArg, ListFormat};
use crate::context::{Failure, fleet, print_line};
use crate::listing;
use crate::output::columns;

#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// The table (`domain.dataset`, or `domain.dataset.table`), or an expression data set.
    #[arg(value_name = "TABLE")]
    table: String,
    #[command(flatten)]
    fleet: FleetArg,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

/// What is known of a table.
#[derive(Debug, Serialize)]
struct Described {
    name: String,
    kind: &'static str,
    rows: u64,
    bytes: u64,
    partitioned_by: Vec<String>,
    /// Of a table.
    columns: Vec<Column>,
    /// Of an expression data set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tables: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Column {
    name: String,
    /// As Arrow writes it.
    r#type: String,
    nullable: bool,
}

/// Describes the table.
pub(crate) async fn run(args: Describe) -> Result<(), Failure> {
    let fleet = fleet(&args.fleet).await?;
    let found = describe(&fleet, &args.table).await?;
    print_line(&match args.format {
        ListFormat::Table => shown(&found).trim_end().to_owned(),
        ListFormat::Json => listing::json(&found)?,
    })?;
    Ok(())
}

/// A table or a data set as a text.
///
/// # Errors
/// There is none of that name.
pub(crate) async fn text(fleet: &Fleet, asked: &str) -> Result<String> {
    Ok(shown(&describe(fleet, asked).await?))
}

async fn describe(fleet: &Fleet, asked: &str) -> Result<Described> {
    let asked: String = asked.trim().trim_end_matches(';').split('.').map(bare).collect::<Vec<_>>().join(".");
    let mut parts = asked.splitn(3, '.');
    let (domain, dataset, table) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next());
    // Without a dataset's part the name's own error says how names are written.
    let name: DatasetName = if dataset.is_empty() { asked.parse()? } else { DatasetName::new(domain, dataset)? };
    let record = fleet.describe(&name).await?;
    if record.kind == DatasetKind::Expression && table.is_none() {
        let tables = record.whole_tables().filter(|(t, _)| *t != "shell").map(|(t, _)| format!("{name}.{t}")).collect();
        return Ok(Described {
            name: name.to_string(),
            kind: "expression data set",
            rows: record.rows(),
            bytes: record.bytes(),
            partitioned_by: Vec::new(),
            columns: Vec::new(),
            tables,
        });
    }
    let schema = fleet.schema_of(&asked).await?;
    let stored = stored(&record, table.unwrap_or("data"));
    Ok(Described {
        name: asked,
        kind: if stored.is_some_and(|(_, t)| t.matrix.is_some()) { "matrix" } else { "table" },
        rows: stored.map_or(0, |(name, _)| record.rows_of(name)),
        bytes: record.bytes(),
        partitioned_by: stored.and_then(|(_, t)| Some(t.partitioned_by.as_ref()?.columns())).unwrap_or_default(),
        columns: schema.fields().iter().map(|f| Column { name: f.name().clone(), r#type: f.data_type().to_string(), nullable: f.is_nullable() }).collect(),
        tables: Vec::new(),
    })
}

/// A part of a name without the quotes that SQL wants around some.
fn bare(part: &str) -> &str {
    part.strip_prefix('"').and_then(|part| part.strip_suffix('"')).unwrap_or(part)
}

/// The stored table that SQL calls `table`.
fn stored<'r>(record: &'r RootRecord, table: &str) -> Option<(&'r String, &'r skytether::TableRecord)> {
    record.tables.get_key_value(table).or_else(|| record.tables.get_key_value(table.strip_suffix("_rows")?))
}

fn shown(found: &Described) -> String {
    let head = match found.kind {
        "table" => format!("{}: {}, {}", found.name, counted(found.rows, "row"), counted(found.columns.len() as u64, "column")),
        "matrix" => format!("{}: a matrix, {}", found.name, counted(found.columns.len() as u64, "column")),
        kind => format!("{}: {kind} of {}, {} stored; its tables are", found.name, counted(found.rows, "gene"), human_bytes(found.bytes)),
    };
    let by = if found.partitioned_by.is_empty() { String::new() } else { format!(", partitioned by {}", found.partitioned_by.join(", ")) };
    let rows: Vec<Vec<String>> = if found.columns.is_empty() {
        found.tables.iter().map(|t| vec![t.clone()]).collect()
    } else {
        found.columns.iter().map(|c| vec![c.name.clone(), c.r#type.clone(), if c.nullable { "yes" } else { "no" }.to_owned()]).collect()
    };
    let table = if found.columns.is_empty() { columns(&["table"], &[false], &rows) } else { columns(&["column", "type", "null"], &[false; 3], &rows) };
    format!("{head}{by}\n{table}")
}
