//! What ends programs before they return.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use skytether_common::{Error, Kind};
use skytether_wasm::{Cause, Limits, load};

use crate::drive::{Values, module, program, run, run_within, small, text_of, trap};

const ENDLESS: &str = "(loop $again (br $again)) i32.const 0";

#[test]
fn endless_loop_ends_at_the_instruction_limit() {
    let found = trap("", ENDLESS);
    assert!(matches!(found.cause, Cause::FuelLimit { limit: 2_000_000 }), "{found}");
    assert_eq!((found.fuel, found.cause.signal()), (2_000_000, 24));
    assert_eq!(Error::from(found).kind(), Kind::Exhausted);
}

#[test]
fn endless_loop_ends_at_its_deadline() {
    let limits = Limits { fuel: u64::MAX, deadline: Some(Instant::now() + Duration::from_millis(20)), ..small() };
    let loops = [ENDLESS, "(loop $again (drop (call $arg_count)) (br $again)) i32.const 0"];
    for body in loops {
        let found = run_within(&program("", body), &[], &mut Values::default(), &limits).unwrap_err();
        assert!(matches!(found.cause, Cause::Deadline), "{found}");
        assert_eq!(found.cause.signal(), 14);
    }
}

#[test]
fn program_does_not_start_after_its_deadline() {
    let limits = Limits { deadline: Some(Instant::now()), ..small() };
    let found = run_within(&program("", "i32.const 0"), &[], &mut Values::default(), &limits).unwrap_err();
    assert!(matches!(found.cause, Cause::Deadline) && found.fuel == 0, "{found}");
}

#[test]
fn endless_loop_ends_when_it_is_aborted() {
    let (aborted, limits) = (AtomicBool::new(false), Limits { fuel: u64::MAX, ..small() });
    let endless = program("", ENDLESS);
    let found = std::thread::scope(|scope| {
        let running = scope.spawn(|| skytether_wasm::run(&endless, &[], &mut Values::default(), &limits, &aborted));
        aborted.store(true, Ordering::Relaxed);
        running.join().unwrap().unwrap_err()
    });
    assert!(matches!(found.cause, Cause::Aborted) && found.cause.signal() == 9, "{found}");
}

#[test]
fn program_that_ends_within_its_fuel_is_no_trap() {
    // Many slices: none is lost.
    let body = "(local $n i32) (local.set $n (i32.const 1000000)) \
        (loop $again (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1))))) i32.const 9";
    let counting = program("", body);
    let limits = Limits { fuel: 100_000_000, ..small() };
    let whole = run_within(&counting, &[], &mut Values::default(), &limits).unwrap();
    assert!(whole.exit_code == 9 && whole.fuel > 2_000_000, "{whole:?}");
    let exact = Limits { fuel: whole.fuel, ..small() };
    assert_eq!(run_within(&counting, &[], &mut Values::default(), &exact).unwrap(), whole);
    let less = Limits { fuel: whole.fuel - 1, ..small() };
    assert!(matches!(run_within(&counting, &[], &mut Values::default(), &less).unwrap_err().cause, Cause::FuelLimit { .. }));
}

#[test]
fn memory_grows_to_its_limit_and_no_further() {
    // A page more than the limit of 16 is refused, and the program learns of it.
    let grow = "(drop (memory.grow (i32.const 15))) (i32.store (i32.const 1048572) (i32.const 5)) (memory.grow (i32.const 1))";
    assert_eq!(run(&program("", grow), &[], &mut Values::default()).unwrap().exit_code, -1);
    let whole = Limits::default();
    let grow = "(drop (memory.grow (i32.const 1023))) (i32.add (memory.grow (i32.const 1)) (i32.load (i32.const 67108860)))";
    assert_eq!(run_within(&program("", grow), &[], &mut Values::default(), &whole).unwrap().exit_code, -1);
    let large = Limits { memory_bytes: usize::MAX, ..whole };
    assert_eq!(run_within(&program("", grow), &[], &mut Values::default(), &large).unwrap().exit_code, -1);
    let none = Limits { memory_bytes: 65535, ..small() };
    let found = run_within(&program("", grow), &[], &mut Values::default(), &none).unwrap_err();
    assert!(matches!(found.cause, Cause::MemoryLimit { limit: 65535 }), "{found}");
}

#[test]
fn large_moves_of_memory_are_metered() {
    // More fuel than a slice for one step, and an endless repetition of it.
    let fill = "(drop (memory.grow (i32.const 1023))) (memory.fill (i32.const 0) (i32.const 7) (i32.const 67108864)) (i32.load8_u (i32.const 67108863))";
    let limits = Limits { fuel: 10_000_000, ..Limits::default() };
    let filled = run_within(&program("", fill), &[], &mut Values::default(), &limits).unwrap();
    assert!(filled.exit_code == 7 && filled.fuel > 1_000_000, "{filled:?}");
    let endless = "(drop (memory.grow (i32.const 1023))) (loop $again (memory.fill (i32.const 0) (i32.const 7) (i32.const 67108864)) (br $again)) i32.const 0";
    let found = run_within(&program("", endless), &[], &mut Values::default(), &limits).unwrap_err();
    assert!(matches!(found.cause, Cause::FuelLimit { .. }), "{found}");
}

#[test]
fn tables_grow_to_their_limit_and_no_further() {
    let fields = "(table $t 1 funcref)";
    let grow = "(drop (table.grow $t (ref.null func) (i32.const 9999))) (table.grow $t (ref.null func) (i32.const 1))";
    assert_eq!(run(&program(fields, grow), &[], &mut Values::default()).unwrap().exit_code, -1);
    let found = trap("(table 10001 funcref)", "i32.const 0");
    assert!(matches!(found.cause, Cause::Start(_)), "{found}");
}

