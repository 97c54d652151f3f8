//! Expressions.
//!
//! `datafusion-substrait` indexes schemas with numbers from the message and unwraps what may be absent. So this module
//! checks both before.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DFSchema, DataFusionError, ScalarValue};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::expr::{InList, ScalarFunction as Call};
use datafusion::logical_expr::{Case, Expr, Operator, SortExpr, binary_expr, cast, lit, not};
use datafusion_substrait::logical_plan::consumer::{
    SubstraitConsumer, from_cast, from_field_reference, from_if_then, from_literal, from_scalar_function, from_subquery, from_substrait_rex,
    from_substrait_sorts, from_window_function, name_to_op, substrait_to_df_name,
};
use datafusion_substrait::substrait::proto::aggregate_function::AggregationInvocation;
use datafusion_substrait::substrait::proto::expression::field_reference::{ReferenceType, RootType};
use datafusion_substrait::substrait::proto::expression::literal::LiteralType;
use datafusion_substrait::substrait::proto::expression::subquery::SubqueryType;
use datafusion_substrait::substrait::proto::expression::subquery::set_predicate::PredicateOp;
use datafusion_substrait::substrait::proto::expression::window_function::Bound;
use datafusion_substrait::substrait::proto::expression::{
    Cast, FieldReference, IfThen, Literal, MultiOrList, RexType, ScalarFunction, SingularOrList, Subquery, SwitchExpression, WindowFunction, reference_segment,
    window_function,
};
use datafusion_substrait::substrait::proto::function_argument::ArgType;
use datafusion_substrait::substrait::proto::sort_field::SortKind;
use datafusion_substrait::substrait::proto::r#type::{Kind, PrecisionTime, PrecisionTimestamp, PrecisionTimestampTz};
use datafusion_substrait::substrait::proto::{Expression, SortField, Type};

use super::consume::{Consumer, invalid, unsupported};
use super::functions::{self, Function};
use crate::codec::validate::{self, present};
use crate::error::to_datafusion;
use crate::rewriting::tree;

type DfResult<T> = std::result::Result<T, DataFusionError>;

/// Precision of Substrait's deprecated types of time: microseconds.
const MICROSECONDS: i32 = 6;

/// 64 bits, as the engine has a time of microseconds.
const WIDE: u32 = 1;

