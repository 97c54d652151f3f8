//! Helpers: results, and what they refuse.

use skytether_ebpf::Cause;

use crate::drive::{Values, both, program, small, trap};

/// The exit code and the output of a program, with `key` and `text` as its arguments (regions 5 and 6).
fn run(text: &str) -> (i32, Vec<u8>, Values) {
    let host = Values::with(&[("key", b"value"), ("lab/1", b""), ("lab/2", b"x")]);
    let (outcome, host) = both(&program(text), &[b"key", b"a needle in a haystack"], &host, &small());
    let outcome = outcome.unwrap();
    (outcome.exit_code, outcome.output.to_vec(), host)
}

#[test]
fn put_stores_and_next_walks() {
    let (_, _, host) = run("lddw r1, 0x600000000\nmov64 r2, 1\nlddw r3, 0x500000000\nmov64 r4, 3\nsyscall 3\nexit");
    assert_eq!(host.0.get(&b"a"[..]).map(|value| &value[..]), Some(&b"key"[..]));
    // The key after `key` is `lab/1`; only three bytes fit.
    let next = "lddw r1, 0x500000000\nmov64 r2, 3\nmov64 r3, r10\nadd64 r3, -8\nmov64 r4, 3\nsyscall 2\nmov64 r6, r0\n";
    let (code, output, _) = run(&format!("{next}mov64 r1, r10\nadd64 r1, -8\nmov64 r2, 8\nsyscall 4\nmov64 r0, r6\nexit"));
    assert_eq!((code, &output[..]), (5, &b"lab\0\0\0\0\0"[..]));
    let (code, ..) = run("lddw r1, 0x600000000\nmov64 r2, 0\nmov64 r3, 0\nmov64 r4, 0\nsyscall 2\nexit");
    assert_eq!(code, 3);
}

#[test]
fn released_values_are_out_of_memory() {
    let get = "lddw r1, 0x500000000\nmov64 r2, 3\nmov64 r3, 0\nsyscall 1\nmov64 r6, r0\n";
    let (code, ..) = run(&format!("{get}ldxb r7, [r6+0]\nmov64 r1, r6\nsyscall 9\n{get}ldxb r0, [r6+1]\nadd64 r0, r7\nexit"));
    assert_eq!(code, i32::from(b'v') + i32::from(b'a'));
    let found = trap(&format!("{get}mov64 r1, r6\nsyscall 9\nldxb r0, [r6+0]\nexit"), &small());
    assert!(matches!(found.cause, Cause::Memory { .. }), "{found}");
    for address in ["r6\nsyscall 9\nmov64 r1, r6", "0", "r10", "-1"] {
        let found = trap(&format!("{get}mov64 r1, {address}\nsyscall 9\nexit"), &small());
        assert!(matches!(found.cause, Cause::Argument { helper: "release", .. }), "{found}");
    }
}

#[test]
fn a_loop_that_releases_may_map_any_number() {
    let text = "mov64 r7, 100\nlddw r1, 0x500000000\nmov64 r2, 3\nmov64 r3, 0\nsyscall 1\nmov64 r1, r0\nsyscall 9\n\
        mov64 r1, 5000\nsyscall 8\nmov64 r1, r0\nsyscall 9\nsub64 r7, 1\njne r7, 0, -13\nmov64 r0, r7\nexit";
    assert_eq!(run(text).0, 0);
}

#[test]
fn bytes_are_compared_found_copied_and_filled() {
    let text = "lddw r1, 0x600000000";
    assert_eq!(run(&format!("{text}\nmov64 r2, 22\nlddw r3, 0x600000002\nmov64 r4, 6\nsyscall 12\nexit")).0, 2);
    assert_eq!(run(&format!("{text}\nmov64 r2, 22\nlddw r3, 0x500000000\nmov64 r4, 3\nsyscall 12\nexit")).0, -1);
    assert_eq!(run(&format!("{text}\nmov64 r2, 22\nlddw r3, 0x500000000\nmov64 r4, 3\nsyscall 11\nexit")).0, -1);
    assert_eq!(run("mov64 r1, 0\nmov64 r2, 0\nmov64 r3, 0\nmov64 r4, 0\nsyscall 11\nexit").0, 0);
    let stack = "mov64 r6, r10\nadd64 r6, -16\n";
    let filled = format!("{stack}mov64 r1, r6\nmov64 r2, 65\nmov64 r3, 16\nsyscall 14\n");
    let copied = "mov64 r1, r6\nadd64 r1, 1\nlddw r2, 0x600000002\nmov64 r3, 6\nsyscall 13\n";
    let moved = "mov64 r1, r6\nadd64 r1, 4\nmov64 r2, r6\nmov64 r3, 8\nsyscall 13\n";
    let (_, output, _) = run(&format!("{filled}{copied}{moved}mov64 r1, r6\nmov64 r2, 16\nsyscall 4\nexit"));
    assert_eq!(String::from_utf8(output).unwrap(), "AneeAneedleAAAAA");
}

