//! The calls that most programs want: checksums, search, word count, sort, merge, compression, queries.
//!
//! What a target answers is checked before it is believed: numbers of values, lengths, places.

use std::io::Write;

use bytes::Bytes;
use skytether_common::{Error, Kind, Result};
use skytether_offload::codes::item_flag;
use skytether_offload::{ExecResult, Item};

pub use skytether_offload::operations::words::Counts;

use crate::input::{Input, Part};
use crate::output_file::OutputFile;
use crate::request::{Answer, Codec, Digest, Format, Order, Pattern, Request};
use crate::session::{Done, Ran, Session};

/// Whether the digests inside a file are right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framed {
    /// All are.
    Right,
    /// The first frame that is not, counted from 0.
    Bad(u64),
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Its first byte in the file.
    pub at: u64,
    /// Its bytes; empty where only places were asked for.
    pub text: Bytes,
}

impl Session {
    /// The digest of each input.
    #[must_use]
    pub fn sum(&self, digest: Digest, inputs: &[Input]) -> Vec<Done<Bytes>> {
        let length = digest.length();
        let check = |item: Item| {
            if item.data.len() == length { Ok(item.data) } else { Err(wrong(format!("a digest of {} bytes, not {length}", item.data.len()))) }
        };
        self.run_each(&Request::digest(digest), inputs).into_iter().map(|done| done.and_then(check)).collect()
    }

    /// Whether the digests inside each input are right: it is a row of frames, each a digest and then `block` bytes of
    /// data. The last one may be shorter.
    #[must_use]
    pub fn verify_framed(&self, digest: Digest, block: u64, inputs: &[Input]) -> Vec<Done<Framed>> {
        let found = self.run_each(&Request::verify_framed(digest, block), inputs);
        found.into_iter().map(|done| done.and_then(|item| framed(&item))).collect()
    }

    /// Lines, words, characters and bytes of each input.
    #[must_use]
    pub fn word_count(&self, utf8: bool, inputs: &[Input]) -> Vec<Done<Counts>> {
        self.run_each(&Request::word_count(utf8), inputs).into_iter().map(|done| done.and_then(|item| counts(&item))).collect()
    }

    /// How many matches each input has, or how many lines with matches.
    #[must_use]
    pub fn count(&self, pattern: &Pattern, lines: bool, inputs: &[Input]) -> Vec<Done<u64>> {
        let request = Request::search(pattern, if lines { Answer::Lines } else { Answer::Matches });
        self.run_each(&request, inputs).into_iter().map(|done| done.and_then(|item| count(&item))).collect()
    }

    /// Where each input has matches, with their bytes if `texts`. Matches are given to `found` page by page: the number
    /// of the input, and some of its matches, in their order. Gives where each input was searched.
    ///
    /// # Errors
    /// Those of `found`, which ends the search. Those of an input are in its answer: what was found before stays.
    pub fn search(&self, pattern: &Pattern, texts: bool, inputs: &[Input], mut found: impl FnMut(usize, Vec<Match>) -> Result<()>) -> Result<Vec<Done<u64>>> {
        let request = Request::search(pattern, if texts { Answer::Texts } else { Answer::Offsets });
        // A window of batches at a time, so that what waits is bounded.
        let window = self.settings().batch.get().saturating_mul(self.settings().parallel.get());
        let mut all = Vec::with_capacity(inputs.len());
        for (number, inputs) in inputs.chunks(window).enumerate() {
            for (at, (done, input)) in self.run_each(&request, inputs).into_iter().zip(inputs).enumerate() {
                let number = number * window + at;
                all.push(self.search_on(&request, texts, input, done, &mut |matches| found(number, matches))?);
            }
        }
        Ok(all)
    }

    /// Gives an item's matches, and those of the pages that follow it.
    fn search_on(
        &self,
        request: &Request,
        texts: bool,
        input: &Input,
        first: Done<Item>,
        found: &mut dyn FnMut(Vec<Match>) -> Result<()>,
    ) -> Result<Done<u64>> {
        let Done { mut value, mut ran } = first;
        let (mut total, mut from, mut modified) = (0u64, input.clone(), None);
        loop {
            let item = match value {
                Ok(item) => item,
                Err(error) => return Ok(Done { value: Err(error), ran }),
            };
            let page = page(&item, texts, &from.part);
            let (matches, more) = match page {
                Ok(page) => page,
                Err(error) => return Ok(Done { value: Err(error), ran }),
            };
            total += matches.len() as u64;
            if !matches.is_empty() {
                found(matches)?;
            }
            let Some(more) = more else { return Ok(Done { value: Ok(total), ran }) };
            // Pages are of one file only while it does not change.
            let now = version(input);
            match (&modified, now) {
                (None, Ok(now)) => modified = Some(now),
                (Some(before), Ok(now)) if *before == now => {}
                _ => {
                    let path = input.file.path().display();
                    return Ok(Done { value: Err(Error::conflict(format!("{path} changed while it was searched; search again"))), ran });
                }
            }
            from.part = more;
            let Some(next) = self.run_each(request, std::slice::from_ref(&from)).pop() else { return Ok(Done { value: Ok(total), ran }) };
            value = next.value;
            // Told as done here if a part of it was.
            if let Ran::Here { .. } = next.ran {
                ran = next.ran;
            }
        }
    }

