//! An option of a foreign plan is accepted only where the engine does what the option says; these tests compare both.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::common::TableReference;
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::TableSource;
use datafusion::prelude::SessionContext;
use prost::Message;
use skytether_common::{Error, Kind, Result};
use skytether_plan::error::from_datafusion;
use skytether_plan::substrait_import::{ImportedPlan, Limits, TableLookup};

use crate::proto::*;

const LIMITS: Limits = Limits { bytes: 1 << 20, relations: 100, depth: 50, expressions: 5000, levels: 100 };

struct Session(SessionContext);

#[async_trait]
impl TableLookup for Session {
    async fn find(&self, _: &[String]) -> Result<(TableReference, Arc<dyn TableSource>)> {
        let reference = TableReference::bare("t");
        let provider = self.0.table_provider(reference.clone()).await.map_err(|_| Error::not_found("t"))?;
        Ok((reference, provider_as_source(provider)))
    }
}

impl Session {
    /// A table of one row: 64-bit numbers, floats, texts, one of them null.
    async fn new() -> Self {
        let context = SessionContext::new();
        let columns = "9223372036854775807::bigint AS most, (-9223372036854775807 - 1)::bigint AS least, -1::bigint AS minus, 0::bigint AS nothing, \
            2.5::double AS half, 0.0::double AS zero, -2.0::double AS negative, 'aB' AS text, CAST(NULL AS VARCHAR) AS missing, '-' AS dash, 1e308::double AS huge";
        context.sql(&format!("CREATE TABLE t AS SELECT {columns}")).await.unwrap().collect().await.unwrap();
        Self(context)
    }

    /// What a call over the columns gives, as text.
    async fn value(&self, function: &str, columns: &[i32], option: &str, preferences: &[&str]) -> Result<String> {
        let text = [("text", TEXT_TYPE), ("missing", TEXT_TYPE), ("dash", TEXT_TYPE), ("huge", FP64_TYPE)];
        let numbers = ["most", "least", "minus", "nothing"].map(|n| (n, I64_TYPE));
        let floats = ["half", "zero", "negative"].map(|n| (n, FP64_TYPE));
        let columns_read: Vec<_> = numbers.into_iter().chain(floats).chain(text).collect();
        let call = call_with(0, columns.iter().map(|n| field(*n)).collect(), &[(option, preferences)]);
        let plan = plan(&[function], vec![], project(read(&["t"], &columns_read), vec![call]));
        let logical = ImportedPlan::decode(&plan.encode_to_vec(), LIMITS)?.logical(&self.0.state(), self).await?;
        let batches = self.0.execute_logical_plan(logical).await.map_err(from_datafusion)?.collect().await.map_err(from_datafusion)?;
        let column = batches[0].columns().last().unwrap();
        Ok(array_value_to_string(column, 0).unwrap())
    }
}

const MOST: i32 = 0;
const LEAST: i32 = 1;
const MINUS: i32 = 2;
const NOTHING: i32 = 3;
const HALF: i32 = 4;
const ZERO: i32 = 5;
const NEGATIVE: i32 = 6;
const TEXT: i32 = 7;
const MISSING: i32 = 8;
const DASH: i32 = 9;
const HUGE: i32 = 10;

