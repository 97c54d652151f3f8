//! Search: how many matches or lines there are, or where.

use std::ops::ControlFlow;

use memchr::{memchr, memrchr};
use skytether_common::{Error, Result};

use super::lines::Lines;
use super::pattern::{Pattern, Scratch};
use crate::codes::{item_flag, mode, opcode, tag};
use crate::descriptor::{Descriptor, Object, Value};
use crate::job::Input;
use crate::limits::Stop;
use crate::operation::{Arguments, ObjectWork, Operation, Plan};
use crate::output::Sink;
use crate::result::Item;

/// A search for fixed strings does not wait for the end of a line that is longer, in bytes.
const LONG_LINE: usize = 64 << 10;

/// The longest line of a search by a regular expression, in bytes. So much is searched before a stop is asked for.
const MOST_LINE: usize = 1 << 20;
/// Shorter lines are searched together, up to that number of bytes.
const PART: usize = 64 << 10;
/// Matches between two questions for a stop, where finding one takes no longer than its bytes.
const MATCHES: u64 = 64;

/// Searches each input.
#[derive(Debug)]
pub struct Search;

struct Work {
    pattern: Pattern,
    scratch: Scratch,
    mode: u64,
    most: u64,
}

impl Operation for Search {
    fn opcode(&self) -> u16 {
        opcode::SEARCH
    }

    fn name(&self) -> &'static str {
        "search"
    }

    fn takes_chunks(&self) -> bool {
        true
    }

    fn plan(&self, arguments: &mut Arguments<'_>, _: &Descriptor) -> Result<Plan> {
        let ignore_case = arguments.flag(tag::IGNORE_CASE)?;
        let utf8 = arguments.number(tag::LOCALE, 1)? != Some(0);
        let mode = arguments.number(tag::MODE, mode::TEXTS)?.unwrap_or(mode::COUNT_MATCHES);
        let most = arguments.number(tag::MOST, u64::MAX)?.unwrap_or(u64::MAX);
        let strings = arguments.all(tag::STRING).into_iter().map(|value| match value {
            Value::Bytes(bytes) => Ok(&bytes[..]),
            Value::Text(text) => Ok(text.as_bytes()),
            Value::Number(_) => Err(Error::invalid("search: a fixed string is a number")),
        });
        let strings = strings.collect::<Result<Vec<_>>>()?;
        let pattern = match (arguments.text(tag::REGEX)?, strings.is_empty()) {
            (Some(regex), true) => Pattern::of_regex(regex, ignore_case, utf8)?,
            (None, false) => Pattern::of_strings(&strings, ignore_case, utf8)?,
            _ => return Err(Error::invalid("search: it needs fixed strings, or a regular expression")),
        };
        let scratch = pattern.scratch();
        Ok(Plan::Objects(Box::new(Work { pattern, scratch, mode, most })))
    }
}

/// What was found so far in an object.
struct Found<'a, 'b> {
    stop: Stop,
    pattern: &'a Pattern,
    scratch: &'a mut Scratch,
    sink: &'a mut Sink<'b>,
    mode: u64,
    most: u64,
    /// Bytes of the data that this object has for sure.
    share: u64,
    count: u64,
    /// Added to offsets.
    position: u64,
    /// The object's first byte at which a match may begin.
    from: u64,
    /// Whether the line that goes on was counted.
    counted: bool,
    /// Where to go on: the begin of a line, and the first byte of a match.
    more: Option<(u64, u64)>,
}

impl Found<'_, '_> {
    /// Searches bytes of the object from byte `base` on. Matches that begin at `accept` or later are not wanted.
    fn region(&mut self, base: u64, bytes: &[u8], accept: usize) -> Result<ControlFlow<()>> {
        let at = self.from.saturating_sub(base).min(bytes.len() as u64) as usize;
        if self.mode == mode::COUNT_LINES {
            self.count_lines(bytes, at, accept)?;
            return Ok(ControlFlow::Continue(()));
        }
        self.find_matches(base, bytes, at, accept)
    }

    fn count_lines(&mut self, bytes: &[u8], mut at: usize, accept: usize) -> Result<()> {
        if self.counted {
            let Some(end) = memchr(b'\n', &bytes[at..]) else { return Ok(()) };
            at += end + 1;
            self.counted = false;
        }
        let mut part = at;
        while at < accept {
            if at >= part {
                self.stop.check()?;
                part = part_end(bytes, at);
            }
            let Some(begin) = self.pattern.find_begin(self.scratch, bytes, at..part).filter(|begin| *begin < accept.min(part)) else {
                at = part;
                continue;
            };
            self.count += 1;
            let Some(end) = memchr(b'\n', &bytes[begin..]) else {
                self.counted = true;
                return Ok(());
            };
            at = begin + end + 1;
        }
        Ok(())
    }

