//! What all tests need: a host in memory, programs from text, runs.

use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use skytether_wasm::{Limits, Outcome, Program, Trap, load};

pub(crate) use crate::values::Values;

/// What a drive has for programs to import, under the names that the texts of tests use.
const IMPORTS: &str = r#"
    (import "skytether" "arg_count" (func $arg_count (result i32)))
    (import "skytether" "arg" (func $arg (param i32 i32 i32) (result i64)))
    (import "skytether" "get" (func $get (param i32 i32 i32 i32) (result i64)))
    (import "skytether" "read" (func $read (param i64 i32 i32) (result i64)))
    (import "skytether" "next" (func $next (param i32 i32 i32 i32) (result i64)))
    (import "skytether" "put" (func $put (param i32 i32 i32 i32)))
    (import "skytether" "emit" (func $emit (param i32 i32)))
    (import "skytether" "print" (func $print (param i32 i32)))
    (import "skytether" "remaining" (func $remaining (result i64)))
    (import "skytether" "select" (func $select (param i32 i32 i64 i32 i32) (result i64)))
    (import "skytether" "count" (func $count (param i32 i32 i64) (result i64)))
    (import "skytether" "aggregate" (func $aggregate (param i32 i32 i32) (result i64)))
    (import "skytether" "sum" (func $sum (param i32 i32) (result i64)))
    (import "skytether" "minmax" (func $minmax (param i32 i32 i32) (result i32)))
    (import "skytether" "emit_selected" (func $emit_selected (param i32 i32) (result i64)))
    (import "skytether" "count_bits" (func $count_bits (param i32 i64) (result i64)))
"#;

/// The module of a text.
pub(crate) fn module(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

/// A module of all imports, `fields`, and a `main` with that body, over a page of memory.
pub(crate) fn text_of(fields: &str, body: &str) -> String {
    format!("(module {IMPORTS} (memory (export \"memory\") 1) {fields} (func (export \"main\") (result i32) {body}))")
}

pub(crate) fn program(fields: &str, body: &str) -> Program {
    load(&module(&text_of(fields, body))).unwrap()
}

/// Limits that programs of tests reach soon.
pub(crate) fn small() -> Limits {
    Limits { fuel: 2_000_000, memory_bytes: 1 << 20, output_bytes: 1000, stdout_bytes: 100, deadline: None }
}

/// Runs a program with small limits.
pub(crate) fn run(program: &Program, arguments: &[&[u8]], host: &mut Values) -> Result<Outcome, Trap> {
    run_within(program, arguments, host, &small())
}

pub(crate) fn run_within(program: &Program, arguments: &[&[u8]], host: &mut Values, limits: &Limits) -> Result<Outcome, Trap> {
    let arguments: Vec<Bytes> = arguments.iter().map(|argument| Bytes::copy_from_slice(argument)).collect();
    skytether_wasm::run(program, &arguments, host, limits, &AtomicBool::new(false))
}

/// How a program with that body ends that does not return.
pub(crate) fn trap(fields: &str, body: &str) -> Trap {
    run(&program(fields, body), &[b"key"], &mut Values::with(&[("key", b"value")])).unwrap_err()
}
