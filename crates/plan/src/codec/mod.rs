//! Sub-plans as Substrait and back.
//!
//! Differences to what `datafusion-substrait` does by itself:
//!
//! - chains of AND and OR are one call with many arguments (protobuf readers accept a hundred nested messages);
//! - columns whose type Substrait has no name for travel as columns of type `null`, and the reader takes types from its
//!   own catalog: what the plan says is only compared;
//! - literals of dictionary types travel as casts, moments in zones other than UTC as moments in UTC;
//! - a reader takes nothing on trust: [`decode`] limits size, depth and width, checks every reference, and refuses by
//!   name what it does not know. Unknown *enhancements* change what a plan means and are refused; unknown
//!   *optimizations* are hints and ignored.

mod catch_panic;
mod consume;
mod expression;
pub(crate) mod limits;
mod produce;
mod short_names;
pub(crate) mod validate;

use std::collections::HashSet;

use bytes::Bytes;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion_substrait::extensions::Extensions;
use datafusion_substrait::logical_plan::producer::SubstraitProducer;
use datafusion_substrait::substrait::proto::{Plan, PlanRel, RelRoot, plan_rel};
use prost::Message;
use skytether_common::{Context, Error, Result};

use crate::error::from_datafusion;

pub(crate) use catch_panic::without_panic;
pub use expression::decode_expressions;
pub use limits::{MAX_BYTES, MAX_WIDTH};
pub(crate) use produce::nested as nested_names;

/// Encodes `plan` as a Substrait `Plan` with one root.
///
/// # Errors
/// Unsupported, naming what Substrait does not carry (nothing of what [`crate::cut()`] sends down), or a plan of
/// more than [`MAX_BYTES`].
pub fn encode(plan: &LogicalPlan, state: &SessionState) -> Result<Bytes> {
    let mut producer = produce::Producer::new(state);
    let root = producer.handle_plan(plan).map_err(from_datafusion).context(|| "cannot write the plan as substrait")?;
    let fields = plan.schema().fields();
    let taken: HashSet<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    let (mut names, mut used) = (vec![], HashSet::new());
    for (at, field) in fields.iter().enumerate() {
        // Columns of both sides of a join may share a name. Qualifiers distinguish them here; readers of the answer go
        // by position.
        let mut name = field.name().clone();
        if !used.insert(name.clone()) {
            while taken.contains(name.as_str()) || used.contains(&name) {
                name = format!("{name}:{at}");
            }
            used.insert(name.clone());
        }
        produce::flatten(&name, field.data_type(), &mut names);
    }
    let extensions = producer.get_extensions();
    let mut declared: Vec<_> = extensions.into();
    // The library keeps them in a hash map; sorted, equal plans have equal bytes.
    declared.sort_by_key(produce::declaration_order);
    let message = Plan {
        version: Some(datafusion_substrait::substrait::version::version_with_producer("skytether")),
        extensions: declared,
        relations: vec![PlanRel { rel_type: Some(plan_rel::RelType::Root(RelRoot { input: Some(*root), names })) }],
        ..Plan::default()
    };
    if message.encoded_len() > MAX_BYTES {
        return Err(Error::unsupported(format!("the plan takes {} bytes, more than the {MAX_BYTES} that may be sent", message.encoded_len())));
    }
    Ok(message.encode_to_vec().into())
}

/// Decodes a foreign Substrait `Plan` over the tables and functions of `state`.
///
/// # Errors
/// Invalid for bytes that are no plan, that contradict themselves or the tables; unsupported for relations,
/// expressions, functions and enhancements that this version does not know, by their names; not found for tables.
pub async fn decode(bytes: &[u8], state: &SessionState) -> Result<LogicalPlan> {
    if bytes.len() > MAX_BYTES {
        return Err(Error::invalid(format!("a plan of {} bytes is more than the {MAX_BYTES} that are accepted", bytes.len())));
    }
    // The protobuf reader itself stops at a hundred nested messages.
    let plan = Plan::decode(bytes).map_err(|e| Error::invalid("the bytes are no substrait plan").with_source(e))?;
    let functions = validate::plan(&plan, state)?;
    let extensions = Extensions { functions, ..Extensions::try_from(&plan.extensions).map_err(from_datafusion)? };
    let Some(plan_rel::RelType::Root(root)) = plan.relations.first().and_then(|r| r.rel_type.as_ref()) else {
        return Err(Error::invalid("the plan has no root relation"));
    };
    without_panic(consume::root(root, &extensions, state)).await
}
