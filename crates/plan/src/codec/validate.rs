//! Validates a foreign plan before anything is built from it.
//!
//! `datafusion-substrait` indexes schemas with numbers from the message and unwraps what may be absent. So everything
//! that it trusts is checked here, and what this version does not run is refused by name.

use datafusion::common::HashMap;
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion_substrait::logical_plan::consumer::{name_to_op, substrait_fun_name, substrait_to_df_name};
use datafusion_substrait::substrait::proto::expression::field_reference::{ReferenceType, RootType};
use datafusion_substrait::substrait::proto::expression::literal::LiteralType;
use datafusion_substrait::substrait::proto::expression::window_function::bound::Kind as BoundKind;
use datafusion_substrait::substrait::proto::expression::window_function::{Bound, BoundsType};
use datafusion_substrait::substrait::proto::expression::{FieldReference, Literal, RexType, WindowFunction, reference_segment};
use datafusion_substrait::substrait::proto::extensions::AdvancedExtension;
use datafusion_substrait::substrait::proto::extensions::simple_extension_declaration::MappingType;
use datafusion_substrait::substrait::proto::function_argument::ArgType;
use datafusion_substrait::substrait::proto::join_rel::JoinType;
use datafusion_substrait::substrait::proto::read_rel::ReadType;
use datafusion_substrait::substrait::proto::rel::RelType;
use datafusion_substrait::substrait::proto::rel_common::EmitKind;
use datafusion_substrait::substrait::proto::sort_field::SortKind;
use datafusion_substrait::substrait::proto::r#type::Kind;
use datafusion_substrait::substrait::proto::{AggregateRel, Expression, FunctionArgument, JoinRel, Plan, ReadRel, Rel, RelCommon, Type, fetch_rel, plan_rel};
use skytether_common::{Error, Result};

use super::limits::MAX_WIDTH;

/// Functions that `datafusion-substrait` makes expressions of, of those that our own plans have (its
/// `BuiltinExprBuilder`, which is not public).
pub(crate) const BUILT_IN: [&str; 20] = [
    "not",
    "like",
    "ilike",
    "like_match",
    "like_imatch",
    "like_not_match",
    "like_not_imatch",
    "is_null",
    "is_not_null",
    "is_true",
    "is_false",
    "is_not_true",
    "is_not_false",
    "is_unknown",
    "is_not_unknown",
    "negative",
    "negate",
    "and_not",
    "between",
    "logb",
];

/// Checks `plan` and returns its functions, by anchor.
pub(super) fn plan(plan: &Plan, state: &SessionState) -> Result<HashMap<u32, String>> {
    enhancement(plan.advanced_extensions.as_ref())?;
    if !plan.parameter_bindings.is_empty() {
        return Err(Error::unsupported("the plan binds parameters, which this engine does not know"));
    }
    let mut functions = HashMap::new();
    width(plan.extensions.len(), "declarations")?;
    for declaration in &plan.extensions {
        match &declaration.mapping_type {
            Some(MappingType::ExtensionFunction(f)) => {
                functions.insert(f.function_anchor, f.name.clone());
            }
            Some(MappingType::ExtensionType(_)) => {}
            Some(MappingType::ExtensionTypeVariation(v)) => {
                return Err(Error::unsupported(format!("the plan uses the type variation {:?}, which this engine does not know", v.name)));
            }
            None => return Err(Error::invalid("the plan declares nothing by a declaration")),
        }
    }
    let check = Check { state, functions };
    let [relation] = plan.relations.as_slice() else {
        return Err(Error::unsupported(format!("the plan has {} root relations; this engine takes one", plan.relations.len())));
    };
    match &relation.rel_type {
        Some(plan_rel::RelType::Root(root)) => {
            width(root.names.len(), "names")?;
            check.rel(present(root.input.as_ref(), "root", "input")?)?;
        }
        _ => return Err(Error::invalid("the plan's relation is no root with names")),
    }
    Ok(check.functions)
}

