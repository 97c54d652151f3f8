//! A file that is striped over several targets: each works on its chunks, and what straddles chunks is put together
//! here.
//!
//! Invariant: answers are those of the whole file, wherever chunks begin. Elements that straddle chunks come back as
//! heads and tails (`skytether_offload::chunks`) and are computed on here, with their place in the whole.
//!
//! A chunk that a member can't compute is decoded from the others of its row, and computed on here.

use std::collections::HashMap;
use std::fmt::Debug;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether_common::{Error, Result};
use skytether_erasure::code::decode;
use skytether_offload::chunks::{Straddle, straddling};
use skytether_offload::codes::item_flag;
use skytether_offload::{ExecResult, Item};

use crate::files::{Content, ReadAt};
use crate::input::{Input, Part};
use crate::layout::{Chunk, Layout};
use crate::operations::{Counts, Match, count, counts, page};
use crate::places::{Access, OpenFile};
use crate::request::{Answer, Elements, Format, Order, Pattern, Request};
use crate::session::{Session, Settings};

/// A member: a file, and the way to compute on it.
pub trait Member: Send + Sync + Debug {
    /// An item for each part of the file.
    fn run_each(&self, request: &Request, parts: &[Part]) -> Vec<Result<Item>>;

    /// All parts together.
    ///
    /// # Errors
    /// Those of the operation, and of the way to it.
    fn run_whole(&self, request: &Request, parts: &[Part]) -> Result<ExecResult>;

    /// Fills `space` with the file's bytes from `at` on.
    ///
    /// # Errors
    /// `Corrupt` where the file is shorter, and what the system says.
    fn read_exact(&self, at: u64, space: &mut [u8]) -> Result<()>;
}

/// A member on a mounted file system.
#[derive(Debug)]
pub struct FileMember {
    file: Arc<OpenFile>,
    session: Arc<Session>,
}

impl FileMember {
    fn inputs(&self, parts: &[Part]) -> Vec<Input> {
        parts.iter().map(|part| Input { file: self.file.clone(), part: *part }).collect()
    }
}

impl Member for FileMember {
    fn run_each(&self, request: &Request, parts: &[Part]) -> Vec<Result<Item>> {
        self.session.run_each(request, &self.inputs(parts)).into_iter().map(|done| done.value).collect()
    }

    fn run_whole(&self, request: &Request, parts: &[Part]) -> Result<ExecResult> {
        self.session.run_whole(request, &self.inputs(parts), &[]).value
    }

    fn read_exact(&self, at: u64, space: &mut [u8]) -> Result<()> {
        self.file.file().read_exact_at(space, at).map_err(|cause| Error::io("read", self.file.path(), cause))
    }
}

/// What happened to chunks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Chunks that their members computed on.
    pub chunks: u64,
    /// Chunks that were decoded from others and computed on here.
    pub decoded: u64,
    /// Why, for the first of them.
    pub why: Option<String>,
    /// Bytes of elements that straddle chunks.
    pub straddling: u64,
}

/// A striped file.
#[derive(Debug)]
pub struct Striped {
    layout: Layout,
    members: Vec<Result<Box<dyn Member>>>,
    /// Computes here.
    local: Session,
}

/// What a chunk gave.
struct Found {
    chunk: Chunk,
    item: Item,
    matches: Vec<Match>,
}

impl Striped {
    /// Opens the file that `description` describes. A member that can't be opened is lost: its chunks are decoded.
    ///
    /// # Errors
    /// Those of [`Layout::read`], and of targets' URLs.
    pub fn open(description: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        let layout = Layout::read(description)?;
        let mut sessions: HashMap<Option<String>, Arc<Session>> = HashMap::new();
        let mut members: Vec<Result<Box<dyn Member>>> = Vec::new();
        for member in &layout.members {
            let session = match sessions.get(&member.target) {
                Some(session) => session.clone(),
                None => {
                    let session = Arc::new(match &member.target {
                        Some(url) => Session::open(url, settings.clone())?,
                        None => Session::local(settings.clone())?,
                    });
                    sessions.insert(member.target.clone(), session.clone());
                    session
                }
            };
            let file = OpenFile::open(&member.path, Access::Read);
            members.push(file.map(|file| Box::new(FileMember { file: Arc::new(file), session }) as Box<dyn Member>));
        }
        Self::with(layout, members, Session::local(settings.clone())?)
    }

