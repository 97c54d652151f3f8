//! Which part of each operator goes down: all of it, a limit, a state, or nothing.

use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{Aggregate, Expr, FetchType, Limit, LogicalPlan, SkipType, Sort, Window};

use crate::expressions::{check, check_aggregate, check_window};
use crate::partial::form_names;
use crate::partition::Whole;
use crate::size::{most_bytes, repeats};
use crate::split::finest;
use crate::wide_projection::known;
use skytether_common::Pushdown;
use skytether_partitioning::Placement;

/// Most operators of one sub-plan. Each takes two of the hundred nested messages that protobuf readers accept.
pub const MAX_OPERATORS: usize = 12;

/// The most rows that drives sort for the first ones: what a drive must hold in memory.
pub const MAX_TOP: usize = 100_000;

/// The most bytes that all drives together sort.
pub const MAX_SORTED: u64 = 64 << 20;

/// Which part of an operator goes down, where its input does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// All of it goes down.
    Whole,
    /// A limit of `skip + fetch` rows goes down; the operator stays above as well.
    Limit(usize),
    /// It goes down and stays above as well: each drive sends its rows in order, or the first of them, and the host
    /// merges them.
    Top,
    /// States go down; a merge stays above.
    Split,
    /// It stays above; why, in words.
    Host(String),
}

/// The part of the plan below the operator, which goes down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The placement of the table.
    pub placement: Placement,
    /// Whether a limit went down per drive. Then the input has too many rows, and not the right ones to filter or to
    /// count.
    pub limited: bool,
    /// Operators of the sub-plan so far.
    pub operators: usize,
    /// The most rows on all drives together, where known.
    pub rows: Option<u64>,
    /// The bytes of all rows of the table in memory, where known.
    pub bytes: Option<u64>,
    /// The most rows on one drive, where known.
    pub most_rows: Option<u64>,
    /// Whether the table is partitioned by key.
    pub by_key: bool,
    /// The columns of the partitioning key that are still there: rows with equal values in them are on one drive.
    pub whole: Option<Whole>,
}

/// What may be done with `node`, whose input goes down as `input` says. A pure function; this is the one list of
/// operators that go down.
///
/// One drive reads a table that is `Everywhere`, so each operator of the list goes down whole there, aggregates
/// included. So do aggregates and windows by the keys that a table is partitioned by.
#[must_use]
pub fn classify(node: &LogicalPlan, input: &Input, policy: Pushdown, registry: &dyn FunctionRegistry) -> Class {
    if policy == Pushdown::Raw {
        return Class::Host("cut=raw sends only scans down".into());
    }
    if input.operators >= MAX_OPERATORS {
        return Class::Host(format!("a sub-plan holds at most {MAX_OPERATORS} operators"));
    }
    match node {
        LogicalPlan::SubqueryAlias(_) => Class::Whole,
        LogicalPlan::Projection(p) => all(p.expr.iter(), p.input.schema(), registry),
        LogicalPlan::Filter(_) if input.limited => after_limit(),
        LogicalPlan::Filter(f) => all([&f.predicate], f.input.schema(), registry),
        LogicalPlan::Limit(l) => limit(l, input),
        LogicalPlan::Sort(_) if policy == Pushdown::Filter => Class::Host("cut=filter sends no sorts down".into()),
        LogicalPlan::Sort(_) if input.limited => after_limit(),
        LogicalPlan::Sort(s) => sort(s, input, registry),
        LogicalPlan::Aggregate(_) if policy == Pushdown::Filter => Class::Host("cut=filter sends no aggregates down".into()),
        LogicalPlan::Aggregate(_) if input.limited => after_limit(),
        LogicalPlan::Aggregate(a) => aggregate(a, input, registry),
        LogicalPlan::Window(_) if policy == Pushdown::Filter => Class::Host("cut=filter sends no windows down".into()),
        LogicalPlan::Window(_) if input.limited => after_limit(),
        LogicalPlan::Window(w) => window(w, input, registry),
        other => Class::Host(why_not(other)),
    }
}

/// Why an operator that is not in [`classify()`]'s list stays on the host, in words.
#[must_use]
pub fn why_not(node: &LogicalPlan) -> String {
    match node {
        LogicalPlan::Window(_) => "windows are formed on the host: rows of one window may lie on different drives".into(),
        LogicalPlan::Union(_) => "its inputs go down one by one, and their rows come together on the host".into(),
        LogicalPlan::Distinct(_) => "rows that are the same may lie on different drives".into(),
        LogicalPlan::RecursiveQuery(_) => "each round of a recursive query needs the rows of the round before, from all drives".into(),
        other => format!("sub-plans do not carry the operator {}", operator_name(other)),
    }
}

/// An operator's name as people read it: `Filter`, `Aggregate`, `Inner Join`.
#[must_use]
pub fn operator_name(node: &LogicalPlan) -> String {
    let text = node.display().to_string();
    text.split(':').next().unwrap_or_default().trim().to_owned()
}

fn after_limit() -> Class {
    Class::Host("the limit below it holds for all drives together".into())
}

fn all<'e>(exprs: impl IntoIterator<Item = &'e Expr>, schema: &datafusion::common::DFSchema, registry: &dyn FunctionRegistry) -> Class {
    let exprs: Vec<_> = exprs.into_iter().collect();
    match known(schema, exprs.len(), |schema| exprs.into_iter().try_for_each(|e| check(e, schema, registry))) {
        Ok(()) => Class::Whole,
        Err(why) => Class::Host(why),
    }
}

