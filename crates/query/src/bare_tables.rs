//! Tables that a query names by one part. They name no data set: only `WITH` and functions have such names.

use datafusion::common::{DataFusionError, TableReference};
use datafusion::logical_expr::planner::RelationPlannerContext;
use datafusion::sql::sqlparser::ast::TableFactor;
use skytether_common::{Detail, Error};
use skytether_plan::error::to_datafusion;

/// A table of one part: its name, and the relation that is nothing but the table.
#[derive(Debug)]
pub(crate) struct BareTable {
    name: String,
    only: TableFactor,
}

impl BareTable {
    /// What `relation` is, if it is such a table.
    pub(crate) fn of(relation: &TableFactor, context: &dyn RelationPlannerContext) -> Option<Self> {
        let TableFactor::Table { name, args: None, .. } = relation else { return None };
        let Ok(TableReference::Bare { table }) = context.object_name_to_table_reference(name.clone()) else { return None };
        let mut only = relation.clone();
        if let TableFactor::Table { alias, sample, .. } = &mut only {
            (*alias, *sample) = (None, None);
        }
        Some(Self { name: table.to_string(), only })
    }

    /// The relation without its alias and sample: where it can't be planned, there is no such table.
    pub(crate) fn only(&self) -> TableFactor {
        self.only.clone()
    }

    /// The error where there is no such table. A name with a dot in quotes is left to the planner.
    pub(crate) fn missing(self) -> Option<DataFusionError> {
        let name = self.name;
        if name.contains('.') {
            return None;
        }
        let text = format!(
            "there is no table {name:?} in the query: a data set is named domain.dataset, a table in it domain.dataset.table; `skytether ls` lists them"
        );
        Some(to_datafusion(Error::not_found(text).with_detail(Detail::MissingTable { table: name })))
    }
}
