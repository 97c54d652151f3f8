//! Opens the journal of a volume: what a crash left is read back.

use std::io;
use std::sync::Arc;

use skytether_common::{Error, Result};
use uuid::Uuid;

use crate::files::{FileIo, Files};
use crate::index::Index;
use crate::journal::{CONTROL, Control, FORMAT, Journal, MARK, segment_name, segment_number};
use crate::options::Options;
use crate::record::{self, HEAD, Head, Mark, Marked, Parsed};

/// What opening a journal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Records that were read back.
    pub records: u64,
    /// Records that can't be used, because one before them was lost. They were never acknowledged as durable: this is
    /// what a loss of power leaves.
    pub dropped: u64,
}

/// The journal in `files`, if there is one.
///
/// # Errors
/// `Corrupt` where its control file is damaged, `Unsupported` for newer formats, those of the disk.
pub(crate) fn find(what: &str, files: &dyn Files) -> Result<Option<Control>> {
    let failed = |e| Error::io("read", format!("{}/{CONTROL}", files.place()), e).context(what.to_owned());
    if !files.list().map_err(failed)?.iter().any(|name| name == CONTROL) {
        return Ok(None);
    }
    let bytes = read_all(files, CONTROL, 4096).map_err(failed)?;
    let damaged = || Error::corrupt(format!("{what}: {}/{CONTROL} is damaged: restore this file", files.place()));
    let control: Control = serde_json::from_slice(&bytes).map_err(|e| damaged().with_source(e))?;
    if control.format != FORMAT {
        return Err(Error::unsupported(format!("{what}: its journal has format {}, and this version reads format {FORMAT}", control.format)));
    }
    Ok(Some(control))
}

