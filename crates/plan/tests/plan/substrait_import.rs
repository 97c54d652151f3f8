//! Foreign plans give a plan or an error of the right kind that names what is wrong, and never a panic.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::TableReference;
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::TableSource;
use datafusion::prelude::SessionContext;
use datafusion_substrait::substrait::proto::extensions::simple_extension_declaration::MappingType;
use datafusion_substrait::substrait::proto::read_rel::{LocalFiles, ReadType};
use datafusion_substrait::substrait::proto::rel::RelType;
use datafusion_substrait::substrait::proto::{
    CrossRel, ExtensionLeafRel, FunctionOption, Plan, PlanRel, ReadRel, ReferenceRel, Rel, RelRoot, SetRel, expression, plan_rel,
};
use prost::Message;
use skytether_common::{Error, Kind, Result};
use skytether_plan::substrait_import::{ImportedPlan, Limits, TableLookup};

use crate::common::mutation::{Dice, count_panics, panics};

const LIMITS: Limits = Limits { bytes: 1 << 20, relations: 300, depth: 60, expressions: 5000, levels: 100 };

fn isthmus(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/tests/plans/isthmus").join(name)).unwrap()
}

fn plan(number: usize) -> Plan {
    Plan::decode(isthmus(&format!("q{number:02}.plan")).as_slice()).unwrap()
}

/// The tables of TPC-H, empty.
struct Tpch(SessionContext);

impl Tpch {
    async fn new() -> Self {
        let context = SessionContext::new();
        context.sql("CREATE SCHEMA tpch").await.unwrap();
        for statement in String::from_utf8(isthmus("schema.sql")).unwrap().split(';').filter(|s| !s.trim().is_empty()) {
            context.sql(statement).await.unwrap();
        }
        Self(context)
    }

    async fn read(&self, bytes: &[u8]) -> Result<()> {
        let plan = ImportedPlan::decode(bytes, LIMITS)?.logical(&self.0.state(), self).await?;
        assert!(plan.schema().fields().len() < 1 << 16);
        Ok(())
    }

    async fn refused(&self, plan: &Plan) -> (Kind, String) {
        let error = self.read(&plan.encode_to_vec()).await.unwrap_err();
        (error.kind(), error.report())
    }
}

#[async_trait]
impl TableLookup for Tpch {
    async fn find(&self, names: &[String]) -> Result<(TableReference, Arc<dyn TableSource>)> {
        let [schema, table] = names else { return Err(Error::not_found("no such table")) };
        let reference = TableReference::partial(schema.to_lowercase(), table.to_lowercase());
        let provider = self.0.table_provider(reference.clone()).await.map_err(|_| Error::not_found(format!("there is no {reference}")))?;
        Ok((reference, provider_as_source(provider)))
    }
}

#[tokio::test]
async fn mutated_plans_never_panic() {
    count_panics();
    let tables = Tpch::new().await;
    let plans: Vec<_> = (1..=22).map(|n| isthmus(&format!("q{n:02}.plan"))).collect();
    let mut dice = Dice::new(11);
    let (mut good, mut bad) = (0, 0);
    for round in 0..4000 {
        let mut bytes = plans[round / 2 % plans.len()].clone();
        // One bit in every second round: what changes lengths seldom gets beyond the protobuf reader.
        let (changes, kinds) = if round % 2 == 0 { (0, 1) } else { (dice.roll(3), 5) };
        for _ in 0..=changes {
            let at = dice.roll(bytes.len());
            match dice.roll(kinds) {
                0 => bytes[at] ^= 1 << dice.roll(8),
                1 => bytes[at] = dice.roll(256) as u8,
                2 => bytes.insert(at, dice.roll(256) as u8),
                3 => {
                    let other = &plans[dice.roll(plans.len())];
                    let (from, to) = (dice.roll(other.len()), dice.roll(24));
                    let piece: Vec<u8> = other[from..(from + to).min(other.len())].to_vec();
                    let end = (at + piece.len()).min(bytes.len());
                    bytes.splice(at..end, piece);
                }
                _ => drop(bytes.remove(at)),
            }
        }
        if round % 40 == 1 {
            bytes.truncate(dice.roll(bytes.len()));
        }
        match tables.read(&bytes).await {
            Ok(()) => good += 1,
            Err(e) => {
                assert!(matches!(e.kind(), Kind::Invalid | Kind::Unsupported | Kind::NotFound), "{:?}: {}", e.kind(), e.report());
                bad += 1;
            }
        }
    }
    for _ in 0..1000 {
        let bytes: Vec<u8> = (0..dice.roll(200)).map(|_| dice.roll(256) as u8).collect();
        assert!(tables.read(&bytes).await.is_err());
    }
    assert_eq!(panics(), 0);
    assert!(good > 100 && bad > 100, "{good} good, {bad} bad");
}

