//! Foreign bytes give errors: of the right kind, with a name, and never a panic.

use crate::common::mutation::{Dice, count_panics, panics};
use crate::common::*;
use datafusion_substrait::substrait::proto::extensions::AdvancedExtension;
use datafusion_substrait::substrait::proto::rel::RelType;
use datafusion_substrait::substrait::proto::{Plan, Rel, RelRoot, plan_rel};
use prost::Message;
use skytether_common::Kind;
use skytether_plan::{Pushdown, codec};

const QUERIES: &[&str] = &[
    "SELECT k, sum(i), stddev(f) FILTER (WHERE b) FROM t WHERE s LIKE 'a%' AND k IN (1, 2, 3) GROUP BY k",
    "SELECT CASE WHEN i > 0 THEN upper(s) ELSE v END, CAST(i AS DOUBLE), m * 2 FROM t WHERE ts > TIMESTAMP '2020-11-01 00:00:00' AND NOT b LIMIT 5",
    "SELECT c, count(*), approx_percentile_cont(f, 0.5) FROM t WHERE c = 'B' OR ts + INTERVAL '1 month 2 days' > now() GROUP BY c",
    "SELECT count(*), avg(m), max(l) FROM t",
    "SELECT u, lag(i, 2) OVER (PARTITION BY k ORDER BY u), sum(f) OVER (PARTITION BY k ORDER BY u ROWS BETWEEN 3 PRECEDING AND 2 FOLLOWING) FROM facts",
    "SELECT f.k, o.k, count(*) FROM facts f FULL JOIN orders o ON f.k = o.k GROUP BY f.k, o.k",
];

async fn plans() -> Vec<Vec<u8>> {
    let host = whole();
    let mut plans = vec![];
    for sql in QUERIES {
        for policy in [Pushdown::Full, Pushdown::Filter] {
            let cut = cut_with(&host, optimized(&host, sql).await, policy);
            plans.extend(cut.scans.iter().map(|s| codec::encode(&s.sub_plan, &host.state()).unwrap().to_vec()));
        }
    }
    plans
}

