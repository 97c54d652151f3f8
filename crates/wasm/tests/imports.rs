//! Imports: results, and what they refuse.

use skytether_wasm::Cause;

use crate::drive::{Values, program, run, trap};

/// The exit code and the output of a program that has two arguments.
fn ended(fields: &str, body: &str) -> (i32, Vec<u8>, Values) {
    let mut host = Values::with(&[("key", b"value"), ("lab/1", b""), ("lab/2", b"x")]);
    let outcome = run(&program(fields, body), &[b"key", b"a needle"], &mut host).unwrap();
    (outcome.exit_code, outcome.output.to_vec(), host)
}

#[test]
fn arguments_are_copied_and_cut_off() {
    let body = "(call $arg (i32.const 1) (i32.const 8) (i32.const 4)) (call $emit (i32.const 8) (i32.const 6)) i32.wrap_i64";
    let (code, output, _) = ended("", body);
    assert_eq!((code, &output[..]), (8, &b"a ne\0\0"[..]));
    assert_eq!(ended("", "(i32.wrap_i64 (call $arg (i32.const 2) (i32.const 0) (i32.const 9)))").0, -1);
    assert_eq!(ended("", "call $arg_count").0, 2);
}

#[test]
fn values_are_copied_and_read_on() {
    let key = "(data (i32.const 0) \"keynone\")";
    let get = "(call $get (i32.const 0) (i32.const 3) (i32.const 16) (i32.const 2))";
    let rest = "(call $read (i64.const 3) (i32.const 24) (i32.const 40))";
    let body = format!("(local $n i64) (local.set $n {get}) (drop {rest}) (call $emit (i32.const 16) (i32.const 16)) (i32.wrap_i64 (local.get $n))");
    let (code, output, _) = ended(key, &body);
    assert_eq!((code, &output[..]), (5, &b"va\0\0\0\0\0\0ue\0\0\0\0\0\0"[..]));
    assert_eq!(ended(key, &format!("(drop {get}) (i32.wrap_i64 {rest})")).0, 2);
    // Behind the end, and where nothing was found, there is nothing to read.
    let none = "(call $get (i32.const 3) (i32.const 4) (i32.const 16) (i32.const 2))";
    assert_eq!(ended(key, &format!("(drop {get}) (i32.wrap_i64 {none})")).0, -1);
    for before in [get, none] {
        let body = format!("(drop {get}) (drop {before}) (i32.wrap_i64 (call $read (i64.const -1) (i32.const 0) (i32.const 9)))");
        assert_eq!(ended(key, &body).0, 0);
    }
    assert_eq!(ended(key, &format!("(drop {get}) (drop {none}) (i32.wrap_i64 {rest})")).0, 0);
}

#[test]
fn put_stores_and_next_walks() {
    let key = "(data (i32.const 0) \"keyz\")";
    let (_, _, host) = ended(key, "(call $put (i32.const 3) (i32.const 1) (i32.const 0) (i32.const 3)) i32.const 0");
    assert_eq!(host.0.get(&b"z"[..]).map(|value| &value[..]), Some(&b"key"[..]));
    let body = "(call $next (i32.const 0) (i32.const 3) (i32.const 16) (i32.const 3)) (call $emit (i32.const 16) (i32.const 4)) i32.wrap_i64";
    let (code, output, _) = ended(key, body);
    assert_eq!((code, &output[..]), (5, &b"lab\0"[..]));
    assert_eq!(ended(key, "(i32.wrap_i64 (call $next (i32.const 3) (i32.const 1) (i32.const 16) (i32.const 3)))").0, -1);
}

#[test]
fn imports_charge_for_their_work() {
    let remaining = "(local $n i64) (local.set $n (call $remaining))";
    let left = "(i32.wrap_i64 (i64.sub (local.get $n) (call $remaining)))";
    let (nothing, ..) = ended("", &format!("{remaining} {left}"));
    assert!((20..60).contains(&nothing), "{nothing}");
    let emit = "(call $emit (i32.const 0) (i32.const 960))";
    let (emitted, ..) = ended("", &format!("{remaining} {emit} {left}"));
    assert!((nothing + 140..nothing + 160).contains(&emitted), "{emitted}");
    let get = "(drop (call $get (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))";
    let (got, ..) = ended("", &format!("{remaining} {get} {left}"));
    assert!(got > nothing + 1000, "{got}");
}

