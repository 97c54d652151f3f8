//! A foreign plan: the limits within which it is read, and the tables that it names.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::TableReference;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{LogicalPlan, TableSource};
use futures::FutureExt;
use skytether_common::{DatasetName, Error, Kind, Result};
use skytether_plan::substrait_import::{ImportedPlan, Limits, TableLookup, blame};
use tokio::sync::Mutex;

use crate::sql_limits::MAX_OPERATORS;
use crate::tables::{NamedTables, SchemaCache};
use skytether_catalog::root_store::Catalog;
use skytether_exec::profile::Collector;

/// How much a plan may hold: what texts of SQL may hold, too. Expressions are more than operators,
/// as lists of values count.
pub const LIMITS: Limits = Limits { bytes: 16 << 20, relations: MAX_OPERATORS, depth: 200, expressions: 1 << 18, levels: MAX_OPERATORS / 2 };

/// The logical plan of `bytes`, and the tables that it reads.
pub(crate) async fn logical(
    bytes: &[u8],
    state: &SessionState,
    catalog: &Catalog,
    schemas: &SchemaCache,
    collector: &Collector,
) -> Result<(LogicalPlan, NamedTables)> {
    let foreign = ImportedPlan::decode(bytes, LIMITS)?;
    let finder = Finder { catalog, schemas, collector, found: Mutex::default() };
    let plan = foreign.logical(state, &finder).await?;
    Ok((plan, finder.found.into_inner()))
}

/// The result of `work` on a foreign plan. Where the engine's planner fails or panics over it, the plan is at fault.
pub(crate) async fn guarded<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => done.map_err(blame),
        Err(_) => Err(Error::unsupported("the plan can't be run by this engine: its planner gave up on it")),
    }
}

struct Finder<'a> {
    catalog: &'a Catalog,
    schemas: &'a SchemaCache,
    collector: &'a Collector,
    found: Mutex<NamedTables>,
}

#[async_trait]
impl TableLookup for Finder<'_> {
    async fn find(&self, names: &[String]) -> Result<(TableReference, Arc<dyn TableSource>)> {
        let parts = parts(names)?;
        let mut found = self.found.lock().await;
        let (reference, name, shown) = reference(&parts)?;
        if let Some(named) = found.get(&reference) {
            return Ok((reference, named.source()));
        }
        let exact = found.add(reference.clone(), name, shown, self.catalog, self.schemas, self.collector).await;
        let reference = match exact {
            Ok(()) => reference,
            Err(e) if e.kind() == Kind::NotFound => {
                let Some(other) = self.in_other_case(&parts).await? else { return Err(e) };
                let (reference, name, shown) = self::reference(&other)?;
                if found.get(&reference).is_none() {
                    found.add(reference.clone(), name, shown, self.catalog, self.schemas, self.collector).await?;
                }
                reference
            }
            Err(e) => return Err(e),
        };
        let named = found.get(&reference).ok_or_else(|| Error::internal(format!("{reference} was found and is not there")))?;
        Ok((reference, named.source()))
    }
}

impl Finder<'_> {
    /// The names that differ from `parts` in letter case only; `None` if no data set has such a name.
    async fn in_other_case(&self, parts: &[String]) -> Result<Option<Vec<String>>> {
        let same = |a: &str, b: &str| a.to_lowercase() == b.to_lowercase();
        let [domain, dataset, table @ ..] = parts else { return Ok(None) };
        let alike: Vec<DatasetName> = self.catalog.names().await?.into_iter().filter(|n| same(n.domain(), domain) && same(n.dataset(), dataset)).collect();
        let name = match alike.iter().find(|n| n.domain() == domain && n.dataset() == dataset).or(alike.first()) {
            None => return Ok(None),
            Some(exact) if alike.len() == 1 || (exact.domain() == domain && exact.dataset() == dataset) => exact,
            Some(_) => {
                let names: Vec<_> = alike.iter().map(ToString::to_string).collect();
                return Err(Error::invalid(format!("the plan's table {} may be any of {}: write it as it is", parts.join("."), names.join(", "))));
            }
        };
        let mut other = vec![name.domain().to_owned(), name.dataset().to_owned()];
        // The tables within a data set are named by us, in lower case, but for what an expression
        // data set calls its layers.
        other.extend(table.iter().map(|t| t.to_lowercase()));
        Ok((other != parts).then_some(other))
    }
}

/// The two or three names of a table; one with dots in it holds them all.
fn parts(names: &[String]) -> Result<Vec<String>> {
    let parts: Vec<String> = match names {
        [one] => one.split('.').map(str::to_owned).collect(),
        several => several.to_vec(),
    };
    if (2..=3).contains(&parts.len()) {
        return Ok(parts);
    }
    Err(Error::invalid(format!("the plan reads the table {:?}: a data set is named domain.dataset, a table in it domain.dataset.table", names.join("."))))
}

fn reference(parts: &[String]) -> Result<(TableReference, DatasetName, Option<String>)> {
    match parts {
        [domain, dataset] => Ok((TableReference::partial(domain.as_str(), dataset.as_str()), DatasetName::new(domain, dataset)?, None)),
        [domain, dataset, table] => {
            Ok((TableReference::full(domain.as_str(), dataset.as_str(), table.as_str()), DatasetName::new(domain, dataset)?, Some(table.clone())))
        }
        _ => Err(Error::internal("a table has two or three names")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Result<Vec<String>> {
        parts(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn tables_have_two_or_three_names_in_one_piece_or_several() {
        assert_eq!(named(&["a", "b"]).unwrap(), ["a", "b"]);
        assert_eq!(named(&["a.b.x"]).unwrap(), ["a", "b", "x"]);
        for bad in [&[][..], &["a"], &["a", "b", "c", "d"], &["a.b.c.d"]] {
            assert_eq!(named(bad).unwrap_err().kind(), Kind::Invalid, "{bad:?}");
        }
    }

    #[tokio::test]
    async fn a_planner_that_gives_up_is_no_defect() {
        async fn panics() -> Result<()> {
            std::panic::resume_unwind(Box::new("x"))
        }
        assert_eq!(guarded(panics()).await.unwrap_err().kind(), Kind::Unsupported);
        assert_eq!(guarded(async { Err::<(), _>(Error::internal("y")) }).await.unwrap_err().kind(), Kind::Unsupported);
        assert_eq!(guarded(async { Err::<(), _>(Error::exhausted("z")) }).await.unwrap_err().kind(), Kind::Exhausted);
    }
}
