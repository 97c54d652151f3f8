//! Each way in which a program ends before it returns, in both engines. The process lives on.

use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_common::{Error, Kind};
use skytether_ebpf::{Access, Cause, Engine, Limits, run_on};

use crate::drive::{BOTH, Values, both, program, small, trap};

const LOOP: &str = "add64 r3, 1\nja -2";

#[test]
fn endless_loop_ends_at_the_instruction_limit() {
    let found = trap(LOOP, &small());
    assert!(matches!(found.cause, Cause::InstructionLimit { limit: 1_000_000 }), "{found}");
    assert_eq!((found.instructions, found.cause.signal()), (1_000_000, 24));
    assert_eq!(Error::from(found).kind(), Kind::Exhausted);
}

#[test]
fn endless_recursion_ends_at_the_call_depth() {
    let found = trap("call function_f\nexit\nfunction_f:\ncall function_f\nexit", &small());
    assert!(matches!(found.cause, Cause::CallDepth), "{found}");
    assert_eq!(found.instruction, Some(2));
}

#[test]
fn load_and_store_out_of_regions_are_memory_accesses() {
    for (text, access, address, length) in [
        ("mov64 r1, 0\nldxb r0, [r1+0]\nexit", Access::Load, 0, 1),
        ("lddw r1, 0x100000000\nldxdw r0, [r1+8]\nexit", Access::Load, 0x1_0000_0008, 8),
        ("ldxw r0, [r10-5000]\nexit", Access::Load, 0x2_0000_1000 - 5000, 4),
        ("mov64 r1, -4\nldxw r0, [r1+0]\nexit", Access::Load, u64::MAX - 3, 4),
        ("lddw r1, 0x20003ffff\nldxh r0, [r1+0]\nexit", Access::Load, 0x2_0003_ffff, 2),
        ("lddw r1, 0x400000000\nstxdw [r1+0], r1\nexit", Access::Store, 0x4_0000_0000, 8),
        ("lddw r1, 0xffff00000000\nstb [r1+0], 1\nexit", Access::Store, 0xffff_0000_0000, 1),
    ] {
        let found = trap(text, &small());
        let Cause::Memory { access: a, address: at, length: l } = found.cause else { panic!("{text}: {found}") };
        assert_eq!((a, at, l), (access, address, length), "{text}");
    }
}

#[test]
fn store_to_read_only_memory_is_a_memory_access() {
    // Arguments and values: region 5 is the first argument, 9 the first slot.
    let argument = "mov64 r1, 0\nmov64 r2, 0\nsyscall 7\nldxb r3, [r0+2]\nstb [r0+2], 1\nexit";
    let value = "lddw r1, 0x500000000\nmov64 r2, 3\nmov64 r3, 0\nsyscall 1\nldxb r3, [r0+4]\nstb [r0+4], 1\nexit";
    for (text, address) in [(argument, 0x5_0000_0002), (value, 0x9_0000_0004)] {
        let found = trap(text, &small());
        assert!(matches!(found.cause, Cause::Memory { access: Access::Store, address: at, length: 1 } if at == address), "{found}");
        assert_eq!(found.cause.signal(), 11);
    }
}

#[test]
fn division_by_zero_is_named() {
    for operation in ["div64", "div32", "mod64", "mod32"] {
        let found = trap(&format!("mov64 r0, 5\nmov64 r1, 0\n{operation} r0, r1\nexit"), &small());
        assert!(matches!(found.cause, Cause::DivisionByZero), "{found}");
        assert_eq!((found.instruction, found.instructions), (Some(2), 3));
    }
}

#[test]
fn program_without_return_runs_past_its_end() {
    let found = trap("mov64 r0, 1", &small());
    assert!(matches!(found.cause, Cause::PastEnd), "{found}");
}