fn rooted(kind: RelType) -> Plan {
    let input = Some(Rel { rel_type: Some(kind) });
    Plan { relations: vec![PlanRel { rel_type: Some(plan_rel::RelType::Root(RelRoot { input, names: vec![] })) }], ..Plan::default() }
}

fn root(plan: &mut Plan) -> &mut Rel {
    match plan.relations[0].rel_type.as_mut().unwrap() {
        plan_rel::RelType::Root(root) => root.input.as_mut().unwrap(),
        plan_rel::RelType::Rel(rel) => rel,
    }
}

#[tokio::test]
async fn unknown_features_are_refused_by_name() {
    let tables = Tpch::new().await;
    let files = ReadRel { read_type: Some(ReadType::LocalFiles(LocalFiles::default())), ..ReadRel::default() };
    for (kind, name) in [
        (RelType::Write(Box::default()), "Write"),
        (RelType::Expand(Default::default()), "Expand"),
        (RelType::HashJoin(Default::default()), "HashJoin"),
        (RelType::ExtensionLeaf(ExtensionLeafRel::default()), "extension relation"),
        (RelType::Read(Box::new(files)), "local files"),
        (RelType::Set(SetRel { op: 8, ..SetRel::default() }), "SET_OP"),
    ] {
        let (kind, text) = tables.refused(&rooted(kind)).await;
        assert_eq!(kind, Kind::Unsupported, "{text}");
        assert!(text.contains(name), "{text}");
    }
    for (old, new) in [("multiply", "launch_missiles"), ("sum", "assemble"), ("sum", "__sum_state")] {
        let mut changed = plan(1);
        for declaration in &mut changed.extensions {
            if let Some(MappingType::ExtensionFunction(f)) = &mut declaration.mapping_type {
                f.name = f.name.replace(old, new);
            }
        }
        let (kind, text) = tables.refused(&changed).await;
        assert_eq!(kind, Kind::Unsupported, "{text}");
        assert!(text.contains(new), "{text}");
    }
}

#[tokio::test]
async fn options_are_done_or_refused() {
    let tables = Tpch::new().await;
    for (preference, good) in [(&["ERROR"][..], true), (&["SATURATE"], false), (&["SATURATE", "ERROR"], true), (&[], true)] {
        let mut changed = plan(6);
        // Of query 6's sum over a product of decimals.
        let options = vec![FunctionOption { name: "overflow".into(), preference: preference.iter().map(|p| (*p).to_owned()).collect() }];
        set_options(root(&mut changed), &options);
        match tables.read(&changed.encode_to_vec()).await {
            Ok(()) => assert!(good, "{preference:?}"),
            Err(e) => assert!(!good && e.kind() == Kind::Unsupported && e.report().contains("SATURATE"), "{preference:?}: {}", e.report()),
        }
    }
}