impl Consumer<'_> {
    pub(super) async fn expression(&self, e: &Expression, schema: &DFSchema) -> DfResult<Expr> {
        match &e.rex_type {
            None => Err(unsupported("the plan has an expression of a type that this version of Substrait does not know")),
            #[expect(deprecated, reason = "what an old producer writes is refused by name")]
            Some(kind @ (RexType::LambdaInvocation(_) | RexType::Enum(_))) => {
                Err(unsupported(format!("the plan has an expression of type {}, which this engine does not know", validate::variant(kind))))
            }
            Some(RexType::DynamicParameter(p)) => {
                if let Some(t) = &p.r#type {
                    validate::type_of(t).map_err(to_datafusion)?;
                }
                // It is numbered from 0 there, from 1 here.
                if p.parameter_reference == u32::MAX {
                    return Err(invalid("the plan has a parameter of too high a number"));
                }
                from_substrait_rex(self, e, schema).await
            }
            Some(_) => from_substrait_rex(self, e, schema).await,
        }
    }

    pub(super) async fn literal(&self, l: &Literal) -> DfResult<Expr> {
        let value = match &l.literal_type {
            Some(LiteralType::VarChar(text)) => ScalarValue::Utf8(Some(text.value.clone())),
            #[expect(deprecated, reason = "producers still write it")]
            Some(LiteralType::Timestamp(t)) => ScalarValue::TimestampMicrosecond(Some(*t), None),
            #[expect(deprecated, reason = "producers still write it")]
            Some(LiteralType::TimestampTz(t)) => ScalarValue::TimestampMicrosecond(Some(*t), Some("UTC".into())),
            #[expect(deprecated, reason = "producers still write it")]
            Some(LiteralType::Time(t)) => ScalarValue::Time64Microsecond(Some(*t)),
            Some(LiteralType::PrecisionTime(t)) => {
                let type_variation_reference = if t.precision > 3 { WIDE } else { 0 };
                return from_literal(self, &Literal { type_variation_reference, ..l.clone() }).await;
            }
            Some(LiteralType::Null(t)) => {
                let mut t = t.clone();
                modern(&mut t);
                validate::type_of(&t).map_err(to_datafusion)?;
                return from_literal(self, &Literal { literal_type: Some(LiteralType::Null(t)), ..l.clone() }).await;
            }
            _ => {
                validate::literal(l).map_err(to_datafusion)?;
                return from_literal(self, l).await;
            }
        };
        Ok(Expr::Literal(value, None))
    }

    pub(super) async fn reference(&self, r: &FieldReference, schema: &DFSchema) -> DfResult<Expr> {
        let Some(ReferenceType::DirectReference(segment)) = &r.reference_type else {
            return Err(unsupported("the plan refers to columns by a mask, which this engine does not do"));
        };
        let Some(reference_segment::ReferenceType::StructField(field)) = &segment.reference_type else {
            return Err(unsupported("the plan refers to an element of a list or map, which this engine does not do"));
        };
        if field.child.is_some() {
            return Err(unsupported("the plan refers to a field of a struct, which this engine does not do"));
        }
        let columns = match &r.root_type {
            None | Some(RootType::RootReference(_)) => schema.fields().len(),
            Some(RootType::OuterReference(outer)) => {
                let steps = outer.steps_out as usize;
                if steps == 0 {
                    return Err(unsupported("the plan refers to the columns of an outer query by something else than the steps out to it"));
                }
                let around = self
                    .get_outer_schema(steps)
                    .ok_or_else(|| invalid(format!("the plan refers to a query {steps} steps out of this one, which there is not")))?;
                around.fields().len()
            }
            Some(_) => return Err(unsupported("the plan refers to something other than the columns of its input")),
        };
        validate::index(field.field, columns).map_err(to_datafusion)?;
        from_field_reference(self, r, schema).await
    }

    pub(super) async fn sorts(&self, sorts: &Vec<SortField>, schema: &DFSchema) -> DfResult<Vec<SortExpr>> {
        ordered(sorts)?;
        from_substrait_sorts(self, sorts, schema).await
    }

    pub(super) async fn scalar(&self, f: &ScalarFunction, schema: &DFSchema) -> DfResult<Expr> {
        let declared = self.functions.get(f.function_reference).map_err(to_datafusion)?;
        #[expect(deprecated, reason = "what an old producer writes there must not be overlooked")]
        if !f.args.is_empty() {
            return Err(unsupported(format!("the plan calls {:?} with arguments in a field that Substrait gave up", declared.name)));
        }
        validate::width(f.arguments.len(), "arguments").map_err(to_datafusion)?;
        functions::options(declared, &f.options).map_err(to_datafusion)?;
        let special = match declared.name.as_str() {
            "extract" => true,
            "and" | "or" => f.arguments.len() < 2,
            "xor" | "concat" | "least" | "greatest" => declared.standard || declared.name == "xor",
            "like" => functions::preference(declared, &f.options, "case_sensitivity") == Some("CASE_INSENSITIVE"),
            name => functions::scalar(name) != name || functions::operator(name) != name,
        };
        if !special {
            if declared.name.starts_with("__") {
                return Err(unknown(declared));
            }
            return match from_scalar_function(self, f, schema).await {
                Err(DataFusionError::NotImplemented(_)) if !self.knows(&declared.name) => Err(unknown(declared)),
                other => other,
            };
        }
        let (mut arguments, mut enums) = (Vec::new(), Vec::new());
        for argument in &f.arguments {
            match &argument.arg_type {
                Some(ArgType::Value(e)) => arguments.push(self.consume_expression(e, schema).await?),
                Some(ArgType::Enum(e)) => enums.push(e.as_str()),
                _ => return Err(unsupported(format!("the plan calls {:?} with an argument that is no value", declared.name))),
            }
        }
        self.special(declared, f, arguments, &enums)
    }

    /// Whether `datafusion-substrait` has something to call by `name`.
    fn knows(&self, name: &str) -> bool {
        let registry = self.get_function_registry();
        let is_registered = |name: &str| registry.higher_order_function(name).is_ok() || registry.udf(name).is_ok();
        is_registered(name)
            || substrait_to_df_name(name).is_some_and(is_registered)
            || name_to_op(name).is_some()
            || validate::BUILT_IN.contains(&name)
            || name == "xor"
    }

    fn special(&self, declared: &Function, f: &ScalarFunction, mut arguments: Vec<Expr>, enums: &[&str]) -> DfResult<Expr> {
        let wrong = || invalid(format!("the plan calls {:?} with {} arguments", declared.name, f.arguments.len()));
        match (declared.name.as_str(), arguments.len()) {
            ("extract", 1) => self.extract(enums, arguments.remove(0)),
            ("extract", _) => Err(unsupported("the plan extracts a part of a time in a time zone of its own, which this engine does not do")),
            ("and", 0) => Ok(lit(true)),
            ("or", 0) => Ok(lit(false)),
            ("and" | "or", 1) => Ok(arguments.remove(0)),
            // Null if one is null, and each argument once: the reader writes it out with both twice, which
            // doubles a chain at each step.
            ("xor", 2) => {
                let right = arguments.remove(1);
                Ok(binary_expr(arguments.remove(0), Operator::NotEq, right))
            }
            ("like", 2) => {
                let pattern = arguments.remove(1);
                Ok(arguments.remove(0).ilike(pattern))
            }
            ("concat", n) if n > 0 && functions::preference(declared, &f.options, "null_handling") != Some("IGNORE_NULLS") => {
                tree(arguments, |a, b| binary_expr(a, Operator::StringConcat, b)).ok_or_else(wrong)
            }
            // Null if one is null; the engine's own leave nulls out.
            ("least" | "greatest", n) if n > 0 => {
                arguments.iter().try_for_each(|a| self.again(a))?;
                let missing = tree(arguments.iter().map(|a| a.clone().is_null()).collect(), Expr::or).ok_or_else(wrong)?;
                let value = self.call(declared, &declared.name, arguments)?;
                Ok(Expr::Case(Case { expr: None, when_then_expr: vec![(Box::new(not(missing)), Box::new(value))], else_expr: None }))
            }
            (name, n) if functions::operator(name) != name => {
                if n != 2 {
                    return Err(wrong());
                }
                let operator = datafusion_substrait::logical_plan::consumer::name_to_op(functions::operator(name)).ok_or_else(|| unknown(declared))?;
                let right = arguments.remove(1);
                Ok(binary_expr(arguments.remove(0), operator, right))
            }
            (name, n) if n > 0 && enums.is_empty() => self.call(declared, functions::scalar(name), arguments),
            _ => Err(wrong()),
        }
    }

    fn call(&self, declared: &Function, name: &str, arguments: Vec<Expr>) -> DfResult<Expr> {
        let function = self.state.udf(name).map_err(|_| unknown(declared))?;
        Ok(Expr::ScalarFunction(Call::new_udf(function, arguments)))
    }

    /// A part of a time as a number of 64 bits.
    fn extract(&self, enums: &[&str], time: Expr) -> DfResult<Expr> {
        let (component, zero) = match enums {
            [component] | [component, "ONE"] => (component, false),
            [component, "ZERO"] => (component, true),
            _ => return Err(unsupported("the plan extracts from a time in a way that this engine does not know")),
        };
        let (part, modulus) = functions::part(component).map_err(to_datafusion)?;
        let function = self.state.udf("date_part")?;
        let mut value = cast(function.call(vec![lit(part), time]), DataType::Int64);
        if let Some(modulus) = modulus {
            value = binary_expr(value, Operator::Modulo, lit(modulus));
        }
        if zero {
            value = binary_expr(value, Operator::Minus, lit(1i64));
        }
        Ok(value)
    }

    pub(super) async fn window(&self, f: &WindowFunction, schema: &DFSchema) -> DfResult<Expr> {
        let declared = self.functions.get(f.function_reference).map_err(to_datafusion)?;
        let known = self.state.udwf(&declared.name).is_ok() || self.state.udaf(&declared.name).is_ok();
        if !known || declared.name.starts_with("__") {
            return Err(unsupported(format!("the plan calls the window function {:?}, which this engine does not know", declared.name)));
        }
        if f.invocation == AggregationInvocation::Distinct as i32 {
            return Err(unsupported(format!("the plan calls the window function {:?} over distinct values, which this engine does not do", declared.name)));
        }
        #[expect(deprecated, reason = "what an old producer writes there must not be overlooked")]
        if !f.args.is_empty() {
            return Err(unsupported(format!("the plan calls {:?} with arguments in a field that Substrait gave up", declared.name)));
        }
        functions::options(declared, &f.options).map_err(to_datafusion)?;
        ordered(&f.sorts)?;
        for (n, what) in [(f.arguments.len(), "arguments"), (f.partitions.len(), "partitions")] {
            validate::width(n, what).map_err(to_datafusion)?;
        }
        from_window_function(self, &with_offsets(f), schema).await
    }

    pub(super) async fn if_then(&self, e: &IfThen, schema: &DFSchema) -> DfResult<Expr> {
        validate::width(e.ifs.len(), "branches").map_err(to_datafusion)?;
        for (i, clause) in e.ifs.iter().enumerate() {
            present(clause.r#if.as_ref(), "case", "condition").map_err(to_datafusion)?;
            // The first may hold the operand that the others are compared with.
            if clause.then.is_none() && (i > 0 || e.ifs.len() == 1) {
                return Err(invalid("the plan has a case without a result"));
            }
        }
        if e.ifs.is_empty() {
            return Err(invalid("the plan has a case without branches"));
        }
        from_if_then(self, e, schema).await
    }

    pub(super) async fn switch(&self, e: &SwitchExpression, schema: &DFSchema) -> DfResult<Expr> {
        validate::width(e.ifs.len(), "branches").map_err(to_datafusion)?;
        if e.ifs.is_empty() {
            return Err(invalid("the plan has a switch without branches"));
        }
        let of = self.consume_expression(present(e.r#match.as_deref(), "switch", "value").map_err(to_datafusion)?, schema).await?;
        let mut branches = Vec::with_capacity(e.ifs.len());
        for branch in &e.ifs {
            let value = self.literal(present(branch.r#if.as_ref(), "switch", "value").map_err(to_datafusion)?).await?;
            let then = self.consume_expression(present(branch.then.as_ref(), "switch", "result").map_err(to_datafusion)?, schema).await?;
            branches.push((Box::new(value), Box::new(then)));
        }
        let otherwise = match &e.r#else {
            Some(e) => Some(Box::new(self.consume_expression(e, schema).await?)),
            None => None,
        };
        Ok(Expr::Case(Case { expr: Some(Box::new(of)), when_then_expr: branches, else_expr: otherwise }))
    }

    pub(super) async fn one_of(&self, e: &SingularOrList, schema: &DFSchema) -> DfResult<Expr> {
        validate::width(e.options.len(), "options").map_err(to_datafusion)?;
        let value = self.consume_expression(present(e.value.as_deref(), "list", "value").map_err(to_datafusion)?, schema).await?;
        let mut list = Vec::with_capacity(e.options.len());
        for option in &e.options {
            list.push(self.consume_expression(option, schema).await?);
        }
        Ok(Expr::InList(InList { expr: Box::new(value), list, negated: false }))
    }

    /// Whether several values together are one of several rows.
    pub(super) async fn row_of(&self, e: &MultiOrList, schema: &DFSchema) -> DfResult<Expr> {
        validate::width(e.options.len(), "options").map_err(to_datafusion)?;
        validate::width(e.value.len(), "values").map_err(to_datafusion)?;
        let mut values = Vec::with_capacity(e.value.len());
        for value in &e.value {
            values.push(self.consume_expression(value, schema).await?);
        }
        let mut rows = Vec::with_capacity(e.options.len());
        for option in &e.options {
            if option.fields.len() != values.len() || values.is_empty() {
                return Err(invalid(format!("the plan compares {} values with {}", values.len(), option.fields.len())));
            }
            let mut row = Vec::with_capacity(values.len());
            for (value, other) in values.iter().zip(&option.fields) {
                self.again(value)?;
                row.push(value.clone().eq(self.consume_expression(other, schema).await?));
            }
            rows.extend(tree(row, Expr::and));
        }
        Ok(tree(rows, Expr::or).unwrap_or_else(|| lit(false)))
    }

    pub(super) async fn cast(&self, e: &Cast, schema: &DFSchema) -> DfResult<Expr> {
        present(e.input.as_deref(), "cast", "input").map_err(to_datafusion)?;
        let mut e = e.clone();
        let t = e.r#type.as_mut().ok_or_else(|| invalid("the plan has a cast without type"))?;
        modern(t);
        validate::type_of(t).map_err(to_datafusion)?;
        from_cast(self, &e, schema).await
    }

    pub(super) async fn subquery(&self, e: &Subquery, schema: &DFSchema) -> DfResult<Expr> {
        match &e.subquery_type {
            None => return Err(invalid("the plan has a subquery without a type")),
            Some(SubqueryType::InPredicate(p)) if p.needles.len() != 1 => {
                return Err(unsupported(format!("the plan looks for {} values together in a subquery, which this engine does not do", p.needles.len())));
            }
            Some(SubqueryType::SetPredicate(p)) if p.predicate_op() != PredicateOp::Exists => {
                return Err(unsupported(format!("the plan has a subquery with {}, which this engine does not do", p.predicate_op().as_str_name())));
            }
            Some(_) => {}
        }
        from_subquery(self, e, schema).await
    }
}

fn unknown(declared: &Function) -> DataFusionError {
    unsupported(format!("the plan calls the function {:?}, which this engine does not know", declared.name))
}

fn ordered(sorts: &[SortField]) -> DfResult<()> {
    validate::width(sorts.len(), "sorts").map_err(to_datafusion)?;
    for sort in sorts {
        present(sort.expr.as_ref(), "sort", "expression").map_err(to_datafusion)?;
        if !matches!(sort.sort_kind, Some(SortKind::Direction(1..=4))) {
            return Err(unsupported("the plan sorts by an order that this engine does not know"));
        }
    }
    Ok(())
}

/// `f` with bounds that are 0 rows away written as the current row, which they are.
fn with_offsets(f: &WindowFunction) -> WindowFunction {
    use window_function::bound::{CurrentRow, Following, Kind as B, Preceding};
    let mut f = f.clone();
    for bound in [&mut f.lower_bound, &mut f.upper_bound] {
        if let Some(Bound { kind: Some(kind @ (B::Preceding(Preceding { offset: 0 }) | B::Following(Following { offset: 0 }))) }) = bound {
            *kind = B::CurrentRow(CurrentRow {});
        }
    }
    f
}

/// Replaces Substrait's deprecated types of time by their successors.
pub(super) fn modern(t: &mut Type) {
    #[expect(deprecated, reason = "producers still write them")]
    let new = match &mut t.kind {
        Some(Kind::Timestamp(old)) => {
            Kind::PrecisionTimestamp(PrecisionTimestamp { precision: MICROSECONDS, type_variation_reference: 0, nullability: old.nullability })
        }
        Some(Kind::TimestampTz(old)) => {
            Kind::PrecisionTimestampTz(PrecisionTimestampTz { precision: MICROSECONDS, type_variation_reference: 0, nullability: old.nullability })
        }
        Some(Kind::Time(old)) => Kind::PrecisionTime(PrecisionTime { precision: MICROSECONDS, type_variation_reference: WIDE, nullability: old.nullability }),
        // Substrait itself knows no 32 bits of time: which of the two follows from the precision.
        Some(Kind::PrecisionTime(time)) => {
            time.type_variation_reference = if time.precision > 3 { WIDE } else { 0 };
            return;
        }
        Some(Kind::List(list)) => return list.r#type.as_deref_mut().map_or((), modern),
        Some(Kind::Map(map)) => {
            for t in [map.key.as_deref_mut(), map.value.as_deref_mut()].into_iter().flatten() {
                modern(t);
            }
            return;
        }
        Some(Kind::Struct(fields)) => return fields.types.iter_mut().for_each(modern),
        _ => return,
    };
    t.kind = Some(new);
}
