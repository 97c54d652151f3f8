//! What a search looks for, with the meaning of `grep`: the leftmost match in a line, and the longest one there.

use std::ops::Range;

use regex_automata::meta::{Cache, Regex};
use regex_automata::{Anchored, Input, MatchKind};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition};
use skytether_common::{Error, Result};

/// The longest regular expression in bytes. One of its classes takes some kilobytes.
pub(crate) const MOST_REGEX: usize = 4096;
/// The most bytes of a compiled pattern. A search takes a step for each byte and each of its states at worst.
const MOST_COMPILED: usize = 2 << 20;
/// The most bytes of its lazy automaton.
const MOST_CACHE: usize = 8 << 20;

/// Fixed strings, or a regular expression.
#[derive(Debug)]
pub struct Pattern {
    first: Regex,
    /// Finds the longest match at a place, where the first one need not be the longest.
    longest: Option<Regex>,
    /// For fixed strings: the longest one's bytes. A match depends on no others then.
    reach: Option<usize>,
}

/// What a thread that searches needs for itself.
#[derive(Debug)]
pub struct Scratch {
    first: Cache,
    longest: Option<Cache>,
}

impl Pattern {
    /// Any of these strings. Lines of a string are strings of their own, as those of `grep -F`.
    ///
    /// # Errors
    /// `Invalid` where there is none, or where they are too long together.
    pub fn of_strings(strings: &[impl AsRef<[u8]>], ignore_case: bool, utf8: bool) -> Result<Self> {
        let mut strings: Vec<&[u8]> = strings.iter().flat_map(|string| string.as_ref().split(|byte| *byte == b'\n')).collect();
        if strings.is_empty() {
            return Err(Error::invalid("search: there is no pattern"));
        }
        // Of several strings that begin at a place, the first in this order is found.
        strings.sort_by_key(|string| std::cmp::Reverse(string.len()));
        strings.dedup();
        let reach = strings.first().map(|string| string.len()).filter(|_| !ignore_case && strings.iter().all(|string| !string.is_empty()));
        let hirs = strings.iter().map(|string| match std::str::from_utf8(string) {
            Ok(text) if ignore_case && utf8 => parse(&regex_syntax::escape(text), true, true),
            _ if ignore_case => Ok(Hir::concat(string.iter().map(|byte| either_case(*byte)).collect())),
            _ => Ok(Hir::literal(*string)),
        });
        let hir = Hir::alternation(hirs.collect::<Result<_>>()?);
        // Characters of both cases may differ in length, so that the order says nothing.
        Self::compile(&hir, ignore_case && utf8, reach)
    }

    /// A regular expression of the crate `regex`. Lines of it are alternatives, as those of `grep -E`.
    ///
    /// # Errors
    /// `Invalid` where it is none, or too large.
    pub fn of_regex(text: &str, ignore_case: bool, utf8: bool) -> Result<Self> {
        if text.len() > MOST_REGEX {
            return Err(Error::invalid(format!("search: a regular expression of {} bytes is too long, {MOST_REGEX} are the most", text.len())));
        }
        let hirs = text.split('\n').map(|line| parse(line, ignore_case, utf8)).collect::<Result<_>>()?;
        let hir = within_lines(Hir::alternation(hirs));
        let ambiguous = is_ambiguous(&hir);
        Self::compile(&hir, ambiguous, None)
    }

    fn compile(hir: &Hir, ambiguous: bool, reach: Option<usize>) -> Result<Self> {
        let compile = |kind| {
            let config = Regex::config().match_kind(kind).utf8_empty(false).nfa_size_limit(Some(MOST_COMPILED)).hybrid_cache_capacity(MOST_CACHE);
            let built = Regex::builder().configure(config).build_from_hir(hir);
            built.map_err(|error| Error::invalid("search: the pattern is too large").with_source(error.to_string()))
        };
        let longest = if ambiguous { Some(compile(MatchKind::All)?) } else { None };
        Ok(Self { first: compile(MatchKind::LeftmostFirst)?, longest, reach })
    }

