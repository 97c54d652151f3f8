//! `information_schema`: the fleet's data sets, tables and columns, as SQL tools look for them.
//!
//! A table of the fleet has three names: the domain is its catalog, the data set its schema. That is how the doors for
//! SQL tools call them, too. What a query reads of `information_schema` is made when it is planned. The list costs a
//! read of the names at each drive; `columns` costs a read of each table's metadata slice, if it is not remembered.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, new_null_array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{MemTable, TableProvider};
use datafusion::common::TableReference;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use skytether_catalog::records::root::{DatasetKind, RootRecord};
use skytether_catalog::root_store::Catalog;
use skytether_catalog::table_view::{View, choose};
use skytether_common::{DatasetName, Error, Kind, Result};
use skytether_exec::profile::Collector;
use skytether_plan::error::from_datafusion;

use crate::tables::SchemaCache;

/// Root records or metadata slices that are read at once.
const AT_ONCE: usize = 8;

/// A table of `information_schema`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Tables,
    Columns,
    Schemata,
    Views,
}

impl Asked {
    /// Which of them `reference` names: `information_schema.tables`, or one of a domain,
    /// `domain.information_schema.tables`.
    pub(crate) fn of(reference: &TableReference) -> Option<(Self, Option<&str>)> {
        let (domain, schema, table) = match reference {
            TableReference::Bare { .. } => return None,
            TableReference::Partial { schema, table } => (None, schema, table),
            TableReference::Full { catalog, schema, table } => (Some(catalog.as_ref()), schema, table),
        };
        if schema.as_ref() != "information_schema" {
            return None;
        }
        let asked = match table.as_ref() {
            "tables" => Self::Tables,
            "columns" => Self::Columns,
            "schemata" => Self::Schemata,
            "views" => Self::Views,
            _ => return None,
        };
        Some((asked, domain))
    }
}

/// One table of the fleet.
struct Listed {
    domain: String,
    dataset: String,
    table: String,
    view: View,
    schema: SchemaRef,
}

/// The table that was asked for, of all domains or of one.
///
/// # Errors
/// As [`Catalog::list`]; what the drives say when asked for metadata.
pub(crate) fn table<'a>(
    asked: Asked,
    domain: Option<&'a str>,
    catalog: &'a Catalog,
    schemas: &'a SchemaCache,
    collector: &'a Collector,
) -> BoxFuture<'a, Result<Arc<dyn TableProvider>>> {
    made(asked, domain, catalog, schemas, collector).boxed()
}

async fn made(asked: Asked, domain: Option<&str>, catalog: &Catalog, schemas: &SchemaCache, collector: &Collector) -> Result<Arc<dyn TableProvider>> {
    let found = catalog.list().await?;
    let names: Vec<_> = found.into_iter().filter(|d| d.error.is_none() && domain.is_none_or(|domain| d.name.domain() == domain)).map(|d| d.name).collect();
    if asked == Asked::Schemata {
        let (domains, datasets) = names.iter().map(|n| (Some(n.domain().to_owned()), Some(n.dataset().to_owned()))).unzip();
        return provider(&[("catalog_name", domains), ("schema_name", datasets), ("schema_owner", vec![None; names.len()])], &[]);
    }
    let with_columns = asked == Asked::Columns;
    // Boxed one by one: the compiler does not see that a closure of these lifetimes may be sent.
    let each: Vec<BoxFuture<'_, Result<Vec<Listed>>>> = names.iter().map(|name| of_dataset(name, with_columns, catalog, schemas, collector).boxed()).collect();
    let listed: Vec<Listed> = stream::iter(each).buffered(AT_ONCE).try_collect::<Vec<_>>().await?.into_iter().flatten().collect();
    match asked {
        Asked::Columns => columns(&listed),
        Asked::Views => {
            let listed: Vec<_> = listed.iter().filter(|t| t.view != View::Stored).collect();
            let nothing = vec![None; listed.len()];
            let [a, b, c] = names_of(listed.iter().copied());
            provider(&[a, b, c, ("definition", nothing)], &[])
        }
        _ => {
            let kinds = listed.iter().map(|t| Some(if t.view == View::Stored { "BASE TABLE" } else { "VIEW" }.to_owned())).collect();
            let [a, b, c] = names_of(listed.iter());
            provider(&[a, b, c, ("table_type", kinds)], &[])
        }
    }
}

/// Whether a data set is gone since it was listed, or can't be read: it must not hide the others.
fn hides(error: &Error) -> bool {
    matches!(error.kind(), Kind::NotFound | Kind::Conflict | Kind::Corrupt | Kind::Unsupported)
}