/// `struct st_column` at 256: an array of integers of 4 bytes at 512, in records of 8.
fn column(count: u64, stride: u32, offset: u32, kind: u32) -> String {
    let bytes: Vec<u8> =
        [512u64.to_le_bytes(), count.to_le_bytes(), (u64::from(offset) << 32 | u64::from(stride)).to_le_bytes(), u64::from(kind).to_le_bytes()].concat();
    let escaped = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\{byte:02x}")).collect::<String>();
    let records: Vec<u8> = (0..100u32).flat_map(|i| [i, 1000 - i]).flat_map(u32::to_le_bytes).collect();
    format!("(data (i32.const 256) \"{}\") (data (i32.const 512) \"{}\")", escaped(&bytes), escaped(&records))
}

#[test]
fn selections_combine_and_emit_records() {
    let fields = column(100, 8, 4, 6);
    // 1000 - i < 980 leaves 21 to 99; 1000 - i >= 901 leaves up to 99, and != 950 all but 50.
    let select = |comparison: u32, constant: u32, how: u32| {
        format!("(call $select (i32.const 256) (i32.const {comparison}) (i64.const {constant}) (i32.const 2000) (i32.const {how}))")
    };
    let both = format!("(drop {}) (i32.wrap_i64 {})", select(3, 980, 0), select(2, 950, 1));
    assert_eq!(ended(&fields, &both).0, 78);
    let either = format!("(drop {}) (i32.wrap_i64 {})", select(3, 910, 0), select(1, 1000, 2));
    assert_eq!(ended(&fields, &either).0, 10);
    let (code, output, _) = ended(&fields, &format!("(drop {either}) (i32.wrap_i64 (call $emit_selected (i32.const 256) (i32.const 2000)))"));
    assert_eq!((code, output.len()), (10, 80));
    assert_eq!((&output[..8], &output[72..76]), (&[0, 0, 0, 0, 0xe8, 3, 0, 0][..], &99u32.to_le_bytes()[..]));
    let bits = format!("(drop {either}) (i32.wrap_i64 (call $count_bits (i32.const 2000) (i64.const 99)))");
    assert_eq!(ended(&fields, &bits).0, 9);
    let count = "(i32.wrap_i64 (call $count (i32.const 256) (i32.const 5) (i64.const 990)))";
    assert_eq!(ended(&fields, count).0, 10);
    let sum = format!("(drop {either}) (i32.wrap_i64 (call $sum (i32.const 256) (i32.const 2000)))");
    assert_eq!(ended(&fields, &sum).0, (901..910).sum::<i32>() + 1000);
    assert_eq!(ended(&fields, "(i32.wrap_i64 (call $sum (i32.const 256) (i32.const 0)))").0, (901..=1000).sum::<i32>());
    let emit = "(call $emit (i32.const 2100) (i32.const 40)) i32.const 0";
    let (_, output, _) = ended(&fields, &format!("(drop {either}) (drop (call $aggregate (i32.const 256) (i32.const 2000) (i32.const 2100))) {emit}"));
    let words: Vec<u64> = output.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words, [10, (901..910).sum::<u64>() + 1000, 901, 1000, 0]);
    let (_, output, _) = ended(&fields, &format!("(drop (call $minmax (i32.const 256) (i32.const 0) (i32.const 2100))) {emit}"));
    assert_eq!((&output[..8], &output[8..16]), (&901u64.to_le_bytes()[..], &1000u64.to_le_bytes()[..]));
}