#[test]
fn output_and_standard_output_end_at_their_limits() {
    let text = |helper| format!("mov64 r6, 0\nmov64 r1, r10\nadd64 r1, -64\nmov64 r2, 64\nsyscall {helper}\nja -5");
    let found = trap(&text(4), &small());
    assert!(matches!(found.cause, Cause::OutputLimit { limit: 1000 }), "{found}");
    let found = trap(&text(5), &small());
    assert!(matches!(found.cause, Cause::StdoutLimit { limit: 100 }), "{found}");
    assert_eq!(found.stdout.len(), 100);
}

#[test]
fn values_mapped_at_once_end_at_their_limits() {
    let get = |argument: u64, length| format!("lddw r1, 0x{:x}00000000\nmov64 r2, {length}\nmov64 r3, 0\nsyscall 1\nja -6", 5 + argument);
    let found = trap(&get(1, 5), &small());
    assert!(matches!(found.cause, Cause::MappedBytes { limit: 10_000 }), "{found}");
    let found = trap(&get(0, 3), &small());
    assert!(matches!(found.cause, Cause::MappedValues { limit: 4 }), "{found}");
}

#[test]
fn allocations_end_at_the_scratch_limit() {
    for size in ["4000", "-1"] {
        let found = trap(&format!("mov64 r1, {size}\nsyscall 8\nja -3"), &small());
        assert!(matches!(found.cause, Cause::ScratchLimit { limit: 10_000 }), "{found}");
    }
}

#[test]
fn refusal_of_the_host_keeps_its_error() {
    let found = trap("lddw r1, 0x700000000\nmov64 r2, 6\nmov64 r3, 0\nsyscall 1\nexit", &small());
    assert!(matches!(&found.cause, Cause::Refused { helper: "get", error } if error.kind() == Kind::Invalid), "{found}");
    assert!(found.to_string().contains("may not touch this key"), "{found}");
}

#[test]
fn panic_of_the_host_ends_the_program_alone() {
    let found = trap("lddw r1, 0x800000000\nmov64 r2, 5\nmov64 r3, 0\nsyscall 1\nexit", &small());
    assert!(matches!(found.cause, Cause::Internal(_)), "{found}");
}

#[test]
fn deadline_ends_loops_and_helpers() {
    let endless = Limits { instructions: u64::MAX, ..Limits::default() };
    for text in [LOOP, "syscall 6\nja -2"] {
        let program = program(text);
        for engine in BOTH {
            let begun = Instant::now();
            let limits = Limits { deadline: Some(begun + Duration::from_millis(30)), ..endless.clone() };
            let found = run_on(engine, &program, &[], &mut Values::default(), &limits).unwrap_err();
            assert!(matches!(found.cause, Cause::Deadline), "{found}");
            assert!(found.instructions > 1000, "{found}");
        }
    }
}

#[test]
fn program_does_not_start_after_its_deadline() {
    let limits = Limits { deadline: Some(Instant::now()), ..small() };
    let found = run_on(Engine::Compiled, &program("exit"), &[], &mut Values::default(), &limits).unwrap_err();
    assert!(matches!(found.cause, Cause::Deadline) && found.instruction.is_none(), "{found}");
}

#[test]
fn program_does_not_start_with_too_many_arguments() {
    let arguments = vec![Bytes::new(); skytether_ebpf::MAX_ARGUMENTS + 1];
    let found = run_on(Engine::Compiled, &program("exit"), &arguments, &mut Values::default(), &small()).unwrap_err();
    assert!(matches!(found.cause, Cause::Arguments { count: 4097 }), "{found}");
}

#[test]
fn exit_within_the_limit_is_no_trap() {
    for (instructions, ends) in [(3, true), (2, false)] {
        let limits = Limits { instructions, ..small() };
        let result = both(&program("mov64 r0, 7\nadd64 r0, r1\nexit"), &[b"one", b"two"], &Values::default(), &limits).0;
        assert_eq!(result.ok().map(|outcome| (outcome.exit_code, outcome.instructions)), ends.then_some((9, 3)));
    }
}