    /// With members of any kind; `local` computes here.
    ///
    /// # Errors
    /// `Invalid` for a layout that does not fit.
    pub fn with(layout: Layout, members: Vec<Result<Box<dyn Member>>>, local: Session) -> Result<Self> {
        layout.check()?;
        if members.len() != layout.members.len() {
            return Err(Error::invalid(format!("a layout of {} members has {} files", layout.members.len(), members.len())));
        }
        Ok(Self { layout, members, local })
    }

    /// The layout.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn flags(&self, chunk: &Chunk) -> (bool, bool) {
        (chunk.number > 0, chunk.number + 1 < self.layout.chunks())
    }

    fn part(&self, chunk: &Chunk) -> Result<Part> {
        let (preceded, followed) = self.flags(chunk);
        Part::chunk(chunk.at, chunk.at + chunk.length, chunk.position, preceded, followed)
    }

    /// The chunks of each member, as long as it has some.
    fn by_member(&self) -> Vec<(usize, Vec<Chunk>)> {
        let mut chunks: Vec<(usize, Vec<Chunk>)> = (0..self.members.len()).map(|member| (member, Vec::new())).collect();
        for number in 0..self.layout.chunks() {
            let chunk = self.layout.chunk(number);
            if let Some((_, of_member)) = chunks.get_mut(chunk.member) {
                of_member.push(chunk);
            }
        }
        chunks.retain(|(_, chunks)| !chunks.is_empty());
        chunks
    }

    fn member(&self, number: usize) -> Result<&dyn Member> {
        match self.members.get(number) {
            Some(Ok(member)) => Ok(&**member),
            Some(Err(error)) => Err(error.flattened()),
            None => Err(Error::internal(format!("there is no member {number}"))),
        }
    }

    /// The bytes of a chunk: of its member, or decoded from others of its row.
    fn bytes(&self, chunk: &Chunk, lost: &[usize]) -> Result<Bytes> {
        let read = |member: usize, at: u64, length: usize| -> Result<Vec<u8>> {
            let mut space = vec![0; length];
            self.member(member)?.read_exact(at, &mut space)?;
            Ok(space)
        };
        let own = if lost.contains(&chunk.member) { Err(Error::unavailable("it is lost")) } else { read(chunk.member, chunk.at, chunk.length as usize) };
        let (error, code) = match (own, self.layout.code()) {
            (Ok(bytes), _) => return Ok(bytes.into()),
            (Err(error), None) => return Err(error.context(format!("chunk {} can't be read, and there is no redundancy", chunk.number))),
            (Err(error), Some(code)) => (error, code),
        };
        let data = self.layout.data() as u64;
        let (row, wanted) = (chunk.number / data, (chunk.number % data) as usize);
        let (lengths, parity) = self.layout.row(row);
        let (mut shards, mut there): (Vec<Option<Vec<u8>>>, usize) = (Vec::new(), 0);
        // Parities come after all data shards of a full row, also where the row is short.
        let places = (0..lengths.len()).chain(code.data()..code.shards());
        for (shard, place) in places.enumerate() {
            let length = lengths.get(shard).copied().unwrap_or(parity);
            let (member, at) = self.layout.place(row, place);
            let usable = shard != wanted && !lost.contains(&member) && there < lengths.len();
            let bytes = if usable { read(member, at, length).ok() } else { None };
            there += usize::from(bytes.is_some());
            shards.push(bytes);
        }
        let shards: Vec<Option<&[u8]>> = shards.iter().map(|shard| shard.as_deref()).collect();
        let failed =
            |cause: Error| Error::unavailable(format!("chunk {} is lost, and so are too many others: {}", chunk.number, cause.message())).with_source(error);
        let decoded = decode(code, &lengths, &shards, &[wanted]).map_err(failed)?;
        decoded.into_iter().next().ok_or_else(|| Error::internal("nothing was decoded"))
    }

    /// A chunk whose bytes are in memory.
    fn in_memory(&self, chunk: &Chunk) -> Part {
        let (preceded, followed) = self.flags(chunk);
        Part { to: Some(chunk.length), shift: chunk.position, preceded, followed, ..Part::default() }
    }

    /// An item for each chunk, in their order. `texts` says of searches whether matches have texts; for other
    /// operations it is `None`.
    fn run_chunks(&self, request: &Request, texts: Option<bool>) -> Result<(Vec<Found>, Report)> {
        let by_member = self.by_member();
        let found = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for (number, chunks) in &by_member {
                let found = &found;
                scope.spawn(move || {
                    let items = self.run_member(*number, request, chunks, texts);
                    found.lock().extend(chunks.iter().copied().zip(items));
                });
            }
        });
        let mut found = found.into_inner();
        found.sort_by_key(|(chunk, _)| chunk.number);
        let mut report = Report::default();
        let mut all = Vec::with_capacity(found.len());
        for (chunk, result) in found {
            let (item, matches) = match result {
                Ok(found) => {
                    report.chunks += 1;
                    found
                }
                Err(error) => self.run_decoded(request, &chunk, texts, error, &mut report)?,
            };
            all.push(Found { chunk, item, matches });
        }
        Ok((all, report))
    }

    fn run_member(&self, number: usize, request: &Request, chunks: &[Chunk], texts: Option<bool>) -> Vec<Result<(Item, Vec<Match>)>> {
        let member = match self.member(number) {
            Ok(member) => member,
            Err(error) => return chunks.iter().map(|_| Err(error.flattened())).collect(),
        };
        let parts = match chunks.iter().map(|chunk| self.part(chunk)).collect::<Result<Vec<Part>>>() {
            Ok(parts) => parts,
            Err(error) => return chunks.iter().map(|_| Err(error.flattened())).collect(),
        };
        let items = member.run_each(request, &parts);
        if items.len() != parts.len() {
            return chunks.iter().map(|_| Err(Error::corrupt(format!("{} items for {} chunks", items.len(), parts.len())))).collect();
        }
        let next = |part: &Part| member.run_each(request, std::slice::from_ref(part)).pop().unwrap_or_else(|| Err(Error::corrupt("no item for a chunk")));
        items.into_iter().zip(&parts).map(|(item, part)| finish(item, part, texts, next)).collect()
    }

    fn run_decoded(&self, request: &Request, chunk: &Chunk, texts: Option<bool>, error: Error, report: &mut Report) -> Result<(Item, Vec<Match>)> {
        let bytes = match self.layout.code() {
            // What the member reads may be as wrong as what it computed on.
            Some(_) => self.bytes(chunk, &[chunk.member]).or_else(|_| self.bytes(chunk, &[]))?,
            None => return Err(error),
        };
        report.decoded += 1;
        report.why.get_or_insert_with(|| error.report());
        let part = self.in_memory(chunk);
        let next = |part: &Part| self.local.run_bytes(request, bytes.clone(), *part);
        finish(next(&part), &part, texts, next)
    }

    /// The elements that straddle chunks.
    fn straddling(&self, found: &[Found], report: &mut Report) -> Result<Vec<Straddle>> {
        for Found { chunk, item, .. } in found {
            if (item.head.len() + item.tail.len()) as u64 > chunk.length {
                return Err(Error::unavailable(format!("the answer for chunk {} has a longer head and tail than the chunk", chunk.number)));
            }
        }
        let straddles = straddling(found.iter().map(|found| (found.chunk.position, found.chunk.length, &found.item)));
        report.straddling = straddles.iter().map(|straddle| straddle.bytes.len() as u64).sum();
        Ok(straddles)
    }

    fn on_straddle(&self, request: &Request, straddle: Straddle, texts: Option<bool>) -> Result<(Item, Vec<Match>)> {
        let bytes = Bytes::from(straddle.bytes);
        let part = Part { to: Some(bytes.len() as u64), shift: straddle.at, ..Part::default() };
        let next = |part: &Part| self.local.run_bytes(request, bytes.clone(), *part);
        finish(next(&part), &part, texts, next)
    }

    /// Lines, words, characters and bytes of the whole.
    ///
    /// # Errors
    /// Those of chunks that can't be decoded either.
    pub fn word_count(&self, utf8: bool) -> Result<(Counts, Report)> {
        let request = Request::word_count(utf8);
        let (found, mut report) = self.run_chunks(&request, None)?;
        let mut sum = Counts::default();
        for found in &found {
            sum = sum.plus(counts(&found.item)?);
        }
        for straddle in self.straddling(&found, &mut report)? {
            sum = sum.plus(counts(&self.on_straddle(&request, straddle, None)?.0)?);
        }
        Ok((sum, report))
    }

    /// How many matches the whole has, or lines with matches.
    ///
    /// # Errors
    /// Those of chunks that can't be decoded either.
    pub fn count(&self, pattern: &Pattern, lines: bool) -> Result<(u64, Report)> {
        let request = Request::search(pattern, if lines { Answer::Lines } else { Answer::Matches });
        let (found, mut report) = self.run_chunks(&request, None)?;
        let mut sum = 0u64;
        for found in &found {
            sum = sum.saturating_add(count(&found.item)?);
        }
        for straddle in self.straddling(&found, &mut report)? {
            sum = sum.saturating_add(count(&self.on_straddle(&request, straddle, None)?.0)?);
        }
        Ok((sum, report))
    }

    /// Where the whole has matches, in their order, with their bytes if `texts`.
    ///
    /// # Errors
    /// Those of chunks that can't be decoded either.
    pub fn search(&self, pattern: &Pattern, texts: bool) -> Result<(Vec<Match>, Report)> {
        let request = Request::search(pattern, if texts { Answer::Texts } else { Answer::Offsets });
        let (mut found, mut report) = self.run_chunks(&request, Some(texts))?;
        let mut all: Vec<Match> = found.iter_mut().flat_map(|found| std::mem::take(&mut found.matches)).collect();
        for straddle in self.straddling(&found, &mut report)? {
            all.extend(self.on_straddle(&request, straddle, Some(texts))?.1);
        }
        all.sort_by_key(|found| found.at);
        Ok((all, report))
    }

    /// All elements of the whole in their order: each member sorts its own, and these are merged here.
    ///
    /// # Errors
    /// Those of chunks that can't be decoded either; `Exhausted` where a member's elements don't fit into a result.
    pub fn sort(&self, order: &Order) -> Result<(Bytes, Report)> {
        let request = Request::sort(order);
        // Records with equal keys stay in their order. A member's chunks are not neighbours, so that each is a run.
        let alone = matches!(order.elements, Elements::Records { .. });
        let (mut runs, straddles, report) = self.run_together(&request, alone)?;
        for straddle in straddles {
            let length = straddle.bytes.len() as u64;
            let part = Part { to: Some(length), ..Part::default() };
            // A last line without a newline gets one.
            runs.push((straddle.at, self.local.run_bytes(&request, straddle.bytes.into(), part)?.data));
        }
        runs.sort_by_key(|(at, _)| *at);
        let contents = runs.into_iter().map(|(_, run)| (run.len() as u64, run));
        let contents = contents.map(|(length, run)| (Content::Memory(run), length, Part::default())).collect();
        let merged = self.local.run_contents(&Request::merge(order), contents)?;
        let data = merged.items.into_iter().next().map(|item| item.data);
        Ok((data.ok_or_else(|| Error::corrupt("a merge without an answer"))?, report))
    }

    /// Rows of a query over lines of the whole: several Arrow IPC streams, whose rows together are the answer. The plan
    /// must not need more than one line at a time (filters, projections), or give partial sums that the caller adds up.
    ///
    /// # Errors
    /// Those of chunks that can't be decoded either.
    pub fn query(&self, format: Format, plan: Bytes, table: &str) -> Result<(Vec<Bytes>, Report)> {
        let request = Request::query(format, plan, &[table.to_owned()]);
        let (rows, straddles, report) = self.run_together(&request, false)?;
        let mut rows: Vec<Bytes> = rows.into_iter().map(|(_, rows)| rows).collect();
        for straddle in straddles {
            let first = straddle.at == 0;
            // A part that others precede has no line of names. Its first line is its head, so that one is put in front.
            let bytes = if first { straddle.bytes } else { [b"\n", &straddle.bytes[..]].concat() };
            let part = Part { shift: straddle.at.saturating_sub(u64::from(!first)), preceded: !first, ..Part::default() };
            let length = bytes.len() as u64;
            let result = self.local.run_contents(&request, vec![(Content::Memory(bytes.into()), length, part)])?;
            rows.extend(result.items.into_iter().next().map(|item| item.data));
        }
        Ok((rows, report))
    }

    /// Runs an operation whose answer is one for all inputs: on each member's chunks together, or on each `alone`. The
    /// answers come with the place of their first chunk.
    fn run_together(&self, request: &Request, alone: bool) -> Result<Together> {
        type Answer = (Vec<Chunk>, Result<ExecResult>);
        let by_member = self.by_member();
        let answers: Mutex<Vec<Answer>> = Mutex::default();
        std::thread::scope(|scope| {
            for (number, chunks) in &by_member {
                let answers = &answers;
                scope.spawn(move || {
                    for chunks in chunks.chunks(if alone { 1 } else { chunks.len() }) {
                        let parts = chunks.iter().map(|chunk| self.part(chunk)).collect::<Result<Vec<Part>>>();
                        let result = parts.and_then(|parts| self.member(*number)?.run_whole(request, &parts));
                        answers.lock().push((chunks.to_vec(), result));
                    }
                });
            }
        });
        let (mut data, mut found, mut report) = (Vec::new(), Vec::new(), Report::default());
        for (chunks, result) in answers.into_inner() {
            let result = match result {
                Ok(result) => {
                    report.chunks += chunks.len() as u64;
                    result
                }
                Err(error) if self.layout.code().is_none() => return Err(error),
                Err(error) => {
                    let mut contents = Vec::with_capacity(chunks.len());
                    for chunk in &chunks {
                        let bytes = self.bytes(chunk, &[chunk.member]).or_else(|_| self.bytes(chunk, &[]))?;
                        contents.push((Content::Memory(bytes), chunk.length, self.in_memory(chunk)));
                    }
                    report.decoded += chunks.len() as u64;
                    report.why.get_or_insert_with(|| error.report());
                    self.local.run_contents(request, contents)?
                }
            };
            let mut items = result.items;
            // Queries have an item for the answer in front of those of the chunks.
            let answer = if items.len() == chunks.len() + 1 { Some(items.remove(0)) } else { None };
            if items.len() != chunks.len() {
                return Err(Error::unavailable(format!("the answer has {} items for {} chunks", items.len(), chunks.len())));
            }
            let at = chunks.first().map_or(0, |chunk| chunk.position);
            data.extend(answer.as_ref().or(items.first()).map(|item| (at, item.data.clone())));
            found.extend(chunks.into_iter().zip(items).map(|(chunk, item)| Found { chunk, item, matches: Vec::new() }));
        }
        found.sort_by_key(|found| found.chunk.number);
        let straddles = self.straddling(&found, &mut report)?;
        Ok((data, straddles, report))
    }
}