#[test]
fn ranges_beyond_memory_are_named_by_each_import() {
    // One byte beyond the end, the largest address, the largest length.
    let fields = column(100, 8, 4, 6);
    let far = column(9000, 8, 4, 6);
    for (at, length) in [(65535, 2), (-1, 1), (0, -1), (-1, -1), (65536, 1)] {
        for (import, call) in [
            ("arg", format!("(call $arg (i32.const 0) (i32.const {at}) (i32.const 3)) drop")),
            ("get", format!("(call $get (i32.const {at}) (i32.const {length}) (i32.const 0) (i32.const 0)) drop")),
            ("get", format!("(call $get (i32.const 900) (i32.const 3) (i32.const {at}) (i32.const 5)) drop")),
            (
                "read",
                format!(
                    "(drop (call $get (i32.const 900) (i32.const 3) (i32.const 0) (i32.const 0))) (call $read (i64.const 0) (i32.const {at}) (i32.const 5)) drop"
                ),
            ),
            ("next", format!("(call $next (i32.const {at}) (i32.const {length}) (i32.const 0) (i32.const 0)) drop")),
            ("next", format!("(call $next (i32.const 0) (i32.const 0) (i32.const {at}) (i32.const 5)) drop")),
            ("put", format!("(call $put (i32.const {at}) (i32.const {length}) (i32.const 0) (i32.const 0))")),
            ("put", format!("(call $put (i32.const 0) (i32.const 0) (i32.const {at}) (i32.const {length}))")),
            ("emit", format!("(call $emit (i32.const {at}) (i32.const {length}))")),
            ("print", format!("(call $print (i32.const {at}) (i32.const {length}))")),
            ("select", format!("(call $select (i32.const {at}) (i32.const 1) (i64.const 0) (i32.const 2000) (i32.const 0)) drop")),
            ("select", format!("(call $select (i32.const 256) (i32.const 1) (i64.const 0) (i32.const {at}) (i32.const 0)) drop")),
            ("count", format!("(call $count (i32.const {at}) (i32.const 1) (i64.const 0)) drop")),
            ("aggregate", format!("(call $aggregate (i32.const {at}) (i32.const 0) (i32.const 2000)) drop")),
            ("aggregate", format!("(call $aggregate (i32.const 256) (i32.const {at}) (i32.const 2000)) drop")),
            ("aggregate", format!("(call $aggregate (i32.const 256) (i32.const 0) (i32.const {at})) drop")),
            ("sum", format!("(call $sum (i32.const 256) (i32.const {at})) drop")),
            ("minmax", format!("(call $minmax (i32.const 256) (i32.const 0) (i32.const {at})) drop")),
            ("emit_selected", format!("(call $emit_selected (i32.const 256) (i32.const {at})) drop")),
            ("count_bits", format!("(call $count_bits (i32.const {at}) (i64.const 9)) drop")),
        ] {
            if at == 0 && !call.contains(&format!("(i32.const {length})")) {
                continue;
            }
            let fields = format!("{fields} (data (i32.const 900) \"key\")");
            let found = trap(&fields, &format!("{call} i32.const 0"));
            let is_its = matches!(found.cause, Cause::Range { import: name, .. } if name == import);
            // Copying 4 GiB would cost more than there is.
            assert!(is_its || matches!(found.cause, Cause::FuelLimit { .. }) && length == -1, "{call}: {found}");
        }
    }
    for call in ["(call $count (i32.const 256) (i32.const 1) (i64.const 0))", "(call $emit_selected (i32.const 256) (i32.const 0))"] {
        let found = trap(&far, &format!("(drop {call}) i32.const 0"));
        assert!(matches!(found.cause, Cause::Range { .. }) && found.cause.signal() == 11, "{found}");
    }
    let found = trap("", "(drop (call $count_bits (i32.const 0) (i64.const -1))) i32.const 0");
    assert!(matches!(found.cause, Cause::FuelLimit { .. }), "{found}");
}