#[test]
fn endless_recursion_ends_at_the_call_depth() {
    let found = trap("(func $deeper (call $deeper))", "(call $deeper) i32.const 0");
    assert!(matches!(found.cause, Cause::CallDepth) && found.cause.signal() == 11, "{found}");
    // Frames with many values end sooner.
    let locals = "(local i64)".repeat(4000);
    let found = trap(&format!("(func $deeper {locals} (call $deeper))"), "(call $deeper) i32.const 0");
    assert!(matches!(found.cause, Cause::CallDepth), "{found}");
    let deep = "(func $down (param i32) (if (local.get 0) (then (call $down (i32.sub (local.get 0) (i32.const 1))))))";
    assert_eq!(run(&program(deep, "(call $down (i32.const 900)) i32.const 4"), &[], &mut Values::default()).unwrap().exit_code, 4);
}

#[test]
fn traps_of_the_machine_have_their_signals() {
    let table = "(type $f (func (param i32))) (table 2 funcref) (elem (i32.const 0) $other) (func $other)";
    for (fields, body, signal, part) in [
        ("", "unreachable", 4, "unreachable"),
        ("", "(i32.load (i32.const 65533))", 11, "memory access"),
        ("", "(i32.store (i32.const -1) (i32.const 0)) i32.const 0", 11, "memory access"),
        ("", "(memory.fill (i32.const 0) (i32.const 0) (i32.const 65537)) i32.const 0", 11, "memory access"),
        ("", "(i32.div_s (i32.const 1) (i32.const 0))", 8, "arithmetic"),
        ("", "(i32.div_s (i32.const 0x80000000) (i32.const -1))", 8, "arithmetic"),
        ("", "(i32.trunc_f32_s (f32.const nan))", 8, "arithmetic"),
        (table, "(call_indirect (type $f) (i32.const 0) (i32.const 0)) i32.const 0", 11, "pointer"),
        (table, "(call_indirect (i32.const 1)) i32.const 0", 11, "pointer"),
        (table, "(call_indirect (i32.const 9)) i32.const 0", 11, "pointer"),
        ("(data (i32.const 65530) \"0123456789\")", "i32.const 0", 11, "does not fit"),
        ("(table 1 funcref) (elem (i32.const 1) $f) (func $f)", "i32.const 0", 11, "does not fit"),
    ] {
        let found = trap(fields, body);
        assert_eq!(found.cause.signal(), signal, "{body}: {found}");
        assert!(found.to_string().contains(part), "{body}: {found}");
    }
}

#[test]
fn output_and_standard_output_end_at_their_limits() {
    let found = trap("(data (i32.const 0) \"0123456789\")", "(loop $again (call $print (i32.const 0) (i32.const 9)) (br $again)) i32.const 0");
    assert!(matches!(found.cause, Cause::StdoutLimit { limit: 100 }) && found.cause.signal() == 25, "{found}");
    assert_eq!((found.stdout.len(), &found.stdout[97..]), (100, &b"780"[..]));
    let found = trap("", "(loop $again (call $emit (i32.const 0) (i32.const 999)) (br $again)) i32.const 0");
    assert!(matches!(found.cause, Cause::OutputLimit { limit: 1000 }), "{found}");
}

#[test]
fn refusal_of_the_host_keeps_its_error() {
    let secret = "(data (i32.const 0) \"secret\")";
    for (call, import) in [
        ("(drop (call $get (i32.const 0) (i32.const 6) (i32.const 64) (i32.const 8)))", "get"),
        ("(drop (call $next (i32.const 0) (i32.const 6) (i32.const 64) (i32.const 8)))", "next"),
        ("(call $put (i32.const 0) (i32.const 6) (i32.const 64) (i32.const 8))", "put"),
    ] {
        let found = trap(secret, &format!("(call $print (i32.const 0) (i32.const 6)) {call} i32.const 0"));
        assert!(matches!(found.cause, Cause::Refused { import: name, .. } if name == import), "{found}");
        assert_eq!((&found.stdout[..], found.cause.signal()), (&b"secret"[..], 0));
        assert!(Error::from(found).to_string().contains("may not touch this key"));
    }
}

#[test]
fn panic_of_the_host_ends_the_program_alone() {
    let program = program("(data (i32.const 0) \"panic\")", "(drop (call $get (i32.const 0) (call $arg_count) (i32.const 64) (i32.const 8))) i32.const 3");
    let five: [&[u8]; 5] = [b""; 5];
    let found = run(&program, &five, &mut Values::default()).unwrap_err();
    assert!(matches!(found.cause, Cause::Internal(_)) && found.cause.signal() == 6, "{found}");
    assert_eq!(run(&program, &[], &mut Values::default()).unwrap().exit_code, 3);
}

#[test]
fn program_does_not_start_with_too_many_arguments() {
    let arguments: Vec<&[u8]> = vec![b""; 4097];
    let found = run(&program("", "i32.const 0"), &arguments, &mut Values::default()).unwrap_err();
    assert!(matches!(found.cause, Cause::Arguments { count: 4097 }), "{found}");
}

#[test]
fn several_threads_run_a_program_at_once() {
    let program =
        load(&module(&text_of("(global $g (mut i32) (i32.const 0))", "(global.set $g (i32.add (global.get $g) (i32.const 1))) global.get $g"))).unwrap();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..8).map(|_| scope.spawn(|| run(&program, &[], &mut Values::default()).unwrap().exit_code)).collect();
        assert!(runs.into_iter().all(|run| run.join().unwrap() == 1));
    });
}