/// Answers with the place of their first chunk, what straddles chunks, and what happened.
type Together = (Vec<(u64, Bytes)>, Vec<Straddle>, Report);

/// The item of a chunk with all that follows it: the head of the first page, the tail of the last one.
fn finish(item: Result<Item>, part: &Part, texts: Option<bool>, next: impl Fn(&Part) -> Result<Item>) -> Result<(Item, Vec<Match>)> {
    let mut item = item?;
    let Some(texts) = texts else { return Ok((item, Vec::new())) };
    let (mut all, mut part) = (Vec::new(), *part);
    loop {
        let (matches, more) = page(&item, texts, &part)?;
        all.extend(matches);
        let Some(more) = more else { return Ok((item, all)) };
        part = more;
        let following = next(&part)?;
        // A later page is no chunk that others precede: it has no head.
        item = Item { head: item.head, flags: following.flags | (item.flags & item_flag::NO_BREAK), ..following };
    }
}

/// All bytes of the whole, for operations that can't be split: a digest, for example.
impl ReadAt for Striped {
    fn read_at(&self, at: u64, space: &mut [u8]) -> Result<()> {
        let (mut at, mut done) = (at, 0);
        while done < space.len() && at < self.layout.length {
            let chunk = self.layout.chunk(at / self.layout.chunk);
            let within = at - chunk.position;
            let length = ((chunk.length - within) as usize).min(space.len() - done);
            let part = &mut space[done..done + length];
            let read = self.member(chunk.member).and_then(|member| member.read_exact(chunk.at + within, part));
            if read.is_err() {
                let bytes = self.bytes(&chunk, &[])?;
                part.copy_from_slice(&bytes[within as usize..within as usize + length]);
            }
            (at, done) = (at + length as u64, done + length);
        }
        Ok(())
    }
}

impl Striped {
    /// Any operation on the whole, in this process: its bytes are read, and lost chunks decoded.
    ///
    /// # Errors
    /// Those of the operation, and of chunks that can't be decoded.
    pub fn run_here(self: &Arc<Self>, request: &Request) -> Result<ExecResult> {
        let content = Content::Other(self.clone());
        self.local.run_contents(request, vec![(content, self.layout.length, Part::default())])
    }
}