/// The tables of a data set that SQL shows; none where it is gone or can't be read.
async fn of_dataset(name: &DatasetName, columns: bool, catalog: &Catalog, schemas: &SchemaCache, collector: &Collector) -> Result<Vec<Listed>> {
    match catalog.read_cached(name).await {
        Ok((record, _)) => of_record(&record, columns, catalog, schemas, collector).await,
        Err(e) if hides(&e) => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// The tables of a record, with their columns where `columns` are asked for.
async fn of_record(record: &RootRecord, columns: bool, catalog: &Catalog, schemas: &SchemaCache, collector: &Collector) -> Result<Vec<Listed>> {
    let mut shown = Vec::new();
    for (name, table) in record.whole_tables().filter(|(name, _)| skytether_catalog::table_view::is_listed(name)) {
        shown.push(name.clone());
        if table.matrix.is_some() && record.kind == DatasetKind::Expression {
            shown.push(format!("{name}_rows"));
        }
    }
    let mut listed = Vec::new();
    for name in shown {
        let (stored, table, view) = choose(record, Some(name))?;
        let schema =
            if columns { schemas.get(record, &stored, view, catalog, collector).await.map(|(schema, _)| schema) } else { Ok(Arc::new(Schema::empty())) };
        match schema {
            Ok(schema) => listed.push(Listed { domain: record.name.domain().to_owned(), dataset: record.name.dataset().to_owned(), table, view, schema }),
            Err(e) if hides(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(listed)
}

type Texts = (&'static str, Vec<Option<String>>);
type Numbers = (&'static str, Vec<Option<i64>>);

fn names_of<'a>(listed: impl Iterator<Item = &'a Listed> + Clone) -> [Texts; 3] {
    let all = |of: fn(&Listed) -> &str| listed.clone().map(|t| Some(of(t).to_owned())).collect();
    [("table_catalog", all(|t| &t.domain)), ("table_schema", all(|t| &t.dataset)), ("table_name", all(|t| &t.table))]
}

/// The columns of all tables, with what DataFusion's own view of them has.
fn columns(listed: &[Listed]) -> Result<Arc<dyn TableProvider>> {
    let each: Vec<(&Listed, usize, &Field)> =
        listed.iter().flat_map(|t| t.schema.fields().iter().enumerate().map(move |(at, f)| (t, at + 1, f.as_ref()))).collect();
    let text = |of: &dyn Fn(&(&Listed, usize, &Field)) -> String| each.iter().map(|c| Some(of(c))).collect::<Vec<_>>();
    let number = |of: &dyn Fn(&DataType) -> Option<i64>| each.iter().map(|(_, _, f)| of(f.data_type())).collect::<Vec<_>>();
    let nothing = || vec![None; each.len()];
    let [a, b, c] = names_of(each.iter().map(|(t, _, _)| *t));
    let precision = |t: &DataType| match t {
        DataType::Decimal32(p, _) | DataType::Decimal64(p, _) | DataType::Decimal128(p, _) | DataType::Decimal256(p, _) => Some(i64::from(*p)),
        DataType::Float16 => Some(11),
        DataType::Float32 => Some(24),
        DataType::Float64 => Some(53),
        t if t.is_integer() => t.primitive_width().map(|bytes| bytes as i64 * 8),
        _ => None,
    };
    let radix = |t: &DataType| precision(t).map(|_| if t.is_decimal() { 10 } else { 2 });
    let scale = |t: &DataType| match t {
        DataType::Decimal32(_, s) | DataType::Decimal64(_, s) | DataType::Decimal128(_, s) | DataType::Decimal256(_, s) => Some(i64::from(*s)),
        t if t.is_integer() => Some(0),
        _ => None,
    };
    let octets = |t: &DataType| matches!(t, DataType::Utf8 | DataType::Binary).then_some(i64::from(i32::MAX));
    provider(
        &[
            a,
            b,
            c,
            ("column_name", text(&|(_, _, f)| f.name().clone())),
            ("column_default", nothing()),
            ("is_nullable", text(&|(_, _, f)| if f.is_nullable() { "YES" } else { "NO" }.to_owned())),
            ("data_type", text(&|(_, _, f)| f.data_type().to_string())),
            ("interval_type", nothing()),
        ],
        &[
            ("ordinal_position", each.iter().map(|(_, at, _)| i64::try_from(*at).ok()).collect()),
            ("character_maximum_length", number(&|_| None)),
            ("character_octet_length", number(&octets)),
            ("numeric_precision", number(&precision)),
            ("numeric_precision_radix", number(&radix)),
            ("numeric_scale", number(&scale)),
            ("datetime_precision", number(&|_| None)),
        ],
    )
}

/// A table of these columns.
fn provider(texts: &[Texts], numbers: &[Numbers]) -> Result<Arc<dyn TableProvider>> {
    let rows = texts.first().map_or(0, |(_, values)| values.len());
    let mut fields = Vec::new();
    let mut arrays: Vec<ArrayRef> = Vec::new();
    for (name, values) in texts {
        fields.push(Field::new(*name, DataType::Utf8, true));
        arrays.push(if values.iter().all(Option::is_none) { new_null_array(&DataType::Utf8, rows) } else { Arc::new(StringArray::from_iter(values)) });
    }
    for (name, values) in numbers {
        fields.push(Field::new(*name, DataType::Int64, true));
        arrays.push(Arc::new(Int64Array::from_iter(values)));
    }
    let schema = Arc::new(Schema::new(fields));
    let failed = |e| Error::internal("cannot list the tables").with_source(e);
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).map_err(failed)?;
    Ok(Arc::new(MemTable::try_new(schema, vec![vec![batch]]).map_err(from_datafusion)?))
}
