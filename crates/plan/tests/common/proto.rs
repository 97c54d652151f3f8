//! Substrait plans made by hand.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use datafusion_substrait::substrait::proto::aggregate_rel::{Grouping, Measure};
use datafusion_substrait::substrait::proto::expression::field_reference::{ReferenceType, RootReference, RootType};
use datafusion_substrait::substrait::proto::expression::literal::LiteralType;
use datafusion_substrait::substrait::proto::expression::{FieldReference, Literal, ReferenceSegment, RexType, ScalarFunction, reference_segment};
use datafusion_substrait::substrait::proto::extensions::SimpleExtensionDeclaration;
use datafusion_substrait::substrait::proto::extensions::simple_extension_declaration::{ExtensionFunction, MappingType};
use datafusion_substrait::substrait::proto::function_argument::ArgType;
use datafusion_substrait::substrait::proto::read_rel::{NamedTable, ReadType};
use datafusion_substrait::substrait::proto::rel::RelType;
use datafusion_substrait::substrait::proto::r#type::{Fp64, I64, Kind, Nullability, String as Text, Struct};
use datafusion_substrait::substrait::proto::{
    AggregateFunction, AggregateRel, Expression, FunctionArgument, FunctionOption, NamedStruct, Plan, PlanRel, ProjectRel, ReadRel, ReferenceRel, Rel, RelRoot,
    SetRel, Type, plan_rel,
};

pub const I64_TYPE: &str = "i64";
pub const FP64_TYPE: &str = "fp64";
pub const TEXT_TYPE: &str = "string";

pub fn rel(kind: RelType) -> Rel {
    Rel { rel_type: Some(kind) }
}

/// Reads a table with columns of these names and types.
pub fn read(names: &[&str], columns: &[(&str, &str)]) -> Rel {
    let nullability = Nullability::Nullable as i32;
    let kind = |t: &str| match t {
        I64_TYPE => Kind::I64(I64 { type_variation_reference: 0, nullability }),
        FP64_TYPE => Kind::Fp64(Fp64 { type_variation_reference: 0, nullability }),
        _ => Kind::String(Text { type_variation_reference: 0, nullability }),
    };
    let types = columns.iter().map(|(_, t)| Type { kind: Some(kind(t)) }).collect();
    let base = NamedStruct {
        names: columns.iter().map(|(n, _)| (*n).to_owned()).collect(),
        r#struct: Some(Struct { types, type_variation_reference: 0, nullability: Nullability::Required as i32 }),
    };
    let table = NamedTable { names: names.iter().map(|n| (*n).to_owned()).collect(), ..NamedTable::default() };
    rel(RelType::Read(Box::new(ReadRel { base_schema: Some(base), read_type: Some(ReadType::NamedTable(table)), ..ReadRel::default() })))
}

pub fn project(input: Rel, expressions: Vec<Expression>) -> Rel {
    rel(RelType::Project(Box::new(ProjectRel { input: Some(Box::new(input)), expressions, ..ProjectRel::default() })))
}

pub fn set(op: i32, inputs: Vec<Rel>) -> Rel {
    rel(RelType::Set(SetRel { op, inputs, ..SetRel::default() }))
}

/// The shared relation of this number.
pub fn shared(n: i32) -> Rel {
    rel(RelType::Reference(ReferenceRel { subtree_ordinal: n }))
}

pub fn aggregate(input: Rel, expressions: Vec<Expression>, sets: Vec<Vec<u32>>, measures: Vec<(u32, Vec<Expression>)>) -> Rel {
    let groupings = sets.into_iter().map(|s| Grouping { expression_references: s, ..Grouping::default() }).collect();
    let measures = measures.into_iter().map(|(function_reference, args)| Measure {
        measure: Some(AggregateFunction { function_reference, arguments: values(args), ..AggregateFunction::default() }),
        filter: None,
    });
    let r =
        AggregateRel { input: Some(Box::new(input)), grouping_expressions: expressions, groupings, measures: measures.collect(), ..AggregateRel::default() };
    rel(RelType::Aggregate(Box::new(r)))
}

fn values(arguments: Vec<Expression>) -> Vec<FunctionArgument> {
    arguments.into_iter().map(|e| FunctionArgument { arg_type: Some(ArgType::Value(e)) }).collect()
}

/// A column of the input.
pub fn field(n: i32) -> Expression {
    let field = reference_segment::StructField { field: n, child: None };
    let segment = ReferenceSegment { reference_type: Some(reference_segment::ReferenceType::StructField(Box::new(field))) };
    let reference =
        FieldReference { reference_type: Some(ReferenceType::DirectReference(segment)), root_type: Some(RootType::RootReference(RootReference {})) };
    Expression { rex_type: Some(RexType::Selection(Box::new(reference))) }
}

pub fn number(n: i64) -> Expression {
    Expression { rex_type: Some(RexType::Literal(Literal { literal_type: Some(LiteralType::I64(n)), ..Literal::default() })) }
}

pub fn text(value: &str) -> Expression {
    Expression { rex_type: Some(RexType::Literal(Literal { literal_type: Some(LiteralType::String(value.to_owned())), ..Literal::default() })) }
}

/// A call of the function at this anchor.
pub fn call(anchor: u32, arguments: Vec<Expression>) -> Expression {
    call_with(anchor, arguments, &[])
}

pub fn call_with(function_reference: u32, arguments: Vec<Expression>, options: &[(&str, &[&str])]) -> Expression {
    let options =
        options.iter().map(|(name, preference)| FunctionOption { name: (*name).to_owned(), preference: preference.iter().map(|p| (*p).to_owned()).collect() });
    let f = ScalarFunction { function_reference, arguments: values(arguments), options: options.collect(), ..ScalarFunction::default() };
    Expression { rex_type: Some(RexType::ScalarFunction(f)) }
}

/// A plan over `root` whose functions have the anchors 0, 1, ..., with relations that it shares.
pub fn plan(functions: &[&str], shared: Vec<Rel>, root: Rel) -> Plan {
    let declared = functions.iter().enumerate().map(|(anchor, name)| SimpleExtensionDeclaration {
        mapping_type: Some(MappingType::ExtensionFunction(ExtensionFunction {
            function_anchor: u32::try_from(anchor).unwrap_or_default(),
            name: (*name).to_owned(),
            ..ExtensionFunction::default()
        })),
    });
    let mut relations: Vec<_> = shared.into_iter().map(|r| PlanRel { rel_type: Some(plan_rel::RelType::Rel(r)) }).collect();
    relations.push(PlanRel { rel_type: Some(plan_rel::RelType::Root(RelRoot { input: Some(root), names: vec![] })) });
    Plan { extensions: declared.collect(), relations, ..Plan::default() }
}
