//! Search equals `grep`.

use fastrand::Rng;
use skytether_common::Kind;
use skytether_offload::codes::{item_flag, mode, opcode, tag};
use skytether_offload::{Descriptor, Item, Options};

use crate::util::{Disk, exec, exec_with, text, tool_in, wait};

/// Patterns that `grep -E` and we read the same way.
const REGEXES: &[&str] = &[
    "needle",
    "^needle",
    "[a-z]+$",
    "a|ab|abc",
    "(a|ab)(c|bcd)*",
    "^$",
    "x*",
    "(foo|foo bar)",
    "[[:digit:]]+",
    "a?(ab)?",
    "é+",
    ".",
    "^.",
    ".$",
    "(^a|b)",
    "aa|a",
    "b*a",
    "w{3,7}",
    "(a|b)*c",
    "[^a]b",
    r"\bab",
    "(ab|a)(ab)?",
    "a\nb",
];
const STRINGS: &[&[&str]] = &[&["needle"], &["a", "ab", "abc"], &["foo bar", "foo"], &["é"], &["aa"], &["aba", "ab"], &["nothing of it"], &["a\nbc"]];

fn spans(item: &Item) -> String {
    let mut printed = String::new();
    let mut rest = &item.data[..];
    while !rest.is_empty() {
        let (offset, length) = (u64::from_le_bytes(rest[..8].try_into().unwrap()), u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize);
        printed.push_str(&format!("{offset}:"));
        // Bytes as characters of Latin-1, so that both sides compare as text.
        printed.extend(rest[12..12 + length].iter().map(|byte| char::from(*byte)));
        printed.push('\n');
        rest = &rest[12 + length..];
    }
    printed
}

fn grep(options: &[&str], patterns: &[&str], bytes: &[u8], locale: &str) -> String {
    let mut command = vec!["grep", "-a"];
    command.extend_from_slice(options);
    for pattern in patterns {
        command.extend_from_slice(&["-e", pattern]);
    }
    tool_in(&command, bytes, locale).unwrap().into_iter().map(char::from).collect()
}

/// In both locales, with and without case, over scattered objects: what `grep -o -b` and `grep -c` print.
#[test]
fn matches_are_those_that_grep_prints() {
    wait(async {
        let exec = exec();
        for seed in 0..240 {
            let mut rng = Rng::with_seed(seed);
            let mut disk = Disk::new(4 << 20);
            let len = rng.usize(0..20_000);
            let bytes = text(&mut rng, len);
            let object = disk.scatter(&bytes, &mut rng).await;
            let utf8 = rng.bool();
            let ignore_case = rng.u8(..4) == 0;
            let fixed = rng.bool();
            let patterns: &[&str] = if fixed { STRINGS[rng.usize(..STRINGS.len())] } else { &REGEXES[rng.usize(..REGEXES.len())..][..1] };
            let mut ask = Descriptor::new(opcode::SEARCH).number(tag::LOCALE, utf8.into()).number(tag::IGNORE_CASE, ignore_case.into()).input(object);
            for pattern in patterns {
                ask = if fixed { ask.bytes(tag::STRING, pattern.as_bytes()) } else { ask.text(tag::REGEX, *pattern) };
            }
            let mut options = vec![if fixed { "-F" } else { "-E" }];
            if ignore_case {
                options.push("-i");
            }
            let locale = if utf8 { "C.UTF-8" } else { "C" };
            let expected = grep(&[&options[..], &["-o", "-b"]].concat(), patterns, &bytes, locale);
            let found = spans(&disk.items(&exec, &ask.clone().number(tag::MODE, mode::TEXTS)).await[0]);
            let line = |text: &str, at: usize| text.lines().nth(at).map(str::to_owned);
            let differs = found.lines().zip(expected.lines()).position(|(a, b)| a != b).unwrap_or(found.lines().count().min(expected.lines().count()));
            assert!(found == expected, "seed {seed}, {patterns:?} {options:?} {locale}: {:?}, grep {:?}", line(&found, differs), line(&expected, differs));
            let expected = grep(&[&options[..], &["-c"]].concat(), patterns, &bytes, locale);
            let found = disk.items(&exec, &ask.clone().number(tag::MODE, mode::COUNT_LINES)).await[0].values.clone();
            assert_eq!(format!("{}\n", found[0]), expected, "seed {seed}, {patterns:?} {options:?} {locale}");
        }
    });
}

