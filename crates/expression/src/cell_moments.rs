//! The aggregate `cell_moments(cell, value, groups, transform)` over the dense view of a matrix.
//!
//! People write it in SQL. [`crate::rewrite`] turns it into `moments` over the sparse rows, which is some hundred times
//! faster. A plan whose shape cannot be rewritten runs as it is, over the rows of its input. It then counts only those
//! cells, and `groups` must be a whole spec, because nothing else names the data set.
//!
//! `groups` is the name of an obs column, or the JSON of [`Groups`] or of a [`MomentsSpec`]; `transform` is
//! `'log1p_cp10k'`, another transform ([`crate::transform`]), or NULL.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use datafusion::logical_expr::AggregateUDF;
use datafusion::physical_plan::PhysicalExpr;
use skytether_common::{DatasetName, Error, Result};

use crate::aggregate::{Call, Input, aggregate, is_text, passes, text_literal};
use crate::cells::CellSource;
use crate::groups::Prepared;
use crate::spec::{Groups, MomentsSpec, Transform, shorten};
use crate::store::MomentStore;

/// The name of the aggregate in queries.
pub const CELL_MOMENTS: &str = "cell_moments";

/// The aggregate `cell_moments`.
#[must_use]
pub fn cell_moments_udaf(source: Arc<dyn CellSource>) -> AggregateUDF {
    aggregate(CellMoments { source })
}

/// The spec of the literal arguments `groups` and `transform`. `of` is the data set and matrix, or `None` if they are
/// unknown.
///
/// # Errors
/// Invalid where the texts are no groups or no transform, or where the data set is needed but unknown or another.
pub fn spec_of(of: Option<(&DatasetName, &str)>, groups: &str, transform: Option<&str>) -> Result<MomentsSpec> {
    let transform = transform.map(Transform::parse).transpose()?;
    let json = groups.trim_start().starts_with('{');
    let mut no_spec = None;
    if json {
        match MomentsSpec::from_literal(groups) {
            Ok(spec) => {
                if spec.transform.is_some() && spec.transform != transform {
                    return Err(Error::invalid("the spec in cell_moments' groups and its argument transform name different transforms"));
                }
                if let Some((dataset, matrix)) = of
                    && (*dataset != spec.dataset || matrix != spec.matrix)
                {
                    return Err(Error::invalid(format!("cell_moments over {dataset}.{matrix} has groups for {}.{}", spec.dataset, spec.matrix)));
                }
                return Ok(MomentsSpec { transform, ..spec });
            }
            Err(why) => no_spec = Some(why),
        }
    }
    let Some((dataset, matrix)) = of else {
        let error = Error::unsupported(
            "cell_moments(cell, value, groups, transform) works on the dense view of a matrix, grouped by gene, without filters on cells or values: write it so, or give a whole spec as groups",
        );
        return Err(match no_spec {
            Some(why) => error.with_source(why),
            None => error,
        });
    };
    let groups = if json {
        serde_json::from_str(groups).map_err(|e| {
            let error = Error::invalid(format!("{:?} is neither an obs column, nor groups in JSON, nor a whole spec", shorten(groups)));
            // What names a data set was meant to be a whole spec.
            match no_spec.take() {
                Some(why) if groups.contains("\"dataset\"") => error.with_source(why),
                _ => error.with_source(e),
            }
        })?
    } else {
        Groups::Obs { column: groups.to_owned() }
    };
    Ok(MomentsSpec { dataset: dataset.clone(), matrix: matrix.to_owned(), groups, transform, squares: crate::spec::Squares::default(), totals: None })
}

#[derive(Debug)]
struct CellMoments {
    source: Arc<dyn CellSource>,
}

fn usage() -> Error {
    Error::invalid(
        "cell_moments(cell, value, groups, transform) takes a cell's name (text), a number, groups (text: an obs column or JSON) and a transform ('log1p_cp10k' or NULL)",
    )
}

impl Call for CellMoments {
    const NAME: &'static str = CELL_MOMENTS;
    type Input = DenseRows;

    fn source(&self) -> &Arc<dyn CellSource> {
        &self.source
    }

    fn coerce(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [cell, value, groups, transform] if is_text(cell) && value.is_numeric() && is_text(groups) && (is_text(transform) || transform.is_null()) => {
                Ok(vec![cell.clone(), DataType::Float64, groups.clone(), if transform.is_null() { DataType::Utf8 } else { transform.clone() }])
            }
            _ => Err(usage()),
        }
    }

    fn input(&self, args: &[Arc<dyn PhysicalExpr>]) -> Result<DenseRows> {
        let [_, _, groups, transform] = args else { return Err(usage()) };
        let groups = text_literal(groups)?.ok_or_else(usage)?;
        let spec = spec_of(None, &groups, text_literal(transform)?.as_deref())?;
        Ok(DenseRows { spec: Arc::new(spec), source: Arc::clone(&self.source), ready: None })
    }
}