fn limit(node: &Limit, input: &Input) -> Class {
    let (Ok(SkipType::Literal(skip)), Ok(FetchType::Literal(fetch))) = (node.get_skip_type(), node.get_fetch_type()) else {
        return Class::Host("the limit is no plain number".into());
    };
    match (input.placement, fetch.and_then(|f| f.checked_add(skip))) {
        (Placement::Everywhere, _) => Class::Whole,
        (Placement::Spread, Some(rows)) => Class::Limit(rows),
        (Placement::Spread, None) => Class::Host("an offset without a limit counts rows over all drives".into()),
    }
}

fn sort(node: &Sort, input: &Input, registry: &dyn FunctionRegistry) -> Class {
    let keys = all(node.expr.iter().map(|key| &key.expr), node.input.schema(), registry);
    if keys != Class::Whole {
        return keys;
    }
    match node.fetch {
        Some(rows) if rows > MAX_TOP => return Class::Host(format!("drives sort for at most {MAX_TOP} first rows, not {rows}")),
        Some(rows) if bytes_of_first(node, input, rows as u64).is_some_and(|bytes| bytes > MAX_SORTED) => {
            return Class::Host(format!("the first {rows} rows need more room than drives give to a sort"));
        }
        None if input.rows.and_then(|rows| most_bytes(&node.input, rows, &|_| input.bytes)).is_none_or(|bytes| bytes > MAX_SORTED) => {
            return Class::Host("a sort of all rows needs room for all of them, which the host has".into());
        }
        _ => {}
    }
    match input.placement {
        Placement::Everywhere => Class::Whole,
        Placement::Spread => Class::Top,
    }
}

/// About how many bytes the first `first` rows of a sort take on a drive. Rows of unknown length may be [`SKEW`] times
/// as long as the average, but not longer than all rows together. `None` where the total is unknown too.
fn bytes_of_first(node: &Sort, input: &Input, first: u64) -> Option<u64> {
    let (rows, bytes) = (input.rows?, input.bytes?);
    let long = (bytes / rows.max(1)).saturating_mul(first.min(rows)).saturating_mul(SKEW).min(bytes);
    most_bytes(&node.input, first.min(rows), &|_| Some(long))
}

/// How much longer than the average the first rows may be.
const SKEW: u64 = 4;

/// Windows go down if each window's rows are all on one drive, which has room to sort them.
fn window(node: &Window, input: &Input, registry: &dyn FunctionRegistry) -> Class {
    let schema = node.input.schema();
    for expr in &node.window_expr {
        let call = match check_window(expr, schema, registry) {
            Ok(call) => call,
            Err(why) => return Class::Host(why),
        };
        match (input.placement, &input.whole) {
            (Placement::Everywhere, _) => {}
            (Placement::Spread, Some(whole)) if whole.holds(&call.params.partition_by, schema) => {}
            (Placement::Spread, _) if input.by_key => {
                return Class::Host("the table is partitioned by other columns than its windows, whose rows may lie on different drives".into());
            }
            (Placement::Spread, _) => return Class::Host(why_not(&LogicalPlan::Window(node.clone()))),
        }
    }
    if repeats(node) {
        return Class::Host("its windows may repeat a long text for many rows, for which a drive may have no room".into());
    }
    match input.most_rows.and_then(|rows| most_bytes(&node.input, rows, &|_| input.bytes)) {
        Some(bytes) if bytes <= MAX_SORTED => Class::Whole,
        _ => Class::Host("its windows may need more room than a drive has, which sorts in memory".into()),
    }
}

fn aggregate(node: &Aggregate, input: &Input, registry: &dyn FunctionRegistry) -> Class {
    let schema = node.input.schema();
    let sets = matches!(node.group_expr.as_slice(), [Expr::GroupingSet(_)]);
    // Of grouping sets, the groups that all of them are made of go down; the host forms the sets from those.
    let groups = finest(&node.group_expr);
    if groups.is_empty() && !node.group_expr.is_empty() {
        return Class::Host("its grouping sets name nothing to group by".into());
    }
    for group in &groups {
        if let Err(why) = check(group, schema, registry) {
            return Class::Host(why);
        }
    }
    let whole = !sets && (input.placement == Placement::Everywhere || input.whole.as_ref().is_some_and(|whole| whole.holds(&groups, schema)));
    let calls =
        known(schema, node.aggr_expr.len(), |schema| node.aggr_expr.iter().map(|expr| check_aggregate(expr, schema, registry)).collect::<Result<Vec<_>, _>>());
    let calls = match calls {
        Ok(calls) => calls,
        Err(why) => return Class::Host(why),
    };
    for call in calls.into_iter().filter(|_| !whole) {
        let name = call.func.name();
        let Some((state, merge)) = form_names(name, call.params.distinct) else {
            return Class::Host(format!("{name}(DISTINCT ...) needs all rows in one place"));
        };
        if registry.udaf(&state).is_err() || registry.udaf(&merge).is_err() {
            return Class::Host(format!("{name} has no form that returns its state"));
        }
    }
    if whole { Class::Whole } else { Class::Split }
}