/// Offsets, spans, texts and counts say the same.
#[test]
fn modes_agree_with_each_other() {
    wait(async {
        let mut rng = Rng::with_seed(5);
        let mut disk = Disk::new(1 << 20);
        let object = disk.scatter(&text(&mut rng, 50_000), &mut rng).await;
        let ask = |mode| Descriptor::new(opcode::SEARCH).text(tag::REGEX, "ab+|é").number(tag::MODE, mode).input(object.clone());
        let items = [mode::COUNT_MATCHES, mode::OFFSETS, mode::SPANS, mode::TEXTS].map(ask);
        let mut found = Vec::new();
        for ask in &items {
            found.push(disk.items(&exec(), ask).await.remove(0));
        }
        let count = found[0].values[0];
        assert!(count > 100 && found.iter().all(|item| item.values == [count]));
        let offsets: Vec<&[u8]> = found[1].data.chunks(8).collect();
        assert_eq!(offsets, found[2].data.chunks(12).map(|span| &span[..8]).collect::<Vec<_>>());
        assert_eq!(spans(&found[3]).lines().count() as u64, count);
    });
}

/// With any bound, going on gives each match once.
#[test]
fn a_search_goes_on_where_it_ended() {
    wait(async {
        for (seed, pattern) in REGEXES.iter().enumerate() {
            let mut rng = Rng::with_seed(seed as u64);
            let mut disk = Disk::new(1 << 20);
            let object = disk.scatter(&text(&mut rng, 9000), &mut rng).await;
            let ask = Descriptor::new(opcode::SEARCH).text(tag::REGEX, *pattern).number(tag::MODE, mode::TEXTS);
            let exec = exec();
            let whole = spans(&disk.items(&exec, &ask.clone().input(object.clone())).await[0]);
            let (mut found, mut next, mut rounds) = (String::new(), Some(object), 0);
            while let Some(object) = next.take() {
                let ask = ask.clone().number(tag::MOST, rng.u64(1..40)).input(object.clone());
                let item = disk.items(&exec, &ask).await.remove(0);
                found.push_str(&spans(&item));
                rounds += 1;
                if item.has(item_flag::MORE) {
                    next = Some(skytether_offload::Object { begin: item.values[1], resume: item.values[2], ..object });
                }
            }
            assert_eq!(found, whole, "{pattern}");
            assert!(rounds > 1 || whole.lines().count() < 40, "{pattern}");
        }
    });
}

/// A result that is full says so, and the next objects of a batch say where to begin.
#[test]
fn full_results_say_where_to_go_on() {
    wait(async {
        let exec = exec_with(Options { result: 2048, ..Options::default() });
        let mut disk = Disk::new(1 << 20);
        let object = disk.put(&b"a".repeat(10_000)).await;
        let ask = Descriptor::new(opcode::SEARCH).bytes(tag::STRING, &b"a"[..]).number(tag::MODE, mode::OFFSETS);
        let items = disk.items(&exec, &ask.input(object.clone()).input(object)).await;
        for item in &items {
            assert!(item.has(item_flag::MORE) && item.data.len() as u64 == 8 * item.values[0], "{item:?}");
            assert_eq!(item.values[1..], [0, item.values[0]]);
        }
    });
}

/// Fixed strings need no line's end: holes of megabytes are no obstacle. Regular expressions refuse such a line.
#[test]
fn long_lines_are_searched_for_fixed_strings_only() {
    wait(async {
        let exec = exec_with(Options { line: 1 << 20, ..Options::default() });
        let mut disk = Disk::new(32 << 20);
        let mut bytes = vec![0; 9 << 20];
        let places = [0usize, 65_530, 65_536, 524_285, 1 << 20, (9 << 20) - 6];
        for at in places {
            bytes[at..at + 6].copy_from_slice(b"needle");
        }
        let object = disk.put(&bytes).await;
        let ask = Descriptor::new(opcode::SEARCH).number(tag::MODE, mode::OFFSETS).input(object);
        let item = disk.items(&exec, &ask.clone().bytes(tag::STRING, &b"needle"[..])).await.remove(0);
        let found: Vec<usize> = item.data.chunks(8).map(|at| u64::from_le_bytes(at.try_into().unwrap()) as usize).collect();
        assert_eq!(found, places);
        let lines = ask.clone().bytes(tag::STRING, &b"needle"[..]);
        let lines = Descriptor { arguments: lines.arguments.into_iter().skip(1).collect(), ..lines }.number(tag::MODE, mode::COUNT_LINES);
        assert_eq!(disk.items(&exec, &lines).await[0].values, [1]);
        let refused = disk.exec(&exec, &ask.text(tag::REGEX, "needl[e]|x")).await.items.remove(0).failure.unwrap();
        assert_eq!(refused.kind, Kind::Exhausted, "{}", refused.text);
    });
}