/// Removes all files of a journal; the control file last, so that what is left has an owner.
///
/// # Errors
/// Those of the disk.
pub(crate) fn clear(what: &str, files: &dyn Files) -> Result<()> {
    let failed = |e| Error::io("clear", files.place(), e).context(what.to_owned());
    let mut names = files.list().map_err(failed)?;
    names.retain(|name| segment_number(name).is_some() || name == MARK);
    names.sort();
    names.push(CONTROL.to_owned());
    for name in names {
        match files.remove(&name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
    }
    Ok(())
}

/// Makes an empty journal for `volume`, after [`clear`].
///
/// # Errors
/// Those of the disk.
pub(crate) fn create(what: &str, files: &dyn Files, volume: Uuid) -> Result<Control> {
    let failed = |e| Error::io("create", format!("{}/{CONTROL}", files.place()), e).context(what.to_owned());
    let secret = Uuid::new_v4().as_u64_pair().0 ^ Uuid::new_v4().as_u64_pair().1;
    let control = Control { format: FORMAT, id: Uuid::new_v4(), volume, secret };
    let bytes = serde_json::to_vec(&control).map_err(|e| Error::internal("a control file can't be written").with_source(e))?;
    files.create(CONTROL, &bytes).map_err(failed)?;
    Ok(control)
}

/// Reads the segments of a volume whose extents end at byte `end` into `index`, and begins a new segment. The index
/// knows the extents in the store already.
///
/// # Errors
/// `Corrupt`, naming the file, where something is lost that was durable, or lies beyond `end`; those of the disk.
pub(crate) fn recover(what: &str, files: &Arc<dyn Files>, control: Control, (options, end): (&Options, u64), index: &mut Index) -> Result<(Journal, Recovery)> {
    let failed = |e| Error::io("read", files.place(), e).context(what.to_owned());
    let path = |number: u64| format!("{}/{}", files.place(), segment_name(number));
    let remove = |number: u64| files.remove(&segment_name(number)).map_err(|e| Error::io("remove", path(number), e).context(what.to_owned()));
    let marked = read_mark(what, &**files, control.secret)?;
    let (mark, oldest) = (marked.durable, marked.oldest);
    let numbers = segments(what, files, oldest)?;
    // `last` is the number of the last record that was taken, or the one before the first of the oldest segment.
    let (mut last, mut durable, mut found) = (None::<u64>, mark, Mark::default());
    let mut recovery = Recovery::default();
    let (mut damaged, mut unusable): (Option<String>, Option<u64>) = (None, None);
    for number in &numbers {
        let (parsed, bytes) = read_segment(what, files, &control, *number, options.segment_bytes)?;
        durable = durable.max(parsed.durable);
        let follows = parsed.head.first > 0 && last.is_none_or(|last| last.checked_add(1) == Some(parsed.head.first));
        if unusable.is_some() || !follows {
            unusable.get_or_insert(*number);
            recovery.dropped += parsed.records.len() as u64 + parsed.beyond;
            continue;
        }
        if parsed.end < bytes.len() as u64 {
            damaged.get_or_insert_with(|| format!("{} is damaged at byte {}", path(*number), parsed.end));
        }
        // A volume never shrinks. Otherwise one record could take more extents than there is memory for.
        if let Some((record, _)) = parsed.records.iter().find(|(record, _)| record.at + record.len > end) {
            let why = format!("{} has a record of {} bytes at {}, and the volume's extents end at {end}", path(*number), record.len, record.at);
            return Err(Error::corrupt(format!("{what}: {why}: restore the file and the drive of one time, or open the volume without its journal")));
        }
        recovery.dropped += parsed.beyond;
        recovery.records += parsed.records.len() as u64;
        let file = files.open(&segment_name(*number)).map_err(failed)?;
        let flushed = flush_again(&*file, &parsed, &bytes, mark.seq);
        flushed.map_err(|e| Error::io("flush", path(*number), e).context(what.to_owned()))?;
        index.add_segment(*number, file, parsed.end);
        last = Some(parsed.head.first - 1);
        for (record, data) in &parsed.records {
            index.apply(record, *number, *data);
            last = Some(record.seq);
            found = Mark { segment: *number, seq: record.seq };
        }
    }
    // The segment of a durable record may have been removed, because it was merged; later ones may not.
    let is_here = durable.seq > 0 && numbers.first().map_or(durable.segment >= oldest, |first| *first <= durable.segment);
    if is_here && last.is_none_or(|last| last < durable.seq) {
        let why = damaged.unwrap_or_else(|| format!("{} has lost its end", files.place()));
        return Err(lost(what, &why));
    }
    if recovery.dropped > 0 {
        tracing::warn!(volume = what, records = recovery.dropped, "writes after one that a loss of power cut off are gone; they were not flushed");
    }
    for number in numbers.iter().rev().take_while(|number| unusable.is_some_and(|first| **number >= first)) {
        remove(*number)?;
    }
    let next = unusable.unwrap_or_else(|| numbers.last().map_or(oldest.max(mark.segment + 1), |last| *last + 1));
    let seq = last.unwrap_or(mark.seq);
    let oldest = numbers.first().copied().filter(|_| last.is_some()).unwrap_or(next);
    let marked = Marked { durable: found, oldest };
    let mark = files.create(MARK, &marked.encode(control.secret));
    let mark = mark.map_err(|e| Error::io("create", format!("{}/{MARK}", files.place()), e).context(what.to_owned()))?;
    let mut journal = Journal::new(what.to_owned(), Arc::clone(files), control, spares(options), (mark, marked), seq, next)?;
    let (number, file, len) = journal.begin();
    index.add_segment(number, file, len);
    Ok((journal, recovery))
}

/// The mark; the default where there is none that can be read.
fn read_mark(what: &str, files: &dyn Files, secret: u64) -> Result<Marked> {
    let failed = |e| Error::io("read", format!("{}/{MARK}", files.place()), e).context(what.to_owned());
    if !files.list().map_err(failed)?.iter().any(|name| name == MARK) {
        return Ok(Marked::default());
    }
    let marked = Marked::decode(&read_all(files, MARK, 64).map_err(failed)?, secret);
    if marked.is_none() {
        tracing::warn!(volume = what, "the mark of its journal is damaged: what was durable is known by the records alone");
    }
    Ok(marked.unwrap_or_default())
}

/// The numbers of the segments from `oldest` on, ascending; older ones, whose removal was interrupted, are removed.
fn segments(what: &str, files: &Arc<dyn Files>, oldest: u64) -> Result<Vec<u64>> {
    let failed = |e| Error::io("read", files.place(), e).context(what.to_owned());
    let mut numbers: Vec<u64> = files.list().map_err(failed)?.iter().filter_map(|name| segment_number(name)).collect();
    numbers.sort_unstable();
    for dead in numbers.drain(..numbers.partition_point(|number| *number < oldest)) {
        files.remove(&segment_name(dead)).map_err(failed)?;
    }
    let begin = if oldest > 0 && !numbers.is_empty() { Some(oldest) } else { None };
    let missing = begin.filter(|oldest| !numbers.contains(oldest)).or_else(|| numbers.windows(2).find(|pair| pair[1] != pair[0] + 1).map(|pair| pair[0] + 1));
    match missing {
        Some(missing) => Err(lost(what, &format!("{}/{} is missing", files.place(), segment_name(missing)))),
        None => Ok(numbers),
    }
}

/// Makes the records of a segment durable. Those after `durable` are written again before: after a flush that failed,
/// the system takes what it could not write for written, so that another flush alone would do nothing.
fn flush_again(file: &dyn FileIo, parsed: &Parsed, bytes: &[u8], durable: u64) -> io::Result<()> {
    let after = parsed.records.iter().find(|(record, _)| record.seq > durable).map(|(record, data)| *data as usize - record.head_len());
    if after.is_some() || parsed.records.is_empty() {
        file.write_at(0, &[&bytes[..HEAD]])?;
    }
    if let Some(from) = after {
        file.write_at(from as u64, &[&bytes[from..parsed.end as usize]])?;
    }
    file.sync()
}

/// The length of a segment, and how many files are kept to be used again.
fn spares(options: &Options) -> (u64, usize) {
    (options.segment_bytes, (options.journal_bytes / options.segment_bytes / 4) as usize)
}

fn lost(what: &str, why: &str) -> Error {
    Error::corrupt(format!("{what}: {why}, so writes are lost that were durable: restore the file, or open the volume without its journal"))
}

/// What a segment holds, and its bytes.
fn read_segment(what: &str, files: &Arc<dyn Files>, control: &Control, number: u64, most: u64) -> Result<(Parsed, Vec<u8>)> {
    let name = segment_name(number);
    let damaged =
        |why: &str| Error::corrupt(format!("{what}: {}/{name} is damaged ({why}): restore it, or open the volume without its journal", files.place()));
    let bytes =
        read_all(&**files, &name, (2 * most).max(1 << 30)).map_err(|e| Error::io("read", format!("{}/{name}", files.place()), e).context(what.to_owned()))?;
    let parsed = record::parse(&bytes).map_err(|e| damaged("its head").with_source(e))?;
    if (parsed.head.volume, parsed.head.secret) != (control.volume, control.secret) || parsed.head.number > number {
        return Err(damaged("it belongs to another journal"));
    }
    if parsed.head.number < number {
        // A file that was to be used again: nothing of the new segment is durable.
        let head = Head { number, first: 0, ..parsed.head };
        let parsed = Parsed { head, records: Vec::new(), end: HEAD as u64, durable: Mark::default(), beyond: 0 };
        return Ok((parsed, bytes));
    }
    Ok((parsed, bytes))
}

/// The bytes of a file of at most `most`.
fn read_all(files: &dyn Files, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let file = files.open(name)?;
    let len = file.len()?;
    if len > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has {len} bytes, more than the {most} of such a file")));
    }
    let mut bytes = vec![0; len as usize];
    file.read_at(0, &mut bytes, true)?;
    Ok(bytes)
}
