//! Programs that would take more than they may.

use std::time::{Duration, Instant};

use skytether_native::{Cause, Limits};

use crate::{contains, go, limits, printed, program};

/// A deadline that a program has time to begin before.
fn soon() -> Limits {
    program();
    Limits { deadline: Some(Instant::now() + Duration::from_millis(500)), ..Limits::default() }
}

#[test]
fn endless_programs_end_at_their_deadline() {
    if !contains() {
        return;
    }
    for which in ["loop", "sleep", "stop"] {
        let trap = go(&[which], &soon()).unwrap_err();
        assert!(matches!(trap.cause, Cause::Deadline) && trap.cause.signal() == 14, "{which}: {trap}");
    }
}

#[test]
fn deadline_of_the_past_ends_a_program_at_once() {
    if !contains() {
        return;
    }
    let trap = go(&["loop"], &Limits { deadline: Some(Instant::now()), ..Limits::default() }).unwrap_err();
    assert!(matches!(trap.cause, Cause::Deadline), "{trap}");
}

#[test]
fn memory_is_bounded() {
    if !contains() {
        return;
    }
    let outcome = go(&["memory"], &Limits { memory_bytes: 64 << 20, ..limits() }).unwrap();
    let taken: u32 = String::from_utf8(outcome.stdout.to_vec()).unwrap().parse().unwrap();
    assert!((32..64).contains(&taken), "it got {taken} MiB of 64");
    let trap = go(&["stack"], &limits()).unwrap_err();
    assert!(trap.cause.signal() == 11 && trap.to_string().contains("256 MiB"), "{trap}");
}

#[test]
fn program_larger_than_its_memory_does_not_harm() {
    if !contains() {
        return;
    }
    let trap = go(&["hello"], &Limits { memory_bytes: 64 << 10, ..limits() }).unwrap_err();
    assert!(matches!(trap.cause, Cause::Signal { .. } | Cause::Unexecutable(_)), "{trap}");
}

#[test]
fn fork_bomb_makes_no_process() {
    if !contains() {
        return;
    }
    assert_eq!(printed(&["forks"]), "EPERM");
}

#[test]
fn floods_end_at_the_limits_of_outputs() {
    if !contains() {
        return;
    }
    let trap = go(&["flood", "1"], &limits()).unwrap_err();
    assert!(matches!(trap.cause, Cause::StdoutLimit { limit: 65_536 }) && trap.stdout.len() == 65_536 && trap.cause.signal() == 25, "{trap}");
    let trap = go(&["flood", "4"], &Limits { output_bytes: 1 << 20, ..limits() }).unwrap_err();
    assert!(matches!(trap.cause, Cause::OutputLimit { limit: 1_048_576 }), "{trap}");
}

#[test]
fn standard_error_is_cut_and_does_not_end_a_program() {
    if !contains() {
        return;
    }
    let outcome = go(&["errors"], &limits()).unwrap();
    assert_eq!((outcome.exit_code, outcome.stderr.len()), (0, 4096));
}