/// Checks expressions over `columns` columns that call `functions`.
pub(super) fn expressions<'e>(
    expressions: impl IntoIterator<Item = &'e Expression>,
    functions: &HashMap<u32, String>,
    columns: usize,
    state: &SessionState,
) -> Result<()> {
    let check = Check { state, functions: functions.clone() };
    expressions.into_iter().try_for_each(|e| check.expr(e, columns))
}

struct Check<'a> {
    state: &'a SessionState,
    functions: HashMap<u32, String>,
}

impl Check<'_> {
    /// Checks a relation and those below it. Returns the number of its columns.
    fn rel(&self, rel: &Rel) -> Result<usize> {
        let Some(kind) = &rel.rel_type else {
            return Err(Error::invalid("the plan has a relation without a type"));
        };
        let (common, columns) = match kind {
            RelType::Read(r) => {
                enhancement(r.advanced_extension.as_ref())?;
                (&r.common, self.read(r)?)
            }
            RelType::Filter(r) => {
                enhancement(r.advanced_extension.as_ref())?;
                let columns = self.rel(present(r.input.as_deref(), "filter", "input")?)?;
                self.expr(present(r.condition.as_deref(), "filter", "condition")?, columns)?;
                (&r.common, columns)
            }
            RelType::Project(r) => {
                enhancement(r.advanced_extension.as_ref())?;
                let columns = self.rel(present(r.input.as_deref(), "projection", "input")?)?;
                width(r.expressions.len(), "expressions")?;
                r.expressions.iter().try_for_each(|e| self.projected(e, columns))?;
                (&r.common, columns + r.expressions.len())
            }
            RelType::Fetch(r) => {
                enhancement(r.advanced_extension.as_ref())?;
                let columns = self.rel(present(r.input.as_deref(), "limit", "input")?)?;
                if let Some(fetch_rel::OffsetMode::OffsetExpr(e)) = &r.offset_mode {
                    self.expr(e, 0)?;
                }
                if let Some(fetch_rel::CountMode::CountExpr(e)) = &r.count_mode {
                    self.expr(e, 0)?;
                }
                (&r.common, columns)
            }
            RelType::Sort(r) => {
                enhancement(r.advanced_extension.as_ref())?;
                let columns = self.rel(present(r.input.as_deref(), "sort", "input")?)?;
                for field in &r.sorts {
                    self.expr(present(field.expr.as_ref(), "sort", "expression")?, columns)?;
                    if !matches!(field.sort_kind, Some(SortKind::Direction(1..=4))) {
                        return Err(Error::unsupported("the plan sorts by an order that this engine does not know"));
                    }
                }
                (&r.common, columns)
            }
            RelType::Aggregate(r) => {
                enhancement(r.advanced_extension.as_ref())?;
                (&r.common, self.aggregate(r)?)
            }
            RelType::Join(r) => {
                enhancement(r.advanced_extension.as_ref())?;
                (&r.common, self.join(r)?)
            }
            other => {
                let name = variant(other);
                return Err(Error::unsupported(format!("the plan has a relation of type {name}, which this engine does not run")));
            }
        };
        emitted(common.as_ref(), columns)
    }

    fn read(&self, r: &ReadRel) -> Result<usize> {
        match &r.read_type {
            Some(ReadType::NamedTable(t)) => {
                enhancement(t.advanced_extension.as_ref())?;
                if !(1..=3).contains(&t.names.len()) {
                    return Err(Error::invalid(format!("a table has one to three names, not {}", t.names.len())));
                }
            }
            Some(_) => return Err(Error::unsupported("the plan reads something other than a named table")),
            None => return Err(Error::invalid("the plan reads from nowhere")),
        }
        let base = present(r.base_schema.as_ref(), "read", "schema")?;
        let columns = present(base.r#struct.as_ref(), "read", "schema")?.types.as_slice();
        width(columns.len(), "columns")?;
        width(base.names.len(), "names")?;
        columns.iter().try_for_each(type_of)?;
        if let Some(filter) = &r.filter {
            self.expr(filter, columns.len())?;
        }
        let Some(select) = r.projection.as_ref().and_then(|p| p.select.as_ref()) else {
            return Ok(columns.len());
        };
        width(select.struct_items.len(), "columns")?;
        for item in &select.struct_items {
            index(item.field, columns.len())?;
            if item.child.is_some() {
                return Err(Error::unsupported("the plan reads parts of a column"));
            }
        }
        Ok(select.struct_items.len())
    }

    fn join(&self, r: &JoinRel) -> Result<usize> {
        let left = self.rel(present(r.left.as_deref(), "join", "left side")?)?;
        let right = self.rel(present(r.right.as_deref(), "join", "right side")?)?;
        self.expr(present(r.expression.as_deref(), "join", "condition")?, left + right)?;
        if r.post_join_filter.is_some() {
            return Err(Error::unsupported("the plan filters within a join after joining, which this engine does not know"));
        }
        match JoinType::try_from(r.r#type) {
            Ok(JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Outer) => Ok(left + right),
            Ok(JoinType::LeftSemi | JoinType::LeftAnti) => Ok(left),
            Ok(JoinType::RightSemi | JoinType::RightAnti) => Ok(right),
            Ok(other) => Err(Error::unsupported(format!("the plan has a join of type {other:?}, which this engine does not run"))),
            Err(_) => Err(Error::unsupported(format!("the plan has a join of type {}, which this engine does not know", r.r#type))),
        }
    }

    /// An expression of a projection, which may be a call over a window.
    fn projected(&self, expr: &Expression, columns: usize) -> Result<()> {
        match &expr.rex_type {
            Some(RexType::WindowFunction(call)) => self.window(call, columns),
            _ => self.expr(expr, columns),
        }
    }

    fn window(&self, call: &WindowFunction, columns: usize) -> Result<()> {
        let name = self.function(call.function_reference)?;
        if self.state.udwf(name).is_err() && self.state.udaf(name).is_err() {
            return Err(Error::unsupported(format!("the plan calls {name:?} over a window, which this engine does not know")));
        }
        // The library reads neither of them: a plan that uses them would mean something else than what runs.
        if !call.options.is_empty() || !matches!(call.invocation, 0 | 1) || !matches!(call.phase, 0 | 3) {
            return Err(Error::unsupported(format!(
                "the plan calls {name:?} over a window with an option, an invocation or a phase that this engine does not know"
            )));
        }
        self.arguments(&call.arguments, columns)?;
        width(call.partitions.len(), "partitions")?;
        call.partitions.iter().try_for_each(|e| self.expr(e, columns))?;
        width(call.sorts.len(), "sorts")?;
        for field in &call.sorts {
            self.expr(present(field.expr.as_ref(), "sort", "expression")?, columns)?;
            if !matches!(field.sort_kind, Some(SortKind::Direction(1..=4))) {
                return Err(Error::unsupported("the plan sorts by an order that this engine does not know"));
            }
        }
        let rows = match BoundsType::try_from(call.bounds_type) {
            Ok(BoundsType::Rows) => true,
            Ok(BoundsType::Range) => false,
            _ => return Err(Error::unsupported(format!("the plan has a window frame of type {}, which this engine does not know", call.bounds_type))),
        };
        let lower = frame_bound(call.lower_bound.as_ref(), rows, i64::MIN)?;
        let upper = frame_bound(call.upper_bound.as_ref(), rows, i64::MAX)?;
        if lower > upper {
            return Err(Error::invalid("the plan has a window frame that ends before it begins"));
        }
        Ok(())
    }

    fn aggregate(&self, r: &AggregateRel) -> Result<usize> {
        let columns = self.rel(present(r.input.as_deref(), "aggregate", "input")?)?;
        width(r.grouping_expressions.len(), "groups")?;
        width(r.measures.len(), "aggregates")?;
        r.grouping_expressions.iter().try_for_each(|e| self.expr(e, columns))?;
        let groups = match r.groupings.as_slice() {
            [] => 0,
            [grouping] => {
                #[expect(deprecated, reason = "producers still write both forms")]
                let inline = &grouping.grouping_expressions;
                width(inline.len(), "groups")?;
                width(grouping.expression_references.len(), "groups")?;
                inline.iter().try_for_each(|e| self.expr(e, columns))?;
                for reference in &grouping.expression_references {
                    if *reference as usize >= r.grouping_expressions.len() {
                        return Err(Error::invalid(format!("the plan groups by expression {reference} of {}", r.grouping_expressions.len())));
                    }
                }
                if inline.is_empty() { grouping.expression_references.len() } else { inline.len() }
            }
            _ => return Err(Error::unsupported("the plan has grouping sets, which this engine does not run")),
        };
        for measure in &r.measures {
            if let Some(filter) = &measure.filter {
                self.expr(filter, columns)?;
            }
            let call = present(measure.measure.as_ref(), "aggregate", "function")?;
            let name = self.function(call.function_reference)?;
            if self.state.udaf(name).is_err() {
                return Err(Error::unsupported(format!("the plan calls the aggregate {name:?}, which this engine does not know")));
            }
            self.arguments(&call.arguments, columns)?;
            width(call.sorts.len(), "sorts")?;
            for field in &call.sorts {
                self.expr(present(field.expr.as_ref(), "sort", "expression")?, columns)?;
            }
        }
        Ok(groups + r.measures.len())
    }

    fn function(&self, anchor: u32) -> Result<&str> {
        match self.functions.get(&anchor) {
            Some(name) => Ok(substrait_fun_name(name)),
            None => Err(Error::invalid(format!("the plan calls function {anchor} without declaring it"))),
        }
    }

    fn arguments(&self, arguments: &[FunctionArgument], columns: usize) -> Result<()> {
        width(arguments.len(), "arguments")?;
        for argument in arguments {
            match &argument.arg_type {
                Some(ArgType::Value(e)) => self.expr(e, columns)?,
                Some(_) => return Err(Error::unsupported("the plan calls a function with an argument that is no value")),
                None => return Err(Error::invalid("the plan calls a function with an empty argument")),
            }
        }
        Ok(())
    }

    fn expr(&self, expr: &Expression, columns: usize) -> Result<()> {
        let Some(kind) = &expr.rex_type else {
            return Err(Error::invalid("the plan has an expression without a type"));
        };
        match kind {
            RexType::Literal(l) => literal(l),
            RexType::Selection(reference) => field(reference, columns),
            RexType::ScalarFunction(f) => {
                let name = self.function(f.function_reference)?;
                let known = BUILT_IN.contains(&name)
                    || name == "xor"
                    || name_to_op(name).is_some()
                    || self.state.udf(name).is_ok()
                    || substrait_to_df_name(name).is_some();
                if !known {
                    return Err(Error::unsupported(format!("the plan calls the function {name:?}, which this engine does not know")));
                }
                self.arguments(&f.arguments, columns)
            }
            RexType::IfThen(e) => {
                width(e.ifs.len(), "branches")?;
                if e.ifs.iter().all(|clause| clause.then.is_none()) {
                    return Err(Error::invalid("the plan has a case without branches"));
                }
                for (i, clause) in e.ifs.iter().enumerate() {
                    self.expr(present(clause.r#if.as_ref(), "case", "condition")?, columns)?;
                    match &clause.then {
                        Some(then) => self.expr(then, columns)?,
                        // The first may hold the operand that the others are compared with.
                        None if i == 0 => {}
                        None => return Err(Error::invalid("the plan has a case without a result")),
                    }
                }
                e.r#else.as_deref().map_or(Ok(()), |e| self.expr(e, columns))
            }
            RexType::SingularOrList(e) => {
                self.expr(present(e.value.as_deref(), "list", "value")?, columns)?;
                width(e.options.len(), "options")?;
                e.options.iter().try_for_each(|o| self.expr(o, columns))
            }
            RexType::Cast(e) => {
                type_of(present(e.r#type.as_ref(), "cast", "type")?)?;
                self.expr(present(e.input.as_deref(), "cast", "input")?, columns)
            }
            other => {
                let name = variant(other);
                Err(Error::unsupported(format!("the plan has an expression of type {name}, which this engine does not know")))
            }
        }
    }
}

/// A bound of a window's frame as a distance from the current row, where `open` is that of an open one.
fn frame_bound(bound: Option<&Bound>, rows: bool, open: i64) -> Result<i64> {
    let offset = |offset: i64| match offset {
        _ if !rows => Err(Error::unsupported("the plan has a window frame by a range of values, which this engine does not take")),
        1.. => Ok(offset),
        _ => Err(Error::invalid(format!("the plan has a window frame with the offset {offset}, which is not positive"))),
    };
    match &present(bound, "window frame", "bound")?.kind {
        Some(BoundKind::CurrentRow(_)) => Ok(0),
        Some(BoundKind::Unbounded(_)) => Ok(open),
        Some(BoundKind::Preceding(b)) => offset(b.offset).map(|n| -n),
        Some(BoundKind::Following(b)) => offset(b.offset),
        None => Err(Error::invalid("the plan has a window frame with an empty bound")),
    }
}

fn field(reference: &FieldReference, columns: usize) -> Result<()> {
    if !matches!(reference.root_type, None | Some(RootType::RootReference(_))) {
        return Err(Error::unsupported("the plan refers to something other than the columns of its input"));
    }
    let Some(ReferenceType::DirectReference(segment)) = &reference.reference_type else {
        return Err(Error::unsupported("the plan refers to columns by a mask"));
    };
    match &segment.reference_type {
        Some(reference_segment::ReferenceType::StructField(f)) if f.child.is_none() => index(f.field, columns),
        _ => Err(Error::unsupported("the plan refers to parts of a column by a path")),
    }
}

pub(crate) fn literal(l: &Literal) -> Result<()> {
    use LiteralType as L;
    match &l.literal_type {
        Some(L::Null(t)) => type_of(t),
        Some(L::Decimal(d)) => decimal(d.precision, d.scale, 38),
        Some(
            L::Boolean(_)
            | L::I8(_)
            | L::I16(_)
            | L::I32(_)
            | L::I64(_)
            | L::Fp32(_)
            | L::Fp64(_)
            | L::String(_)
            | L::Binary(_)
            | L::FixedBinary(_)
            | L::Date(_)
            | L::PrecisionTime(_)
            | L::PrecisionTimestamp(_)
            | L::PrecisionTimestampTz(_)
            | L::VarChar(_)
            | L::FixedChar(_),
        ) => Ok(()),
        Some(L::IntervalYearToMonth(i)) => match i.years.checked_mul(12).and_then(|y| y.checked_add(i.months)) {
            Some(_) => Ok(()),
            None => Err(Error::invalid("the plan has an interval of too many months")),
        },
        Some(L::IntervalDayToSecond(i)) => interval(i.seconds, i.subseconds),
        Some(L::IntervalCompound(i)) => {
            let months = i.interval_year_to_month.as_ref().map(|m| m.years.checked_mul(12).and_then(|y| y.checked_add(m.months)));
            if months == Some(None) {
                return Err(Error::invalid("the plan has an interval of too many months"));
            }
            i.interval_day_to_second.as_ref().map_or(Ok(()), |d| interval(d.seconds, d.subseconds))
        }
        Some(other) => {
            let name = variant(other);
            Err(Error::unsupported(format!("the plan has a literal of type {name}, which this engine does not take")))
        }
        None => Err(Error::invalid("the plan has an empty literal")),
    }
}

/// Seconds and their fraction must fit the engine's 64 bits of nanoseconds and 32 bits of milliseconds.
fn interval(seconds: i32, subseconds: i64) -> Result<()> {
    if seconds.checked_mul(1000).is_none() && subseconds != 0 || subseconds.unsigned_abs() >= 1_000_000_000 {
        return Err(Error::invalid("the plan has an interval of too many seconds"));
    }
    Ok(())
}

fn decimal(precision: i32, scale: i32, most: i32) -> Result<()> {
    if !(1..=most).contains(&precision) || scale > precision || scale < -most {
        return Err(Error::invalid(format!("the plan has a decimal of precision {precision} and scale {scale}")));
    }
    Ok(())
}

pub(crate) fn type_of(t: &Type) -> Result<()> {
    match &t.kind {
        None => Err(Error::invalid("the plan has a type without a kind")),
        Some(Kind::Decimal(d)) => decimal(d.precision, d.scale, 76),
        Some(Kind::FixedBinary(b)) if !(0..=1 << 20).contains(&b.length) => Err(Error::invalid(format!("the plan has a binary type of {} bytes", b.length))),
        Some(Kind::List(l)) => type_of(present(l.r#type.as_deref(), "list type", "item")?),
        Some(Kind::Map(m)) => {
            type_of(present(m.key.as_deref(), "map type", "key")?)?;
            type_of(present(m.value.as_deref(), "map type", "value")?)
        }
        Some(Kind::Struct(s)) => {
            width(s.types.len(), "fields")?;
            s.types.iter().try_for_each(type_of)
        }
        Some(_) => Ok(()),
    }
}

fn emitted(common: Option<&RelCommon>, columns: usize) -> Result<usize> {
    let Some(common) = common else { return Ok(columns) };
    enhancement(common.advanced_extension.as_ref())?;
    match &common.emit_kind {
        Some(EmitKind::Emit(emit)) => {
            width(emit.output_mapping.len(), "columns")?;
            emit.output_mapping.iter().try_for_each(|i| index(*i, columns))?;
            Ok(emit.output_mapping.len())
        }
        _ => Ok(columns),
    }
}

pub(crate) fn enhancement(extension: Option<&AdvancedExtension>) -> Result<()> {
    match extension.and_then(|e| e.enhancement.as_ref()) {
        Some(any) => Err(Error::unsupported(format!("the plan carries the enhancement {:?}, which this engine does not know", any.type_url))),
        None => Ok(()),
    }
}

pub(crate) fn index(i: i32, columns: usize) -> Result<()> {
    match usize::try_from(i) {
        Ok(at) if at < columns => Ok(()),
        _ => Err(Error::invalid(format!("the plan refers to column {i} of {columns}"))),
    }
}

pub(crate) fn width(n: usize, what: &str) -> Result<()> {
    if n > MAX_WIDTH { Err(Error::invalid(format!("the plan lists {n} {what}, more than the {MAX_WIDTH} that are accepted"))) } else { Ok(()) }
}

pub(crate) fn present<'a, T: ?Sized>(part: Option<&'a T>, whole: &str, name: &str) -> Result<&'a T> {
    part.ok_or_else(|| Error::invalid(format!("the plan has a {whole} without {name}")))
}

/// The name of an enumeration's variant. (The text of a whole message may be megabytes: it is
/// cut off while it is made.)
pub(crate) fn variant(value: &impl std::fmt::Debug) -> String {
    struct Head(String);
    impl std::fmt::Write for Head {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let end = text.find(['(', ' ', '{']);
            self.0.push_str(&text[..end.unwrap_or(text.len())]);
            if end.is_some() { Err(std::fmt::Error) } else { Ok(()) }
        }
    }
    let mut head = Head(String::new());
    // The error says that there is enough.
    let _ = std::fmt::write(&mut head, format_args!("{value:?}"));
    head.0
}