/// Gives the options to all functions in the projections of `rel` and below.
fn set_options(rel: &mut Rel, options: &[FunctionOption]) {
    match rel.rel_type.as_mut().unwrap() {
        RelType::Project(r) => {
            for e in &mut r.expressions {
                if let Some(expression::RexType::ScalarFunction(f)) = &mut e.rex_type {
                    f.options = options.to_vec();
                }
            }
            set_options(r.input.as_mut().unwrap(), options);
        }
        RelType::Aggregate(r) => set_options(r.input.as_mut().unwrap(), options),
        _ => {}
    }
}

#[tokio::test]
async fn too_much_is_refused_before_it_is_built() {
    let tables = Tpch::new().await;
    assert_eq!(tables.read(&vec![0; LIMITS.bytes + 1]).await.unwrap_err().kind(), Kind::Invalid);
    let shared = |n: i32| Some(Box::new(Rel { rel_type: Some(RelType::Reference(ReferenceRel { subtree_ordinal: n })) }));
    // Each relation is twice the one before: two to the power of forty rows of references.
    let mut doubling = Plan::default();
    let leaf = plan(1);
    let Some(plan_rel::RelType::Root(first)) = &leaf.relations[0].rel_type else { panic!("a root was written") };
    doubling.extensions.clone_from(&leaf.extensions);
    doubling.relations.push(PlanRel { rel_type: Some(plan_rel::RelType::Rel(first.input.clone().unwrap())) });
    for n in 0..40 {
        let cross = CrossRel { left: shared(n), right: shared(n), ..CrossRel::default() };
        doubling.relations.push(PlanRel { rel_type: Some(plan_rel::RelType::Rel(Rel { rel_type: Some(RelType::Cross(Box::new(cross))) })) });
    }
    doubling.relations.push(PlanRel { rel_type: Some(plan_rel::RelType::Root(RelRoot { input: shared(40).map(|r| *r), names: vec![] })) });
    let (kind, text) = tables.refused(&doubling).await;
    assert!(kind == Kind::Invalid && text.contains("at most"), "{text}");
    // A relation that is its own input.
    let mut circle = Plan::default();
    circle.relations.push(PlanRel { rel_type: Some(plan_rel::RelType::Rel(*shared(0).unwrap())) });
    circle.relations.push(PlanRel { rel_type: Some(plan_rel::RelType::Root(RelRoot { input: shared(0).map(|r| *r), names: vec![] })) });
    let (kind, text) = tables.refused(&circle).await;
    assert!(kind == Kind::Invalid && text.contains("at most 60"), "{text}");
    // Messages within messages.
    let mut bytes = vec![];
    while bytes.len() < 100_000 {
        let mut outer = vec![0x12];
        prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
        outer.extend_from_slice(&bytes);
        bytes = outer;
    }
    assert!(tables.read(&bytes).await.is_err());
}

#[tokio::test]
async fn enhancements_are_refused_and_columns_are_checked() {
    let tables = Tpch::new().await;
    let mut other = plan(6);
    let text = String::from_utf8_lossy(&other.encode_to_vec()).into_owned();
    assert!(text.contains("L_SHIPDATE"));
    // The same length, so that the bytes stay a plan.
    let bytes = other.encode_to_vec();
    let at = bytes.windows(10).position(|w| w == b"L_SHIPDATE").unwrap();
    let mut renamed = bytes.clone();
    renamed[at..at + 10].copy_from_slice(b"L_NEVERDAT");
    let error = tables.read(&renamed).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.report().contains("L_NEVERDAT"), "{}", error.report());
    let mut cased = bytes.clone();
    cased[at..at + 10].copy_from_slice(b"l_ShipDate");
    tables.read(&cased).await.unwrap();
    other.advanced_extensions = Some(Message::decode([0x12, 6, 0x0a, 4, b'w', b'i', b'l', b'd'].as_slice()).unwrap());
    let (kind, text) = tables.refused(&other).await;
    assert!(kind == Kind::Unsupported && text.contains("wild"), "{text}");
}
