//! How programs end, and what comes of them.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use skytether_common::{Error, Kind};
use skytether_native::{Call, Cause, check, probe, run};

use crate::{aborted, arguments, call, compiled, contains, go, limits, program};

#[test]
fn this_machine_contains_programs() {
    if !contains() {
        return;
    }
    probe().unwrap();
}

/// Where the kernel refuses, a program does not run, and the error says what was refused. This test executes itself in
/// a user name space in which no further one may be made.
#[test]
fn refused_step_is_named() {
    const INSIDE: &str = "SKYTETHER_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        let error = probe().unwrap_err();
        assert!(error.kind() == Kind::Unavailable && error.to_string().contains("new name spaces (clone"), "{error}");
        println!("inside: {error}");
        return;
    }
    if !contains() {
        return;
    }
    let forbid = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" --exact ends::refused_step_is_named --nocapture";
    let mut inside = Command::new("unshare");
    inside.args(["--user", "--map-root-user", "sh", "-c", forbid]).arg(std::env::current_exe().unwrap()).env(INSIDE, "1");
    let told = inside.output().unwrap();
    let printed = String::from_utf8_lossy(&told.stdout);
    assert!(told.status.success() && printed.contains("inside: native program: did not run"), "{told:?}");
}

#[test]
fn program_gets_arguments_and_gives_all_outputs() {
    if !contains() {
        return;
    }
    let outcome = go(&["hello", "a b", "", "\u{e9}"], &limits()).unwrap();
    assert_eq!((outcome.exit_code, &outcome.output[..]), (7, &b"output"[..]));
    assert_eq!((&outcome.stdout[..], &outcome.stderr[..]), ("many: a b  \u{e9}".as_bytes(), &b"to stderr\n"[..]));
}

#[test]
fn crashes_are_told_by_their_signals() {
    if !contains() {
        return;
    }
    for (arguments, signal) in [(&["crash"][..], 11), (&["abort"], 6), (&["signal", "8"], 8), (&["signal", "15"], 15), (&["signal", "9"], 9)] {
        let trap = go(arguments, &limits()).unwrap_err();
        assert!(trap.cause.signal() == signal && trap.to_string().contains(&format!("signal {signal}")), "{trap}");
    }
}

#[test]
fn aborted_program_ends() {
    if !contains() {
        return;
    }
    // Once before it has done anything, once when it waits for bytes that do not come.
    for bytes in [0, 1] {
        let trap = aborted(&["ready", "sleep"], |socket| {
            let mut socket = socket;
            socket.read_exact(&mut vec![0; bytes]).unwrap();
        });
        assert!(matches!(trap.cause, Cause::Aborted) && trap.cause.signal() == 9, "{trap}");
    }
}

#[test]
fn program_that_ignores_signals_is_aborted_all_the_same() {
    if !contains() {
        return;
    }
    let trap = aborted(&["ready", "ignore"], |mut socket| socket.read_exact(&mut [0]).unwrap());
    assert!(matches!(trap.cause, Cause::Aborted), "{trap}");
}

#[test]
fn socket_goes_both_ways_and_ends_with_the_program() {
    if !contains() {
        return;
    }
    let (ours, theirs) = UnixStream::pair().unwrap();
    (&ours).write_all(b"there and back").unwrap();
    let arguments = arguments(&["socket"]);
    let call = Call { socket: Some(theirs.into()), ..call(program(), &arguments) };
    assert_eq!(run(call, &limits(), &AtomicBool::new(false)).unwrap().exit_code, 0);
    let mut back = String::new();
    (&ours).read_to_string(&mut back).unwrap();
    assert_eq!(back, "there and back");
}

#[test]
fn programs_of_any_static_kind_run() {
    if !contains() {
        return;
    }
    for linked in ["-static", "-static-pie"] {
        let outcome = run(call(&compiled(linked), &arguments(&["self"])), &limits(), &AtomicBool::new(false)).unwrap();
        assert_eq!(outcome.exit_code, 0, "{linked}");
    }
}

#[test]
fn other_files_do_not_run() {
    let dynamic = compiled("-rdynamic");
    let mut damaged = program().to_vec();
    // The first program header: a segment that cannot be there.
    damaged[64 + 16..64 + 24].fill(0xff);
    damaged.truncate(4096);
    for (program, kind, text) in [(&dynamic[..], Kind::Unsupported, "dynamically linked"), (b"#!/bin/sh", Kind::Invalid, "no ELF file")] {
        let error = check(program).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(text), "{error}");
        let trap = run(call(program, &[]), &limits(), &AtomicBool::new(false)).unwrap_err();
        assert!(!trap.cause.has_run() && Error::from(trap).to_string() == error.to_string());
    }
    let trap = run(call(&damaged, &[]), &limits(), &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(trap.cause, Cause::Unexecutable(_) | Cause::Signal { .. }), "{trap}");
}

#[test]
fn arguments_that_no_program_can_have_are_refused() {
    let trap = |arguments: &[Bytes]| run(call(program(), arguments), &limits(), &AtomicBool::new(false)).unwrap_err();
    let zero = trap(&[Bytes::from_static(b"a\0b")]);
    assert!(matches!(zero.cause, Cause::Zero), "{zero}");
    let many = trap(&vec![Bytes::new(); 4097]);
    assert!(matches!(many.cause, Cause::Arguments { count: 4097 }), "{many}");
    let long = trap(&vec![Bytes::from(vec![b'x'; 100_000]); 100]);
    assert!(matches!(long.cause, Cause::Unexecutable(_)) && !long.cause.has_run(), "{long}");
}