#[test]
fn floats_are_computed() {
    let float = |operation: u64, a: u64, b: u64| {
        let text = format!("mov64 r1, {operation}\nlddw r2, {a:#x}\nlddw r3, {b:#x}\nsyscall 15\nstxdw [r10-8], r0\n");
        let (_, output, _) = run(&format!("{text}mov64 r1, r10\nadd64 r1, -8\nmov64 r2, 8\nsyscall 4\nexit"));
        u64::from_le_bytes(output.try_into().unwrap())
    };
    let bits = f64::to_bits;
    for (operation, a, b, expected) in [
        (1, bits(1.5), bits(2.25), bits(3.75)),
        (2, bits(1.5), bits(2.25), bits(-0.75)),
        (3, bits(1.5), bits(2.5), bits(3.75)),
        (4, bits(1.0), bits(0.0), bits(f64::INFINITY)),
        (5, bits(2.25), 0, bits(1.5)),
        (6, bits(-1.0), bits(1.0), 1),
        (7, bits(-0.0), bits(0.0), 1),
        (8, u64::MAX, 0, bits(-1.0)),
        (9, bits(-2.9), 0, u64::MAX - 1),
        (9, bits(f64::NAN), 0, 0),
        (10, u64::from(0.5f32.to_bits()), 0, bits(0.5)),
        (11, bits(0.5), 0, u64::from(0.5f32.to_bits())),
    ] {
        assert_eq!(float(operation, a, b), expected, "{operation}");
    }
    let found = trap("mov64 r1, 12\nsyscall 15\nexit", &small());
    assert!(matches!(found.cause, Cause::Argument { helper: "float", .. }), "{found}");
}

/// A `struct st_column` in the stack at -32: base in r6.
fn column(count: u64, stride: u64, offset: u64, kind: u64) -> String {
    let layout = offset << 32 | stride;
    format!(
        "stxdw [r10-32], r6\nlddw r1, {count:#x}\nstxdw [r10-24], r1\nlddw r1, {layout:#x}\nstxdw [r10-16], r1\nlddw r1, {kind:#x}\nstxdw [r10-8], r1\n\
        mov64 r1, r10\nadd64 r1, -32\n"
    )
}

#[test]
fn selections_combine_and_emit_records() {
    // Bytes of the text above `m`, and of those the ones below `t`: n, n, s are left with others.
    let text = b"a needle in a haystack";
    let base = "lddw r6, 0x600000000\n";
    let select = |operation: u32, constant: u8, how: u32| {
        format!("{}mov64 r2, {operation}\nmov64 r3, {constant}\nmov64 r4, r10\nadd64 r4, -64\nmov64 r5, {how}\nsyscall 20\n", column(22, 1, 0, 2))
    };
    let emit = format!("mov64 r7, r0\n{}mov64 r2, r10\nadd64 r2, -64\nsyscall 25\nlsh64 r7, 8\nor64 r0, r7\nexit", column(22, 1, 0, 2));
    let (code, output, _) = run(&format!("{base}{}{}{emit}", select(5, b'm', 0), select(3, b't', 1)));
    let expected: Vec<u8> = text.iter().copied().filter(|byte| *byte > b'm' && *byte < b't').collect();
    assert_eq!((code, output), ((expected.len() * 257) as i32, expected));
    let (code, output, _) = run(&format!("{base}{}{}{emit}", select(1, b'e', 0), select(2, b'a', 2)));
    let expected: Vec<u8> = text.iter().copied().filter(|byte| *byte == b'e' || *byte != b'a').collect();
    assert_eq!((code, output), ((expected.len() * 257) as i32, expected));
    let count = format!("{base}{}mov64 r1, r10\nadd64 r1, -64\nmov64 r2, 10\nsyscall 26\nexit", select(1, b'e', 0));
    assert_eq!(run(&count).0, 3);
    let sum = format!("{base}{}{}mov64 r2, r10\nadd64 r2, -64\nsyscall 23\nexit", select(1, b'e', 0), column(22, 1, 0, 2));
    assert_eq!(run(&sum).0, 3 * i32::from(b'e'));
    let range = format!(
        "{base}{}mov64 r2, 0\nmov64 r3, r10\nadd64 r3, -80\nsyscall 24\nldxdw r1, [r10-72]\nldxdw r0, [r10-80]\nlsh64 r1, 8\nor64 r0, r1\nexit",
        column(22, 1, 0, 2)
    );
    assert_eq!(run(&range).0, i32::from(b'y') << 8 | i32::from(b' '));
}

#[test]
fn columns_that_make_no_sense_are_named() {
    let base = "lddw r6, 0x600000000\n";
    let count = "mov64 r2, 1\nmov64 r3, 0\nsyscall 21\nexit";
    for (column, what) in [
        (column(1, 1, 0, 0), "type"),
        (column(1, 1, 0, 11), "type"),
        (column(1, 1, 0, 1 << 32 | 1), "type"),
        (column(1, 3, 0, 5), "within the record"),
        (column(1, 8, 5, 5), "within the record"),
        (column(u64::MAX, u64::from(u32::MAX), 0, 1), "longer than memory"),
    ] {
        let found = trap(&format!("{base}{column}{count}"), &small());
        assert!(matches!(found.cause, Cause::Argument { helper: "count", what: text } if text.contains(what)), "{found}");
    }
    let found = trap(&format!("{base}{}{count}", column(7, 1, 0, 1)), &small());
    assert!(matches!(found.cause, Cause::Memory { .. }), "{found}");
    let found = trap(&format!("{base}{}mov64 r2, 7\nsyscall 21\nexit", column(1, 1, 0, 1)), &small());
    assert!(found.to_string().contains("comparison"), "{found}");
    // The bitmap is the column.
    let stack = format!("mov64 r6, r10\nadd64 r6, -100\n{}mov64 r2, 1\nmov64 r3, 0\nmov64 r4, r6\nmov64 r5, 0\nsyscall 20\nexit", column(8, 1, 0, 1));
    let found = trap(&stack, &small());
    assert!(found.to_string().contains("overlaps"), "{found}");
}

#[test]
fn bulk_work_ends_at_the_instruction_limit() {
    let text = format!("mov64 r1, 9000\nsyscall 8\nmov64 r6, r0\n{}mov64 r2, 1\nmov64 r3, 0\nsyscall 21\nja -4", column(9000, 1, 0, 1));
    let found = trap(&text, &small());
    assert!(matches!(found.cause, Cause::InstructionLimit { .. }), "{found}");
}