#[test]
fn patterns_that_are_none_or_too_large_are_refused() {
    wait(async {
        let disk = Disk::new(1 << 20);
        let ask = || Descriptor::new(opcode::SEARCH).input(skytether_offload::Object::default());
        for ask in [
            ask(),
            ask().text(tag::REGEX, "(").text(tag::REGEX, "a"),
            ask().text(tag::REGEX, "("),
            ask().text(tag::REGEX, "a".repeat(5000)),
            ask().text(tag::REGEX, r"((\pL{100}){100}){100}"),
            ask().text(tag::REGEX, format!("{}a{}", "(".repeat(400), ")".repeat(400))),
            ask().text(tag::REGEX, "a").bytes(tag::STRING, &b"a"[..]),
            ask().text(tag::REGEX, "a").number(tag::MODE, 5),
            ask().number(tag::STRING, 5),
        ] {
            assert_eq!(disk.exec(&exec(), &ask).await.failure.unwrap().kind, Kind::Invalid);
        }
    });
}

/// A search ends in its time also where each of a line's matches is looked for up to the line's end.
#[test]
fn slow_expressions_end_in_their_time() {
    wait(async {
        let mut disk = Disk::new(4 << 20);
        let line = disk.put(&b"a".repeat(1_000_000)).await;
        let lines = disk.put(&b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\n".repeat(30_000)).await;
        for (object, pattern, mode) in [(line, "a|a*b", mode::COUNT_MATCHES), (lines, r"(\w{1,5}|a){8}[^b]c|x", mode::COUNT_LINES)] {
            let ask = Descriptor { time: 200, ..Descriptor::new(opcode::SEARCH).text(tag::REGEX, pattern).number(tag::MODE, mode) };
            let begin = std::time::Instant::now();
            let result = disk.exec(&exec_with(Options::default()), &ask.input(object)).await;
            let time = begin.elapsed();
            let failure = result.done().unwrap()[0].failure.as_ref().map(|failure| failure.kind);
            assert!(time.as_millis() < 2500 && failure.is_none_or(|kind| kind == Kind::Exhausted), "{pattern} {time:?} {failure:?}");
        }
    });
}

/// Each object of a batch gets on, and a match that fits nowhere is no reason to ask again.
#[test]
fn full_results_never_ask_for_the_same_again() {
    wait(async {
        let exec = exec_with(Options { result: 16 << 10, ..Options::default() });
        let mut disk = Disk::new(1 << 20);
        let object = disk.put(&b"match after match\n".repeat(500)).await;
        let long = disk.put(&b"m".repeat(20_000)).await;
        let ask = Descriptor::new(opcode::SEARCH).text(tag::REGEX, "m+[a-z ]*").number(tag::MODE, mode::TEXTS);
        let items = disk.exec(&exec, &(0..40).fold(ask, |ask, _| ask.input(object.clone())).input(long)).await.items;
        for item in &items[..40] {
            assert!(item.has(item_flag::MORE) && item.values[0] > 1 && item.values[0] < 40, "{item:?}");
        }
        assert_eq!(items[40].failure.as_ref().unwrap().kind, Kind::Exhausted);
    });
}

/// In `LC_ALL=C`, what follows a character of several bytes is about the last one, as `grep` has it.
#[test]
fn characters_are_bytes_in_the_locale_c() {
    wait(async {
        let mut disk = Disk::new(1 << 20);
        let bytes = b"\xc3\xa9\xa9\xa9\n\xc3\xa9\xc3\xa9\n\xc3\n\xe2\x82\xac\xac\xac\n";
        let object = disk.put(bytes).await;
        for pattern in ["é+", "é?", "(é)+", "[é]+", "€{2,3}", "x|€*", "a\\\\?é{2}"] {
            let ask = Descriptor::new(opcode::SEARCH).text(tag::REGEX, pattern).number(tag::LOCALE, 0).number(tag::MODE, mode::TEXTS);
            let found = spans(&disk.items(&exec(), &ask.input(object.clone())).await[0]);
            assert_eq!(found, grep(&["-E", "-o", "-b"], &[pattern], bytes, "C"), "{pattern}");
        }
        let ask = Descriptor::new(opcode::SEARCH).text(tag::REGEX, "\\é").number(tag::LOCALE, 0).input(object);
        assert_eq!(disk.exec(&exec(), &ask).await.failure.unwrap().kind, Kind::Invalid);
    });
}

/// A long line that ends within a chunk does not count against its tail, also where nothing is kept of it.
#[test]
fn long_lines_within_a_chunk_leave_its_tail_alone() {
    wait(async {
        let mut disk = Disk::new(2 << 20);
        let mut bytes = vec![b'x'; 400_000];
        bytes.extend_from_slice(b"a\nxa\na tail");
        let object = disk.put(&bytes).await.chunk(0, false, true);
        let ask = Descriptor::new(opcode::SEARCH).bytes(tag::STRING, &b"a"[..]).input(object);
        let item = disk.items(&exec(), &ask).await.remove(0);
        assert_eq!((&item.values[..], &item.tail[..]), (&[2][..], &b"a tail"[..]));
    });
}
