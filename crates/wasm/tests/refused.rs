//! Modules that are refused, and what the refusal names.

use skytether_common::Kind;
use skytether_wasm::{MAX_MODULE, is_module, load};

use crate::drive::{module, text_of};

fn refusal(bytes: &[u8]) -> (Kind, String) {
    let error = load(bytes).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn unknown_imports_are_named() {
    let main = "(memory (export \"memory\") 1) (func (export \"main\") (result i32) i32.const 0)";
    for (import, kind, part) in [
        ("\"wasi_snapshot_preview1\" \"fd_write\" (func (param i32 i32 i32 i32) (result i32))", Kind::Unsupported, "wasi_snapshot_preview1.fd_write"),
        ("\"env\" \"malloc\" (func (param i32) (result i32))", Kind::Unsupported, "env.malloc"),
        ("\"skytether\" \"open\" (func)", Kind::Unsupported, "skytether.open"),
        ("\"skytether\" \"print\" (func (param i64))", Kind::Invalid, "(i64) -> ()"),
        ("\"skytether\" \"print\" (memory 1)", Kind::Invalid, "skytether.print"),
        ("\"env\" \"memory\" (memory 1)", Kind::Unsupported, "env.memory"),
        ("\"env\" \"__indirect_function_table\" (table 1 funcref)", Kind::Unsupported, "env.__indirect_function_table"),
        ("\"e\\nv\" \"g\" (global i32)", Kind::Unsupported, "e\\nv.g"),
    ] {
        // A module has one memory.
        let main = if import.contains("memory") { "(func (export \"main\") (result i32) i32.const 0)" } else { main };
        let (found, text) = refusal(&module(&format!("(module (import {import}) {main})")));
        assert_eq!(found, kind, "{text}");
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn start_functions_are_refused() {
    let flood = "(start $flood) (func $flood (loop $again (br $again)))";
    let (kind, text) = refusal(&module(&text_of(flood, "i32.const 0")));
    assert!(kind == Kind::Invalid && text.contains("start"), "{text}");
}

#[test]
fn modules_without_their_exports_are_refused() {
    for (text, part) in [
        ("(module (memory (export \"memory\") 1))", "main"),
        ("(module (memory 1) (func (export \"main\") (result i32) i32.const 0))", "memory"),
        ("(module (func (export \"memory\")) (func (export \"main\") (result i32) i32.const 0))", "memory"),
        ("(module (memory (export \"memory\") 1) (func (export \"main\")))", "i32"),
        ("(module (memory (export \"memory\") 1) (func (export \"main\") (param i32) (result i32) i32.const 0))", "i32"),
        ("(module (memory (export \"memory\") 1) (global (export \"main\") i32 (i32.const 0)))", "i32"),
    ] {
        let (kind, found) = refusal(&module(text));
        assert!(kind == Kind::Invalid && found.contains(part), "{found}");
    }
}

#[test]
fn modules_that_begin_too_large_are_refused() {
    let main = "(func (export \"main\") (result i32) i32.const 0)";
    let (kind, text) = refusal(&module(&format!("(module (memory (export \"memory\") 1025) {main})")));
    assert!(kind == Kind::Invalid && text.contains("67108864"), "{text}");
    assert!(load(&module(&format!("(module (memory (export \"memory\") 1024) {main})"))).is_ok());
    // A custom section of more than the limit.
    let mut huge = module(&format!("(module (memory (export \"memory\") 1) {main})"));
    huge.push(0);
    huge.extend([0x80 | (MAX_MODULE & 0x7f) as u8, 0x80 | (MAX_MODULE >> 7 & 0x7f) as u8, 0x80 | (MAX_MODULE >> 14 & 0x7f) as u8, (MAX_MODULE >> 21) as u8]);
    huge.push(0);
    huge.resize(huge.len() + MAX_MODULE - 1, 0);
    let (kind, text) = refusal(&huge);
    assert!(kind == Kind::Invalid && text.contains("limit is 4194304"), "{text}");
}

#[test]
fn floods_of_functions_and_globals_are_refused() {
    let functions = "(func (param i32))".repeat(10_001);
    let globals = "(global i32 (i32.const 0))".repeat(1001);
    let data = "(data (i32.const 0) \"x\")".repeat(1001);
    let parameters = format!("(func (param {}))", "i32 ".repeat(33));
    for fields in [functions, globals, data, parameters] {
        let (kind, text) = refusal(&module(&text_of(&fields, "i32.const 0")));
        assert!(kind == Kind::Invalid && text.contains("exceeds"), "{text}");
    }
}

#[test]
fn instructions_that_drives_do_not_have_are_refused() {
    for fields in ["(func (drop (v128.const i32x4 0 0 0 0)))", "(memory 1)", "(func $f (return_call $f))"] {
        assert_eq!(refusal(&module(&text_of(fields, "i32.const 0"))).0, Kind::Invalid, "{fields}");
    }
    let wide = "(module (memory (export \"memory\") i64 1) (func (export \"main\") (result i32) i32.const 0))";
    assert_eq!(refusal(&module(wide)).0, Kind::Invalid);
}

#[test]
fn function_with_a_flood_of_locals_is_refused() {
    // Two bytes of the module claim 2^32 - 1 locals.
    let mut bytes = module("(module (memory (export \"memory\") 1) (func (export \"main\") (result i32) i32.const 0))");
    let at = bytes.len() - 6;
    assert_eq!(&bytes[at - 2..], [0x0a, 0x06, 0x01, 0x04, 0x00, 0x41, 0x00, 0x0b]);
    bytes.truncate(at - 2);
    bytes.extend([0x0a, 0x0c, 0x01, 0x0a, 0x01, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x7f, 0x41, 0x00, 0x0b]);
    let (kind, _) = refusal(&bytes);
    assert_eq!(kind, Kind::Invalid);
}

#[test]
fn module_over_which_the_machine_panics_is_refused() {
    // A function is declared, and the code section is of 600 bytes without one.
    let mut bytes = module("(module (memory (export \"memory\") 1) (func (export \"main\") (result i32) i32.const 0))");
    let at = bytes.windows(4).rposition(|window| window == [0x0a, 0x06, 0x01, 0x04]).unwrap();
    bytes.truncate(at);
    bytes.extend([0x0a, 0xb0, 0x0a, 0x00]);
    bytes.resize(bytes.len() + 0x52f, 0);
    let (kind, text) = refusal(&bytes);
    assert!(kind == Kind::Invalid && text.contains("cannot read the module"), "{text}");
}

#[test]
fn malformed_modules_are_refused() {
    assert!(!is_module(b"\x7fELF") && !is_module(b"\0as") && is_module(b"\0asm"));
    let good = module(&text_of("", "i32.const 0"));
    for (bytes, part) in [(&b""[..], "does not begin"), (b"\x7fELF", "does not begin"), (b"(module)", "does not begin"), (b"\0asm\x02\0\0\0", "version")] {
        let (kind, text) = refusal(bytes);
        assert!(kind == Kind::Invalid && text.contains(part), "{text}");
    }
    // Behind its code a module may end: names of functions follow.
    let whole = (4..good.len()).filter(|length| load(&good[..*length]).map_err(|error| assert_eq!(error.kind(), Kind::Invalid)).is_ok());
    assert!(whole.count() <= 1);
    let wrong = wat::parse_str("(module (memory (export \"memory\") 1) (func (export \"main\") (result i32) i64.const 0))").unwrap();
    assert!(refusal(&wrong).1.contains("type mismatch"));
}
