//! How Flight SQL sees a fleet: the domain is the catalog, the data set the schema, the table the table.
//!
//! So every table's three names, joined by dots, name it in SQL. A plain table, whose only table is `data`, is also
//! `domain.dataset`.

use std::sync::OnceLock;

use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::Schema;
use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::{SqlInfoData, SqlInfoDataBuilder};
use arrow_flight::sql::{CommandGetCatalogs, CommandGetDbSchemas, CommandGetTables, SqlInfo, SqlSupportedTransaction};
use futures::{StreamExt, TryStreamExt, stream};
use skytether_common::{DatasetName, Error, Kind, Result};

use skytether_api::service::FleetService;
use skytether_catalog::records::root::{DatasetKind, RootRecord};

/// What is stored.
pub(crate) const TABLE: &str = "TABLE";
/// Another form of a matrix that is stored.
pub(crate) const VIEW: &str = "VIEW";

/// The longest pattern or name in a question.
const MAX_PATTERN: usize = 4096;

/// Root records that are read at once.
const AT_ONCE: usize = 8;

fn arrow(error: FlightError) -> Error {
    Error::invalid("the metadata that was asked for can't be given").with_source(error)
}

fn short<'a>(texts: impl IntoIterator<Item = Option<&'a String>>) -> Result<()> {
    if texts.into_iter().flatten().any(|t| t.len() > MAX_PATTERN) {
        return Err(Error::invalid(format!("names and patterns in a question about metadata may have {MAX_PATTERN} bytes at most")));
    }
    Ok(())
}

pub(crate) async fn catalogs(fleet: &dyn FleetService, asked: CommandGetCatalogs) -> Result<RecordBatch> {
    let mut builder = asked.into_builder();
    let mut domains: Vec<_> = fleet.list().await?.into_iter().map(|d| d.name.domain().to_owned()).collect();
    domains.sort_unstable();
    domains.dedup();
    for domain in domains {
        builder.append(domain);
    }
    builder.build().map_err(arrow)
}

pub(crate) async fn schemas(fleet: &dyn FleetService, asked: CommandGetDbSchemas) -> Result<RecordBatch> {
    short([asked.catalog.as_ref(), asked.db_schema_filter_pattern.as_ref()])?;
    let mut builder = asked.into_builder();
    for dataset in fleet.list().await? {
        builder.append(dataset.name.domain(), dataset.name.dataset());
    }
    builder.build().map_err(arrow)
}

pub(crate) async fn tables(fleet: &dyn FleetService, asked: CommandGetTables) -> Result<RecordBatch> {
    short([asked.catalog.as_ref(), asked.db_schema_filter_pattern.as_ref(), asked.table_name_filter_pattern.as_ref()])?;
    let which = CommandGetDbSchemas { catalog: asked.catalog.clone(), db_schema_filter_pattern: asked.db_schema_filter_pattern.clone() };
    let names = pairs(&schemas(fleet, which).await?)?;
    let records: Vec<_> = stream::iter(names).map(|name| record(fleet, name)).buffered(AT_ONCE).try_collect().await?;
    let all: Vec<_> = records.iter().flatten().flat_map(|r| shown(r).into_iter().map(|(table, kind)| (&r.name, table, kind))).collect();
    let mut builder = asked.clone().into_builder();
    if !asked.include_schema {
        for (name, table, kind) in all {
            builder.append(name.domain(), name.dataset(), table, kind, &Schema::empty()).map_err(arrow)?;
        }
        return builder.build().map_err(arrow);
    }
    // A schema costs a read, so only those of matching tables are read.
    for (name, table, kind) in all {
        let mut one = CommandGetTables { include_schema: false, ..asked.clone() }.into_builder();
        one.append(name.domain(), name.dataset(), &table, kind, &Schema::empty()).map_err(arrow)?;
        if one.build().map_err(arrow)?.num_rows() == 0 {
            continue;
        }
        match fleet.schema_of(&format!("{name}.{table}")).await {
            Ok(schema) => builder.append(name.domain(), name.dataset(), table, kind, &schema).map_err(arrow)?,
            Err(e) if gone(&e) => (),
            Err(e) => return Err(e),
        }
    }
    builder.build().map_err(arrow)
}

/// Whether a data set was dropped or replaced since it was listed.
fn gone(error: &Error) -> bool {
    matches!(error.kind(), Kind::NotFound | Kind::Conflict)
}

/// The root record; none where it is gone or can't be read: one broken data set must not hide the others.
async fn record(fleet: &dyn FleetService, name: DatasetName) -> Result<Option<RootRecord>> {
    match fleet.describe(&name).await {
        Ok(record) => Ok(Some(record)),
        Err(e) if gone(&e) || matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) => Ok(None),
        Err(e) => Err(e),
    }
}

fn pairs(batch: &RecordBatch) -> Result<Vec<DatasetName>> {
    let column = |name| batch.column_by_name(name).and_then(|c| c.as_any().downcast_ref::<StringArray>());
    let (Some(catalogs), Some(schemas)) = (column("catalog_name"), column("db_schema_name")) else {
        return Err(Error::internal("the list of schemas has other columns than it should"));
    };
    catalogs.iter().zip(schemas).filter_map(|pair| Some((pair.0?, pair.1?))).map(|(d, s)| DatasetName::new(d, s)).collect()
}

/// The tables of a data set as SQL names them, and their kinds.
fn shown(record: &RootRecord) -> Vec<(String, &'static str)> {
    match record.kind {
        DatasetKind::Table => vec![("data".to_owned(), TABLE)],
        DatasetKind::Expression => {
            let mut found = Vec::new();
            for (name, table) in record.whole_tables().filter(|(t, _)| skytether_catalog::table_view::is_listed(t)) {
                found.push((name.clone(), if table.matrix.is_some() { VIEW } else { TABLE }));
                if table.matrix.is_some() {
                    found.push((format!("{name}_rows"), VIEW));
                }
            }
            found
        }
    }
}

/// What this server can do.
pub(crate) fn sql_info() -> Result<&'static SqlInfoData> {
    static INFO: OnceLock<SqlInfoData> = OnceLock::new();
    if let Some(known) = INFO.get() {
        return Ok(known);
    }
    let mut builder = SqlInfoDataBuilder::new();
    builder.append(SqlInfo::FlightSqlServerName, "Skytether");
    builder.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    builder.append(SqlInfo::FlightSqlServerArrowVersion, "1.3");
    builder.append(SqlInfo::FlightSqlServerReadOnly, true);
    builder.append(SqlInfo::FlightSqlServerSql, true);
    builder.append(SqlInfo::FlightSqlServerSubstrait, true);
    builder.append(SqlInfo::FlightSqlServerCancel, true);
    builder.append(SqlInfo::FlightSqlServerBulkIngestion, false);
    builder.append(SqlInfo::FlightSqlServerTransaction, SqlSupportedTransaction::None as i32);
    builder.append(SqlInfo::SqlDdlCatalog, false);
    builder.append(SqlInfo::SqlDdlSchema, false);
    builder.append(SqlInfo::SqlDdlTable, false);
    builder.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    let built = builder.build().map_err(arrow)?;
    Ok(INFO.get_or_init(|| built))
}