    /// What a thread that searches needs for itself.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        Scratch { first: self.first.create_cache(), longest: self.longest.as_ref().map(Regex::create_cache) }
    }

    /// Whether more bytes than those of a match may be read to find it.
    pub(crate) fn looks_ahead(&self) -> bool {
        self.longest.is_some()
    }

    pub(crate) fn reach(&self) -> Option<usize> {
        self.reach
    }

    /// The first match in `bytes` that lies within `range`, whole lines. It may be empty.
    pub fn find(&self, scratch: &mut Scratch, bytes: &[u8], range: Range<usize>) -> Option<Range<usize>> {
        let end = range.end;
        let found = self.first.search_with(&mut scratch.first, &Input::new(bytes).range(range))?;
        let (Some(longest), Some(cache)) = (&self.longest, &mut scratch.longest) else { return Some(found.range()) };
        let input = Input::new(bytes).range(found.start()..end).anchored(Anchored::Yes);
        Some(found.start()..longest.search_with(cache, &input).map_or(found.end(), |longer| longer.end().max(found.end())))
    }

    /// The first line in `range` of `bytes` with a match: where the match begins.
    pub(crate) fn find_begin(&self, scratch: &mut Scratch, bytes: &[u8], range: Range<usize>) -> Option<usize> {
        self.first.search_with(&mut scratch.first, &Input::new(bytes).range(range)).map(|found| found.start())
    }
}

fn parse(text: &str, ignore_case: bool, utf8: bool) -> Result<Hir> {
    let mut parser = ParserBuilder::new().utf8(false).unicode(utf8).multi_line(true).case_insensitive(ignore_case).nest_limit(100).build();
    let bytes = if utf8 { None } else { Some(as_bytes(text)) };
    parser
        .parse(bytes.as_deref().unwrap_or(text))
        .map_err(|error| Error::invalid(format!("search: {text:?} is no regular expression")).with_source(error.to_string()))
}

/// The same expression where a character is a byte: what follows one of several bytes is about its last one.
fn as_bytes(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    let mut escaped = false;
    for character in text.chars() {
        if character.is_ascii() || escaped {
            // The parser refuses an escaped character that is not ASCII.
            written.push(character);
        } else {
            let mut bytes = [0; 4];
            written.extend(character.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\x{byte:02X}")));
        }
        escaped = character == '\\' && !escaped;
    }
    written
}

fn either_case(byte: u8) -> Hir {
    let cases = [byte.to_ascii_lowercase(), byte.to_ascii_uppercase()];
    Hir::class(Class::Bytes(ClassBytes::new(cases.map(|byte| ClassBytesRange::new(byte, byte)))))
}

/// The same expression, which matches no newline, whose anchors are those of lines, and which captures nothing.
fn within_lines(hir: Hir) -> Hir {
    match hir.into_kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Literal(literal) if literal.0.contains(&b'\n') => Hir::fail(),
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(Class::Unicode(mut class)) => {
            class.difference(&ClassUnicode::new([ClassUnicodeRange::new('\n', '\n')]));
            Hir::class(Class::Unicode(class))
        }
        HirKind::Class(Class::Bytes(mut class)) => {
            class.difference(&ClassBytes::new([ClassBytesRange::new(b'\n', b'\n')]));
            Hir::class(Class::Bytes(class))
        }
        HirKind::Look(Look::Start) => Hir::look(Look::StartLF),
        HirKind::Look(Look::End) => Hir::look(Look::EndLF),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Repetition(Repetition { min, max, greedy, sub }) => Hir::repetition(Repetition { min, max, greedy, sub: Box::new(within_lines(*sub)) }),
        HirKind::Capture(capture) => within_lines(*capture.sub),
        HirKind::Concat(all) => Hir::concat(all.into_iter().map(within_lines).collect()),
        HirKind::Alternation(all) => Hir::alternation(all.into_iter().map(within_lines).collect()),
    }
}

/// Whether the first match at a place may be shorter than another one there.
fn is_ambiguous(hir: &Hir) -> bool {
    let properties = hir.properties();
    if properties.minimum_len() == properties.maximum_len() {
        return false;
    }
    match hir.kind() {
        HirKind::Repetition(repetition) => !repetition.greedy || repetition.sub.properties().minimum_len() != repetition.sub.properties().maximum_len(),
        // One greedy repetition of a fixed length at the end takes as much as it can.
        HirKind::Concat(all) => {
            all.iter().rev().skip(1).any(|part| part.properties().minimum_len() != part.properties().maximum_len()) || all.last().is_some_and(is_ambiguous)
        }
        _ => true,
    }
}