#[tokio::test]
async fn accepted_options_are_obeyed() {
    let session = Session::new().await;
    for (function, columns, option, preference, value) in [
        ("add:i64_i64", &[MOST, MOST][..], "overflow", "SILENT", "-2"),
        ("subtract:i64_i64", &[LEAST, MOST], "overflow", "SILENT", "1"),
        ("multiply:i64_i64", &[LEAST, MINUS], "overflow", "SILENT", "-9223372036854775808"),
        ("add:fp64_fp64", &[HUGE, HUGE], "overflow", "SILENT", "inf"),
        ("add:fp64_fp64", &[HALF, HALF], "rounding", "TIE_TO_EVEN", "5.0"),
        ("divide:fp64_fp64", &[HALF, ZERO], "on_division_by_zero", "LIMIT", "inf"),
        ("divide:fp64_fp64", &[HALF, ZERO], "on_division_by_zero", "IEEE", "inf"),
        ("divide:fp64_fp64", &[ZERO, ZERO], "on_domain_error", "NAN", "NaN"),
        ("modulus:i64_i64", &[LEAST, MINUS], "overflow", "ERROR", "0"),
        ("modulus:i64_i64", &[MINUS, MOST], "division_type", "TRUNCATE", "-1"),
        ("negate:fp64", &[HALF], "overflow", "SILENT", "-2.5"),
        ("acos:fp64", &[HALF], "on_domain_error", "NAN", "NaN"),
        ("asin:fp64", &[HALF], "on_domain_error", "NAN", "NaN"),
        ("acosh:fp64", &[NEGATIVE], "on_domain_error", "NAN", "NaN"),
        ("atanh:fp64", &[HALF], "on_domain_error", "NAN", "NaN"),
        ("ln:fp64", &[NEGATIVE], "on_domain_error", "NAN", "NaN"),
        ("log10:fp64", &[NEGATIVE], "on_domain_error", "NAN", "NaN"),
        ("log2:fp64", &[NEGATIVE], "on_domain_error", "NAN", "NaN"),
        ("ln:fp64", &[ZERO], "on_log_zero", "MINUS_INFINITY", "-inf"),
        ("log10:fp64", &[ZERO], "on_log_zero", "MINUS_INFINITY", "-inf"),
        ("log2:fp64", &[ZERO], "on_log_zero", "MINUS_INFINITY", "-inf"),
        ("round:fp64_i32", &[HALF, NOTHING], "rounding", "TIE_AWAY_FROM_ZERO", "3.0"),
        ("concat:str", &[TEXT, MISSING], "null_handling", "ACCEPT_NULLS", ""),
        ("concat:str", &[TEXT, MISSING], "null_handling", "IGNORE_NULLS", "aB"),
        ("concat_ws:str_str", &[DASH, TEXT, MISSING, TEXT], "null_handling", "IGNORE_NULLS", "aB-aB"),
        ("upper:str", &[TEXT], "char_set", "UTF8", "AB"),
    ] {
        let got = session.value(function, columns, option, &[preference]).await.unwrap_or_else(|e| panic!("{function} {option}: {}", e.report()));
        assert_eq!(got, value, "{function} {option} {preference}");
    }
    // These are errors when the plan is run, as it wants.
    for (function, columns, option) in [
        ("divide:i64_i64", &[LEAST, MINUS][..], "overflow"),
        ("divide:i64_i64", &[MOST, NOTHING], "on_division_by_zero"),
        ("modulus:i64_i64", &[MOST, NOTHING], "on_domain_error"),
        ("abs:i64", &[LEAST], "overflow"),
        ("factorial:i64", &[MOST], "overflow"),
        ("sqrt:fp64", &[NEGATIVE], "on_domain_error"),
    ] {
        let error = session.value(function, columns, option, &["ERROR"]).await.unwrap_err();
        assert!(!error.report().contains("does not do"), "{function} {option}: {}", error.report());
    }
}

#[tokio::test]
async fn unsupported_options_are_refused_by_name() {
    let session = Session::new().await;
    for (function, columns, option, preference) in [
        ("round:fp64_i32", &[HALF, NOTHING][..], "rounding", "TIE_TO_EVEN"),
        ("exp:fp64", &[HALF], "rounding", "TIE_TO_EVEN"),
        ("sqrt:fp64", &[NEGATIVE], "on_domain_error", "NAN"),
        ("concat_ws:str_str", &[DASH, TEXT, MISSING], "null_handling", "ACCEPT_NULLS"),
        ("upper:str", &[TEXT], "null_handling", "ACCEPT_NULLS"),
        ("upper:str", &[TEXT], "padding", "RIGHT"),
        ("divide:i64_i64", &[LEAST, MINUS], "overflow", "SILENT"),
        ("divide:fp64_fp64", &[HALF, ZERO], "on_division_by_zero", "ERROR"),
        ("abs:i64", &[LEAST], "overflow", "SILENT"),
        ("negate:i64", &[LEAST], "overflow", "SILENT"),
        ("add:i64_i64", &[MOST, MOST], "overflow", "ERROR"),
        ("add", &[MOST, MOST], "overflow", "SILENT"),
        ("upper:str", &[TEXT], "case_sensitivity", "CASE_SENSITIVE"),
    ] {
        let error = session.value(function, columns, option, &[preference]).await.unwrap_err();
        let name = function.split(':').next().unwrap();
        let text = error.report();
        assert_eq!(error.kind(), Kind::Unsupported, "{function} {option}: {text}");
        assert!(text.contains(&format!("{name:?}")) && text.contains(&format!("{option} = {preference}")), "{text}");
    }
}

#[tokio::test]
async fn the_first_preference_that_can_be_met_is_done() {
    let session = Session::new().await;
    let got = session.value("concat:str", &[TEXT, MISSING], "null_handling", &["WHATEVER", "IGNORE_NULLS", "ACCEPT_NULLS"]).await.unwrap();
    assert_eq!(got, "aB");
}
