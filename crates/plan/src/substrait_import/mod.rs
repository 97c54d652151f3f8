//! Plans of other producers, read into logical plans over our tables.
//!
//! [`crate::codec`] reads sub-plans, which the host wrote itself and whose contents drives know exactly. A foreign plan
//! may hold far more (joins, subqueries, sets, windows), names functions and columns its own way, and has no aliases.
//! So the relations are built here. `datafusion-substrait` only turns single types, literals and functions into
//! DataFusion's.
//!
//! | module | subject |
//! |---|---|
//! | here | the bytes |
//! | `limits`, `table_lookup` | how much a plan may hold; the look-up of the tables that it names |
//! | `consume` | relations |
//! | `aggregate` | aggregation, with grouping sets and functions that go by other names |
//! | `expressions` | expressions and their checks |
//! | `functions` | functions: other names, enumerations among the arguments, options |
//! | `read` | tables and rows that are spelt out |
//!
//! **Columns have unique names.** Substrait refers to columns by number, DataFusion by name, and a plan may read one
//! table five times. Each read has its own alias, and each computed column too. So a name never means two columns, not
//! even across a correlated subquery.

mod aggregate;
mod consume;
mod expressions;
mod functions;
mod limits;
mod read;
mod table_lookup;

use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion_substrait::extensions::Extensions;
use datafusion_substrait::substrait::proto::extensions::simple_extension_declaration::MappingType;
use datafusion_substrait::substrait::proto::{Plan, Rel, plan_rel};
use prost::Message;
use skytether_common::{Context, Error, Kind, Result};

use crate::codec::{validate, without_panic};
use crate::error::from_datafusion;

pub use limits::Limits;
pub use table_lookup::TableLookup;

/// A decoded plan. [`ImportedPlan::logical`] binds it to tables.
#[derive(Debug)]
pub struct ImportedPlan {
    plan: Plan,
    limits: Limits,
    functions: functions::Declared,
}

impl ImportedPlan {
    /// Decodes the bytes of a Substrait `Plan`.
    ///
    /// # Errors
    /// Invalid for bytes that are no plan or more than `limits` allow; unsupported for enhancements and parameter
    /// bindings, and for plans with several roots.
    pub fn decode(bytes: &[u8], limits: Limits) -> Result<Self> {
        if bytes.len() > limits.bytes {
            return Err(Error::invalid(format!("a plan of {} bytes is too long: at most {}", bytes.len(), limits.bytes)));
        }
        let plan = Plan::decode(bytes).map_err(|e| Error::invalid("the bytes are no substrait plan").with_source(e))?;
        validate::enhancement(plan.advanced_extensions.as_ref())?;
        if !plan.parameter_bindings.is_empty() {
            return Err(Error::unsupported("the plan binds parameters itself, which is not supported: bind them where it is run"));
        }
        let functions = functions::Declared::of(&plan)?;
        Ok(Self { plan, limits, functions })
    }

    /// The logical plan over the tables that `tables` finds.
    ///
    /// # Errors
    /// Unsupported for relations, expressions, functions and their options that this engine does not know, by name;
    /// invalid for a plan that contradicts itself or its tables, or is too large; and what `tables` says.
    pub async fn logical(&self, state: &SessionState, tables: &dyn TableLookup) -> Result<LogicalPlan> {
        let mut root = None;
        for relation in &self.plan.relations {
            if let Some(plan_rel::RelType::Root(r)) = &relation.rel_type
                && root.replace(r).is_some()
            {
                return Err(Error::unsupported("the plan has more than one root relation; this engine takes one"));
            }
        }
        let shared: Vec<Option<&Rel>> = self
            .plan
            .relations
            .iter()
            .map(|r| match &r.rel_type {
                Some(plan_rel::RelType::Rel(rel)) => Some(rel),
                _ => None,
            })
            .collect();
        let (input, names) = match (root, shared.as_slice()) {
            (Some(root), _) => (root.input.as_ref(), root.names.as_slice()),
            (None, [Some(only)]) => (Some(*only), &[][..]),
            _ => return Err(Error::invalid("the plan has no root relation")),
        };
        let input = input.ok_or_else(|| Error::invalid("the plan's root has no input"))?;
        validate::width(names.len(), "names")?;
        let extensions = self.extensions()?;
        let work = async {
            let consumer = consume::Consumer::new(state, &extensions, &self.functions, tables, &shared, self.limits);
            consumer.root(input, names).await.map_err(from_datafusion).context(|| "cannot read the plan")
        };
        without_panic(work).await.map_err(blame)
    }

    fn extensions(&self) -> Result<Extensions> {
        let mut extensions = Extensions::default();
        for declaration in &self.plan.extensions {
            if let Some(MappingType::ExtensionType(t)) = &declaration.mapping_type {
                extensions.types.insert(t.type_anchor, t.name.clone());
            }
        }
        for (anchor, name) in self.functions.names() {
            extensions.functions.insert(anchor, name.to_owned());
        }
        Ok(extensions)
    }
}

/// Turns an internal error of DataFusion over a foreign plan into an error of the plan, whose types had no check
/// before.
#[must_use]
pub fn blame(error: Error) -> Error {
    if error.kind() == Kind::Internal { Error::unsupported("the plan can't be run by this engine").with_source(error) } else { error }
}