#[tokio::test]
async fn mutated_plans_never_panic() {
    // Panics are caught inside `decode`, so they are counted here, on this thread only.
    count_panics();
    let state = whole().state();
    let plans = plans().await;
    let mut dice = Dice::new(7);
    let (mut good, mut bad) = (0, 0);
    for round in 0..6000 {
        let mut bytes = plans[round % plans.len()].clone();
        for _ in 0..=dice.roll(3) {
            let at = dice.roll(bytes.len());
            match dice.roll(6) {
                0 => bytes[at] ^= 1 << dice.roll(8),
                1 => bytes[at] = dice.roll(256) as u8,
                2 => bytes.truncate(at),
                3 => bytes.insert(at, dice.roll(256) as u8),
                4 => {
                    let other = &plans[dice.roll(plans.len())];
                    let from = dice.roll(other.len());
                    let piece: Vec<u8> = other[from..(from + dice.roll(24)).min(other.len())].to_vec();
                    bytes.splice(at..at, piece);
                }
                _ => {
                    bytes.remove(at);
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        match codec::decode(&bytes, &state).await {
            Ok(_) => good += 1,
            Err(e) => {
                assert_ne!(e.kind(), Kind::Corrupt);
                bad += 1;
            }
        }
    }
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..dice.roll(200)).map(|_| dice.roll(256) as u8).collect();
        assert!(codec::decode(&bytes, &state).await.is_err());
    }
    assert_eq!(panics(), 0);
    // Most mutations hit names and values; if all or none were refused, the test would test something else.
    assert!(good > 100 && bad > 100, "{good} good, {bad} bad");
}

async fn refused(plan: &Plan) -> (Kind, String) {
    let error = codec::decode(&plan.encode_to_vec(), &whole().state()).await.unwrap_err();
    (error.kind(), error.to_string())
}

async fn example() -> Plan {
    Plan::decode(plans().await[0].as_slice()).unwrap()
}

fn root(plan: &mut Plan) -> &mut RelRoot {
    match plan.relations[0].rel_type.as_mut().unwrap() {
        plan_rel::RelType::Root(root) => root,
        _ => unreachable!(),
    }
}

#[tokio::test]
async fn enhancements_are_refused_and_optimizations_ignored() {
    let any = |url: &str| pbjson(url);
    let mut plan = example().await;
    plan.advanced_extensions = Some(AdvancedExtension { optimization: vec![any("type.example/hint")], enhancement: None });
    codec::decode(&plan.encode_to_vec(), &whole().state()).await.unwrap();
    plan.advanced_extensions = Some(AdvancedExtension { optimization: vec![], enhancement: Some(any("type.example/twist")) });
    let (kind, text) = refused(&plan).await;
    assert_eq!(kind, Kind::Unsupported);
    assert!(text.contains("type.example/twist"), "{text}");

    let mut plan = example().await;
    let Some(RelType::Aggregate(aggregate)) = root(&mut plan).input.as_mut().unwrap().rel_type.as_mut() else { panic!("an aggregate was sent") };
    aggregate.advanced_extension = Some(AdvancedExtension { optimization: vec![], enhancement: Some(any("type.example/deep")) });
    assert!(refused(&plan).await.1.contains("type.example/deep"));
}

/// A `google.protobuf.Any` in the type that the generated code wants, whatever crate that is from.
fn pbjson<A: Message + Default>(url: &str) -> A {
    let mut bytes = vec![0x0a, url.len() as u8];
    bytes.extend_from_slice(url.as_bytes());
    A::decode(bytes.as_slice()).unwrap()
}

#[tokio::test]
async fn unknown_features_are_refused_by_name() {
    use datafusion_substrait::substrait::proto::extensions::simple_extension_declaration::MappingType;
    let mut plan = example().await;
    for declaration in &mut plan.extensions {
        if let Some(MappingType::ExtensionFunction(f)) = &mut declaration.mapping_type
            && f.name == "__sum_state"
        {
            f.name = "launch_missiles".into();
        }
    }
    let (kind, text) = refused(&plan).await;
    assert_eq!(kind, Kind::Unsupported);
    assert!(text.contains("launch_missiles"), "{text}");

    let mut plan = example().await;
    root(&mut plan).input = Some(Rel { rel_type: Some(RelType::Write(Box::default())) });
    let (kind, text) = refused(&plan).await;
    assert_eq!(kind, Kind::Unsupported);
    assert!(text.contains("Write"), "{text}");

    let mut plan = example().await;
    plan.relations.push(plan.relations[0].clone());
    assert_eq!(refused(&plan).await.0, Kind::Unsupported);

    let mut plan = example().await;
    root(&mut plan).names.pop();
    assert_eq!(refused(&plan).await.0, Kind::Invalid);
}

#[tokio::test]
async fn tables_and_columns_are_checked_against_the_schema() {
    let bytes = &plans().await[0];
    let error = codec::decode(bytes, &session().state()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    let other = session();
    register(&other, "t", dim());
    let error = codec::decode(bytes, &other.state()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    assert!(error.to_string().contains("has no column"), "{error}");
}

#[tokio::test]
async fn too_much_is_refused() {
    let state = whole().state();
    assert_eq!(codec::decode(&vec![0; codec::MAX_BYTES + 1], &state).await.unwrap_err().kind(), Kind::Invalid);
    // A message within a message within a message: field 3 (relations) holds the plan's relation, whose
    // root's input nests filters.
    let mut bytes = vec![];
    for _ in 0..10_000 {
        let mut outer = vec![0x12];
        prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
        outer.extend_from_slice(&bytes);
        bytes = outer;
        if bytes.len() > 200_000 {
            break;
        }
    }
    assert!(codec::decode(&bytes, &state).await.is_err());
}

/// A window's call: frames that contradict themselves, and what the library would pass over, are refused.
#[tokio::test]
async fn window_frames_of_strangers_are_checked() {
    use datafusion_substrait::substrait::proto::expression::window_function::{Bound, bound};
    use datafusion_substrait::substrait::proto::expression::{RexType, WindowFunction};
    let host = whole();
    let sql = "SELECT sum(i) OVER (PARTITION BY k ORDER BY u ROWS BETWEEN 3 PRECEDING AND 2 FOLLOWING) FROM facts";
    let cut = cut_with(&host, optimized(&host, sql).await, Pushdown::Full);
    let plan = Plan::decode(codec::encode(&cut.scans[0].sub_plan, &host.state()).unwrap()).unwrap();
    fn call(rel: &mut Rel) -> Option<&mut WindowFunction> {
        let Some(RelType::Project(project)) = rel.rel_type.as_mut() else { return None };
        let found = project.expressions.iter().position(|e| matches!(e.rex_type, Some(RexType::WindowFunction(_))));
        match found.map(|at| &mut project.expressions[at].rex_type) {
            Some(Some(RexType::WindowFunction(call))) => Some(call),
            _ => call(project.input.as_mut()?),
        }
    }
    let changed = async |change: &dyn Fn(&mut WindowFunction)| {
        let mut plan = plan.clone();
        change(call(root(&mut plan).input.as_mut().unwrap()).unwrap());
        refused(&plan).await
    };
    codec::decode(&plan.encode_to_vec(), &host.state()).await.unwrap();
    let offset = |offset| Some(Bound { kind: Some(bound::Kind::Following(bound::Following { offset })) });
    assert_eq!(changed(&|c| c.upper_bound = None).await.0, Kind::Invalid);
    assert_eq!(changed(&|c| c.upper_bound = Some(Bound { kind: None })).await.0, Kind::Invalid);
    assert_eq!(changed(&|c| c.upper_bound = offset(0)).await.0, Kind::Invalid);
    assert_eq!(changed(&|c| c.lower_bound = offset(3)).await, (Kind::Invalid, "the plan has a window frame that ends before it begins".into()));
    assert_eq!(changed(&|c| c.bounds_type = 0).await.0, Kind::Unsupported);
    assert!(changed(&|c| c.bounds_type = 2).await.1.contains("range of values"));
    assert_eq!(changed(&|c| c.invocation = 2).await.0, Kind::Unsupported);
    assert_eq!(changed(&|c| c.phase = 1).await.0, Kind::Unsupported);
    assert_eq!(changed(&|c| c.function_reference = 77).await.0, Kind::Invalid);
    assert_eq!(changed(&|c| c.partitions[0].rex_type = None).await.0, Kind::Invalid);
}