    /// Sorts all inputs together, into an output. Gives the number of bytes that came out; `output` is not cut to them.
    /// `scratch` is used where memory is too small, and must have as much room as the inputs.
    #[must_use]
    pub fn sort_to(&self, order: &Order, inputs: &[Input], output: &OutputFile, scratch: Option<&OutputFile>) -> Done<u64> {
        let outputs: Vec<&OutputFile> = std::iter::once(output).chain(scratch).collect();
        self.run_whole(&Request::sort(order), inputs, &outputs).and_then(written)
    }

    /// Merges inputs that are sorted, into an output. Gives the number of bytes that came out.
    #[must_use]
    pub fn merge_to(&self, order: &Order, inputs: &[Input], output: &OutputFile) -> Done<u64> {
        self.run_whole(&Request::merge(order), inputs, &[output]).and_then(written)
    }

    /// Sorts all inputs together. What does not fit into a result is done here: [`Session::sort_to`] has no such bound.
    #[must_use]
    pub fn sort(&self, order: &Order, inputs: &[Input]) -> Done<Bytes> {
        self.run_whole(&Request::sort(order), inputs, &[]).and_then(data)
    }

    /// Merges inputs that are sorted. What does not fit into a result is done here: [`Session::merge_to`] has no such
    /// bound.
    #[must_use]
    pub fn merge(&self, order: &Order, inputs: &[Input]) -> Done<Bytes> {
        self.run_whole(&Request::merge(order), inputs, &[]).and_then(data)
    }

    /// Writes a compressed frame of an input into an output. Gives the number of bytes that came out.
    #[must_use]
    pub fn compress_to(&self, codec: Codec, level: Option<u64>, input: &Input, output: &OutputFile) -> Done<u64> {
        self.run_whole(&Request::compress(codec, level), std::slice::from_ref(input), &[output]).and_then(written)
    }

    /// Writes the content of an input's frames into an output. Gives the number of bytes that came out.
    #[must_use]
    pub fn decompress_to(&self, codec: Codec, input: &Input, output: &OutputFile) -> Done<u64> {
        self.run_whole(&Request::decompress(codec), std::slice::from_ref(input), &[output]).and_then(written)
    }

    /// Compressed frames of the inputs, one for each. What does not fit into a result is done here.
    #[must_use]
    pub fn compress(&self, codec: Codec, level: Option<u64>, inputs: &[Input]) -> Vec<Done<Bytes>> {
        self.run_each(&Request::compress(codec, level), inputs).into_iter().map(|done| done.and_then(|item| Ok(item.data))).collect()
    }

    /// The content of the inputs' frames.
    #[must_use]
    pub fn decompress(&self, codec: Codec, inputs: &[Input]) -> Vec<Done<Bytes>> {
        self.run_each(&Request::decompress(codec), inputs).into_iter().map(|done| done.and_then(|item| Ok(item.data))).collect()
    }

    /// Rows of a Substrait `plan` over all inputs, as one Arrow IPC stream, and the engine's receipt. `tables` has the
    /// table of each input, or one for all. Here it needs operations with an engine, see [`Session::with`].
    #[must_use]
    pub fn query(&self, format: Format, plan: Bytes, tables: &[String], inputs: &[Input]) -> Done<(Bytes, Bytes)> {
        let rows = |result: ExecResult| match result.items.into_iter().next() {
            Some(item) => Ok((item.data, item.head)),
            None => Err(wrong("a query without rows")),
        };
        self.run_whole(&Request::query(format, plan, tables), inputs, &[]).and_then(rows)
    }
}

/// When the file was changed, and its length.
fn version(input: &Input) -> Result<(u64, std::time::SystemTime)> {
    let failed = |cause| Error::io("look at", input.file.path(), cause);
    let metadata = input.file.file().metadata().map_err(failed)?;
    Ok((metadata.len(), metadata.modified().map_err(failed)?))
}

fn wrong(what: impl std::fmt::Display) -> Error {
    // It says nothing of the data: a scrub must not take it for damage.
    Error::unavailable(format!("the target's answer is wrong: {what}"))
}

pub(crate) fn framed(item: &Item) -> Result<Framed> {
    match (item.has(item_flag::BAD_FRAME), &item.values[..]) {
        (false, _) => Ok(Framed::Right),
        (true, [frame, ..]) => Ok(Framed::Bad(*frame)),
        (true, []) => Err(wrong("a bad frame without its number")),
    }
}

pub(crate) fn counts(item: &Item) -> Result<Counts> {
    match item.values[..] {
        [lines, words, characters, bytes] => Ok(Counts { lines, words, characters, bytes }),
        _ => Err(wrong(format!("{} counts, not 4", item.values.len()))),
    }
}