#[test]
fn columns_that_make_no_sense_are_named() {
    let count = "(drop (call $count (i32.const 256) (i32.const 1) (i64.const 0))) i32.const 0";
    for (column, what) in [
        (column(1, 8, 0, 0), "type"),
        (column(1, 8, 0, 11), "type"),
        (column(1, 3, 0, 5), "within the record"),
        (column(1, 8, 5, 5), "within the record"),
        (column(u64::MAX, u32::MAX, 0, 1), "longer than memory"),
    ] {
        let found = trap(&column, count);
        assert!(matches!(found.cause, Cause::Argument { import: "count", what: text } if text.contains(what)), "{found}");
    }
    let fields = column(100, 8, 4, 6);
    for (call, what) in [
        ("(call $count (i32.const 256) (i32.const 7) (i64.const 0))", "comparison"),
        ("(call $select (i32.const 256) (i32.const 1) (i64.const 0) (i32.const 2000) (i32.const 3))", "combine"),
        ("(call $select (i32.const 256) (i32.const 1) (i64.const 0) (i32.const 600) (i32.const 0))", "overlaps"),
    ] {
        let found = trap(&fields, &format!("(drop {call}) i32.const 0"));
        assert!(matches!(found.cause, Cause::Argument { .. }) && found.to_string().contains(what), "{found}");
    }
}

#[test]
fn columns_of_a_value_are_not_copied() {
    // Ten records of 4 bytes from byte 2 of the value on; it is none of the program's memory.
    let bytes = "\\02\\00\\00\\00\\01\\00\\00\\00\\0a\\00\\00\\00\\00\\00\\00\\00\\04\\00\\00\\00\\00\\00\\00\\00\\02\\00\\00\\00\\00\\00\\00\\00";
    let fields = format!("(data (i32.const 0) \"nums\") (data (i32.const 256) \"{bytes}\")");
    let value: Vec<u8> = [9, 9].into_iter().chain((0..10).flat_map(|i| [i, 7, 7, 7])).collect();
    let get = "(drop (call $get (i32.const 0) (i32.const 4) (i32.const 0) (i32.const 0)))";
    let with = |value: &[u8], body: &str| run(&program(&fields, &format!("{get} {body}")), &[], &mut Values::with(&[("nums", value)]));
    let sum = "(i32.wrap_i64 (call $sum (i32.const 256) (i32.const 0)))";
    assert_eq!(with(&value, sum).unwrap().exit_code, 45);
    assert_eq!(with(&value, "(i32.wrap_i64 (call $count (i32.const 256) (i32.const 5) (i64.const 6)))").unwrap().exit_code, 3);
    let select = "(drop (call $select (i32.const 256) (i32.const 1) (i64.const 3) (i32.const 512) (i32.const 0)))";
    let emit = format!("{select} (i32.wrap_i64 (call $emit_selected (i32.const 256) (i32.const 512)))");
    let outcome = with(&value, &emit).unwrap();
    assert_eq!((outcome.exit_code, &outcome.output[..]), (1, &[3, 7, 7, 7][..]));
    // The last record need not be there to its end, but where it is emitted whole.
    assert_eq!(with(&value[..39], sum).unwrap().exit_code, 45);
    for (value, body) in [(&value[..38], sum), (&value[..39], &emit), (&[][..], sum)] {
        let found = with(value, body).unwrap_err();
        assert!(matches!(found.cause, Cause::Argument { what, .. } if what.contains("longer than the value")), "{found}");
    }
    // Without `get` there is no value, and a region 2 is none.
    let found = trap(&fields, sum);
    assert!(matches!(found.cause, Cause::Argument { import: "sum", .. }), "{found}");
    let found = trap(&fields, &format!("(i32.store (i32.const 260) (i32.const 2)) {sum}"));
    assert!(matches!(found.cause, Cause::Range { import: "sum", .. }), "{found}");
}

#[test]
fn bulk_work_ends_at_the_instruction_limit() {
    let found = trap(&column(100, 8, 4, 6), "(loop $again (drop (call $sum (i32.const 256) (i32.const 0))) (br $again)) i32.const 0");
    assert!(matches!(found.cause, Cause::FuelLimit { .. }), "{found}");
}
