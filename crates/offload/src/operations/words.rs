//! Word count: lines, words, characters and bytes, as `wc` of coreutils 9.1 counts them.
//!
//! - A line is a newline.
//! - In the C locale each byte is a character; spaces are 9 to 13 and 32, bytes of words 33 to 126.
//! - In UTF-8, bytes that belong to no character are neither characters nor parts of words.
//! - What is not printable neither begins nor ends a word.

use skytether_common::{Error, Result};

use super::characters::{self, Class, Next, ascii};
use crate::codes::{item_flag, opcode, tag};
use crate::descriptor::Descriptor;
use crate::job::Input;
use crate::operation::{Arguments, ObjectWork, Operation, Plan};
use crate::output::Sink;
use crate::result::Item;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Newlines.
    pub lines: u64,
    /// Words.
    pub words: u64,
    /// Characters.
    pub characters: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Counts {
    /// Those of `bytes`, in the C locale or in UTF-8.
    #[must_use]
    pub fn of(bytes: &[u8], utf8: bool) -> Self {
        let mut counter = Counter::new(utf8);
        counter.update(bytes);
        counter.finish()
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            lines: self.lines.saturating_add(other.lines),
            words: self.words.saturating_add(other.words),
            characters: self.characters.saturating_add(other.characters),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// Counts bytes that come in pieces.
#[derive(Debug, Default)]
pub struct Counter {
    counts: Counts,
    utf8: bool,
    in_word: bool,
    /// The begin of a character, of at most 5 bytes.
    short: Vec<u8>,
}

const STEP: usize = 64;

/// Lines and begins of words in bytes that are all spaces or parts of words; `None` where there are others. The loops
/// have no branches, so that compilers use vectors.
fn plain(bytes: &[u8; STEP], in_word: bool) -> Option<(u8, u8)> {
    let mut word = [0u8; STEP];
    let (mut known, mut lines) = (0u8, 0u8);
    for (word, &byte) in word.iter_mut().zip(bytes) {
        *word = u8::from(byte.wrapping_sub(0x21) < 0x5e);
        let space = u8::from(byte == b' ') | u8::from(byte.wrapping_sub(9) < 5);
        known += *word | space;
        lines += u8::from(byte == b'\n');
    }
    if usize::from(known) != STEP {
        return None;
    }
    let mut words = word[0] & !u8::from(in_word);
    let mut begins = 0u8;
    for (one, next) in word[..STEP - 1].iter().zip(&word[1..]) {
        begins += next & !one;
    }
    words += begins;
    Some((lines, words))
}

impl Counter {
    /// In the C locale or in UTF-8.
    #[must_use]
    pub fn new(utf8: bool) -> Self {
        Self { utf8, ..Self::default() }
    }

    /// Takes further bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.counts.bytes += bytes.len() as u64;
        while !self.short.is_empty() && !bytes.is_empty() {
            self.short.push(bytes[0]);
            bytes = &bytes[1..];
            let short = std::mem::take(&mut self.short);
            let read = self.step(&short, 0, short.len());
            self.short = short[read..].to_vec();
            // A wrong first byte leaves others, which may be characters.
        }
        let mut at = 0;
        while at < bytes.len() {
            if let Some(block) = bytes[at..].first_chunk::<STEP>()
                && let Some((lines, words)) = plain(block, self.in_word)
            {
                self.counts.lines += u64::from(lines);
                self.counts.words += u64::from(words);
                self.counts.characters += STEP as u64;
                self.in_word = !matches!(ascii(block[STEP - 1]), Class::Space);
                at += STEP;
                continue;
            }
            let end = (at + STEP).min(bytes.len());
            let read = self.step(bytes, at, end);
            if read == at {
                // It ends with the begin of a character.
                self.short = bytes[at..].to_vec();
                return;
            }
            at = read;
        }
    }

    /// Counts characters that begin before `end`; where the next one begins.
    fn step(&mut self, bytes: &[u8], mut at: usize, end: usize) -> usize {
        while at < end {
            let byte = bytes[at];
            let (class, length) = if byte < 0x80 {
                (ascii(byte), 1)
            } else if !self.utf8 {
                (Class::Other, 1)
            } else {
                match characters::next(&bytes[at..]) {
                    Next::Character(character, length) => (characters::class(character), length),
                    Next::Wrong => {
                        at += 1;
                        continue;
                    }
                    Next::Short => return at,
                }
            };
            self.counts.characters += 1;
            self.counts.lines += u64::from(byte == b'\n');
            match class {
                Class::Space => self.in_word = false,
                Class::Word => {
                    self.counts.words += u64::from(!self.in_word);
                    self.in_word = true;
                }
                Class::Other => {}
            }
            at += length;
        }
        at
    }

    /// The counts. The begin of a character at the end is none, as `wc` has it.
    #[must_use]
    pub fn finish(self) -> Counts {
        self.counts
    }
}

/// Counts each input.
#[derive(Debug)]
pub struct WordCount;

struct Work {
    utf8: bool,
}

impl Operation for WordCount {
    fn opcode(&self) -> u16 {
        opcode::WORD_COUNT
    }

    fn name(&self) -> &'static str {
        "word count"
    }

    fn takes_chunks(&self) -> bool {
        true
    }

    fn plan(&self, arguments: &mut Arguments<'_>, _: &Descriptor) -> Result<Plan> {
        let utf8 = arguments.number(tag::LOCALE, 1)? != Some(0);
        Ok(Plan::Objects(Box::new(Work { utf8 })))
    }
}

fn is_space(byte: &u8) -> bool {
    // No byte of a longer character is one of these, so a cut here never cuts a character.
    matches!(ascii(*byte), Class::Space)
}

impl ObjectWork for Work {
    fn run(&mut self, input: &mut Input<'_>, _: &mut Sink<'_>) -> Result<Item> {
        let (mut in_head, followed, element) = (input.object().is_preceded(), input.object().is_followed(), input.element());
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        let too_long = || Error::exhausted(format!("a word that straddles chunks has more than {element} bytes; count elsewhere"));
        let mut counter = Counter::new(self.utf8);
        while let Some(block) = input.next_block()? {
            let mut rest = &block[..];
            if in_head {
                let end = rest.iter().position(is_space).map_or(rest.len(), |at| at + 1);
                head.extend_from_slice(&rest[..end]);
                if head.len() > element {
                    return Err(too_long());
                }
                in_head = !head.last().is_some_and(is_space);
                rest = &rest[end..];
            }
            if !followed {
                counter.update(rest);
                continue;
            }
            // What comes after the last space so far is kept: it may be the tail.
            let end = rest.iter().rposition(is_space).map_or(0, |at| at + 1);
            if end > 0 {
                counter.update(&tail);
                tail.clear();
                counter.update(&rest[..end]);
            }
            tail.extend_from_slice(&rest[end..]);
            if tail.len() > element {
                return Err(too_long());
            }
        }
        let counts = counter.finish();
        let values = vec![counts.lines, counts.words, counts.characters, counts.bytes];
        let flags = if in_head { item_flag::NO_BREAK } else { 0 };
        Ok(Item { flags, values, head: head.into(), tail: tail.into(), ..Item::default() })
    }
}