pub(crate) fn count(item: &Item) -> Result<u64> {
    item.values.first().copied().ok_or_else(|| wrong("no count"))
}

fn written(result: ExecResult) -> Result<u64> {
    result.outputs.first().copied().ok_or_else(|| wrong("no length of the output"))
}

fn data(result: ExecResult) -> Result<Bytes> {
    result.items.into_iter().next().map(|item| item.data).ok_or_else(|| wrong("no item"))
}

/// The matches of an item, and from where the search goes on.
pub(crate) fn page(item: &Item, texts: bool, part: &Part) -> Result<(Vec<Match>, Option<Part>)> {
    let matches = matches(&item.data, texts)?;
    let low = part.from.max(part.resume).wrapping_add(part.shift);
    let high = part.to.map_or(u64::MAX, |to| to.wrapping_add(part.shift));
    let mut before = low;
    for found in &matches {
        if found.at < before || found.at >= high {
            return Err(wrong(format!("a match at {}, where none can be", found.at)));
        }
        before = found.at.saturating_add(found.text.len().max(1) as u64);
    }
    if !item.has(item_flag::MORE) {
        return Ok((matches, None));
    }
    let [_, begin, resume] = item.values[..] else { return Err(wrong("it goes on, and does not say where")) };
    let first = part.first();
    let (begin, resume) = (begin.saturating_add(first), resume.saturating_add(first));
    // It must come nearer to the end each time, or it would never end.
    if begin > resume || begin < part.from || resume <= part.from.max(part.resume) || part.to.is_some_and(|to| resume > to) {
        return Err(wrong(format!("it goes on at {resume}, which is no progress")));
    }
    // The head of a chunk came with the first page.
    Ok((matches, Some(Part { from: begin, resume, preceded: false, ..*part })))
}

fn matches(data: &Bytes, texts: bool) -> Result<Vec<Match>> {
    let short = || wrong("matches that are cut off");
    let (mut found, mut at) = (Vec::new(), 0);
    while at < data.len() {
        let offset = data.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes).ok_or_else(short)?;
        at += 8;
        let mut text = Bytes::new();
        if texts {
            let length = data.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes).ok_or_else(short)? as usize;
            at += 4;
            if length > data.len() - at {
                return Err(short());
            }
            text = data.slice(at..at + length);
            at += length;
        }
        found.push(Match { at: offset, text });
    }
    Ok(found)
}

/// Writes bytes that came out, and reports a writer that fails as what it is.
///
/// # Errors
/// `Unavailable`, or `Exhausted` for a full disk.
pub fn write_all(to: &mut dyn Write, bytes: &[u8]) -> Result<()> {
    to.write_all(bytes).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::StorageFull => Error::new(Kind::Exhausted, "the output is full").with_source(cause),
        _ => Error::unavailable("the output can't be written").with_source(cause),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(offsets: &[u64]) -> Bytes {
        offsets.iter().flat_map(|at| at.to_le_bytes()).collect::<Vec<u8>>().into()
    }

    #[test]
    fn matches_of_a_hostile_target_are_refused() {
        let input = Part { from: 100, to: Some(200), ..Part::default() };
        let item = |data: Bytes, flags, values: &[u64]| Item { data, flags, values: values.to_vec(), ..Item::default() };
        let (found, more) = page(&item(spans(&[100, 150]), 0, &[2]), false, &input).unwrap();
        assert!(found.len() == 2 && more.is_none());
        for wrong in [
            item(spans(&[99]), 0, &[1]),
            item(spans(&[150, 150]), 0, &[2]),
            item(spans(&[200]), 0, &[1]),
            item(spans(&[150]).slice(..7), 0, &[1]),
            item(spans(&[150]), item_flag::MORE, &[1]),
            // The search would stand still, go back, and go beyond the end.
            item(spans(&[150]), item_flag::MORE, &[1, 100, 100]),
            item(spans(&[150]), item_flag::MORE, &[1, 50, 90]),
            item(spans(&[150]), item_flag::MORE, &[1, 160, u64::MAX]),
        ] {
            assert_eq!(page(&wrong, false, &input).unwrap_err().kind(), Kind::Unavailable, "{wrong:?}");
        }
        // Object places count from the block in which the input begins.
        let (_, more) = page(&item(spans(&[150]), item_flag::MORE, &[1, 140, 160]), false, &input).unwrap();
        assert_eq!(more.map(|more| (more.from, more.resume)), Some((140, 160)));
        let texts = [&7u64.to_le_bytes()[..], &u32::MAX.to_le_bytes(), b"abc"].concat();
        assert!(matches(&texts.into(), true).is_err());
    }

    #[test]
    fn answers_without_their_numbers_are_refused() {
        let item = Item::of_values(&[1, 2, 3]);
        assert_eq!(counts(&item).unwrap_err().kind(), Kind::Unavailable);
        assert_eq!(count(&Item::default()).unwrap_err().kind(), Kind::Unavailable);
    }
}