/// A cell that shares its name with another.
const AMBIGUOUS: u32 = u32::MAX;

#[derive(Debug)]
struct Ready {
    prepared: Prepared,
    numbers: HashMap<String, u32>,
}

/// Rows of the dense view as input.
#[derive(Debug)]
struct DenseRows {
    spec: Arc<MomentsSpec>,
    source: Arc<dyn CellSource>,
    ready: Option<Ready>,
}

impl DenseRows {
    fn prepare(&self) -> Result<Ready> {
        let prepared = Prepared::new(&self.spec, self.source.as_ref())?;
        let names = self.source.cell_names(&self.spec.dataset)?;
        let names = as_text(&names)?;
        if names.len() != prepared.codes.len() {
            return Err(Error::corrupt(format!("{} has {} cell names for {} cells", self.spec.dataset, names.len(), prepared.codes.len())));
        }
        let mut numbers = HashMap::with_capacity(names.len());
        for (number, name) in names.as_string_view().iter().enumerate() {
            numbers.entry(name.unwrap_or_default().to_owned()).and_modify(|n| *n = AMBIGUOUS).or_insert(number as u32);
        }
        Ok(Ready { prepared, numbers })
    }
}

fn as_text(values: &ArrayRef) -> Result<ArrayRef> {
    cast(values, &DataType::Utf8View).map_err(|e| Error::invalid("cell names must be text").with_source(e))
}

impl Input for DenseRows {
    type Store = MomentStore;

    fn update(&mut self, store: &mut MomentStore, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, rows: usize) -> Result<()> {
        if self.ready.is_none() {
            self.ready = Some(self.prepare()?);
        }
        let (Some(ready), [cells, numbers, ..]) = (&self.ready, values) else { return Err(usage()) };
        store.reserve(&ready.prepared.names, rows)?;
        let cells = as_text(cells)?;
        let cells = cells.as_string_view();
        let numbers = numbers.as_primitive_opt::<Float64Type>().ok_or_else(usage)?;
        for (i, &row) in groups.iter().enumerate() {
            if !passes(filter, i) || numbers.is_null(i) {
                continue;
            }
            let name = if cells.is_null(i) { "" } else { cells.value(i) };
            let cell = match ready.numbers.get(name) {
                Some(&AMBIGUOUS) => {
                    return Err(Error::invalid(format!("several cells of {} are named {name:?}: cell_moments can't tell them apart here", self.spec.dataset)));
                }
                Some(&cell) => cell as usize,
                None => return Err(Error::not_found(format!("{} has no cell {name:?}", self.spec.dataset))),
            };
            let value = numbers.value(i);
            let y = match (&ready.prepared.totals, ready.prepared.formula) {
                (Some(totals), Some(formula)) => f64::from(formula.value(value as f32, totals.value(cell))),
                _ => value,
            };
            // Its square must be finite as well, because M2 is computed from squares.
            if !(y * y).is_finite() {
                return Err(Error::invalid(format!(
                    "the value {value} of cell {name:?} of {} has no {}",
                    self.spec.dataset,
                    self.spec.transform.map_or("finite moments".to_owned(), |t| t.to_string())
                )));
            }
            store.add(row, usize::from(ready.prepared.codes.as_slice()[cell]), y);
        }
        Ok(())
    }

    fn size(&self) -> usize {
        self.ready.as_ref().map_or(0, |r| r.prepared.size() + r.numbers.keys().map(|k| k.len() + 48).sum::<usize>())
    }

    fn fresh(&self) -> Self {
        Self { spec: Arc::clone(&self.spec), source: Arc::clone(&self.source), ready: None }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use skytether_common::Kind;

    use super::*;

    /// An error's text, causes included.
    fn told(error: &Error) -> String {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            text = format!("{text}: {inner}");
            cause = inner.source();
        }
        text
    }

    #[test]
    fn errors_of_groups_in_json_are_kept() {
        let dataset: DatasetName = "d.s".parse().unwrap();
        let of = Some((&dataset, "x"));
        for (of, text, why) in [
            (of, r#"{"obs":"cell_type","transform":"log1p_cp10k"}"#, "unknown field `transform`"),
            (of, r#"{"dataset":"d.s","matrix":"x","groups":{"obs":"c"},"transfrom":null}"#, "unknown field `transfrom`"),
            (of, r#"{"obs":"cell_type""#, "EOF"),
            (None, r#"{"dataset":"d.s","matrix":"x","groups":{"obs":"c"},"squares":"float16"}"#, "float16"),
        ] {
            let error = spec_of(of, text, None).unwrap_err();
            assert_eq!(error.kind(), if of.is_some() { Kind::Invalid } else { Kind::Unsupported });
            assert!(told(&error).contains(why), "{}", told(&error));
        }
    }
}