    fn find_matches(&mut self, base: u64, bytes: &[u8], mut at: usize, accept: usize) -> Result<ControlFlow<()>> {
        let mut part = at;
        for turn in 1u64.. {
            if at >= accept {
                break;
            }
            if at >= part {
                part = part_end(bytes, at);
            }
            // To find the longest match may take as long as its line, each time.
            if self.pattern.looks_ahead() || part - at > PART || turn.is_multiple_of(MATCHES) {
                self.stop.check()?;
            }
            // An empty match at the end may be the begin of one in the next part.
            let Some(found) = self.pattern.find(self.scratch, bytes, at..part).filter(|found| found.start < accept.min(part)) else {
                at = part;
                continue;
            };
            if found.is_empty() {
                at = found.start + 1;
                continue;
            }
            if !self.push(base + found.start as u64, &bytes[found.clone()])? {
                let line = memrchr(b'\n', &bytes[..found.start]).map_or(0, |end| end + 1);
                self.more = Some((base + line as u64, base + found.start as u64));
                return Ok(ControlFlow::Break(()));
            }
            at = found.end;
            self.from = base + at as u64;
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Notes a match; whether there was room.
    fn push(&mut self, at: u64, text: &[u8]) -> Result<bool> {
        let offset = (self.position + at).to_le_bytes();
        let length = (text.len() as u32).to_le_bytes();
        let parts: &[&[u8]] = match self.mode {
            mode::OFFSETS => &[&offset],
            mode::SPANS => &[&offset, &length],
            mode::TEXTS => &[&offset, &length, text],
            _ => &[],
        };
        let needed = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let room = self.sink.room();
        if self.count >= self.most || (self.count > 0 && needed > room.min(self.share)) {
            return Ok(false);
        }
        if needed > room {
            // To go on would find the same match, again without room.
            return Err(Error::exhausted(format!("a match at byte {at} needs {needed} bytes of the result, {room} are left; ask for fewer objects")));
        }
        self.share = self.share.saturating_sub(needed);
        for part in parts {
            self.sink.write(part)?;
        }
        self.count += 1;
        Ok(true)
    }

    /// Of a long line that has not ended: what fixed strings need not see again.
    fn long_line(&mut self, lines: &mut Lines, object: &Object, element: usize) -> Result<ControlFlow<()>> {
        let (base, bytes) = lines.carry();
        let Some(reach) = self.pattern.reach() else { return Ok(ControlFlow::Continue(())) };
        if bytes.len() < LONG_LINE.max(2 * reach) || (object.is_followed() && bytes.len() <= element) {
            return Ok(ControlFlow::Continue(()));
        }
        let kept = reach - 1;
        let flow = self.region(base, bytes, bytes.len() - kept)?;
        lines.keep(kept);
        Ok(flow)
    }
}

/// The end of the lines that are searched together from `at` on.
fn part_end(bytes: &[u8], at: usize) -> usize {
    let least = (at + PART).min(bytes.len());
    memchr(b'\n', &bytes[least..]).map_or(bytes.len(), |end| least + end + 1)
}

impl ObjectWork for Work {
    fn run(&mut self, input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Item> {
        let object = input.object().clone();
        let element = input.element();
        // Long lines don't matter to fixed strings: what is kept of one is bounded elsewhere.
        let line = if self.pattern.reach().is_some() { usize::MAX } else { input.limits().line.min(MOST_LINE) };
        let mut lines = Lines::new(&object, line, element);
        let mut found = Found {
            stop: input.stop(),
            pattern: &self.pattern,
            scratch: &mut self.scratch,
            sink,
            mode: self.mode,
            most: self.most,
            share: input.share(),
            count: 0,
            position: object.position,
            from: object.resume,
            counted: false,
            more: None,
        };
        let mut item = Item::default();
        loop {
            let Some(block) = input.next_block()? else {
                (item, _) = lines.finish(&mut |base, bytes| found.region(base, bytes, bytes.len()))?;
                break;
            };
            if lines.feed(&block, &mut |base, bytes| found.region(base, bytes, bytes.len()))?.is_break() {
                item.head = lines.take_head();
                break;
            }
            if found.long_line(&mut lines, &object, element)?.is_break() {
                item.head = lines.take_head();
                break;
            }
        }
        item.values = vec![found.count];
        if let Some((begin, resume)) = found.more {
            item.flags |= item_flag::MORE;
            item.values.extend([begin, resume]);
            item.tail = bytes::Bytes::new();
        }
        Ok(item)
    }
}
