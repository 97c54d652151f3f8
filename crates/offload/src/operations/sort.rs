//! Sort of lines and of records, within the memory bound.
//!
//! What fits into memory is sorted there. Otherwise sorted runs are written to the second output object, the scratch,
//! and merged into the first one.

use std::ops::{ControlFlow, Range};

use skytether_common::{Error, Result};

use super::lines::Lines;
use super::merge::{Items, finish};
use super::order::{Cursor, Merger, Order, Ordered, block_of};
use crate::codes::{item_flag, opcode};
use crate::descriptor::{Descriptor, Object};
use crate::job::{Input, Job};
use crate::limits::Limits;
use crate::operation::{Arguments, Operation, Plan, WholeWork};
use crate::output::{Output, Sink};
use crate::result::Item;

/// Sorts the elements of all inputs together. Records with equal keys stay in their order.
#[derive(Debug)]
pub struct Sort {
    /// Records of a fixed size, and not lines.
    pub records: bool,
}

struct Work {
    order: Order,
}

impl Operation for Sort {
    fn opcode(&self) -> u16 {
        if self.records { opcode::SORT_RECORDS } else { opcode::SORT_LINES }
    }

    fn name(&self) -> &'static str {
        if self.records { "sort of records" } else { "sort of lines" }
    }

    fn takes_chunks(&self) -> bool {
        true
    }

    fn plan(&self, arguments: &mut Arguments<'_>, descriptor: &Descriptor) -> Result<Plan> {
        if descriptor.outputs.len() > 2 {
            return Err(Error::invalid(format!("{}: it has an output object and a scratch, not {}", self.name(), descriptor.outputs.len())));
        }
        Ok(Plan::Whole(Box::new(Work { order: Order::of(self.records, arguments)? })))
    }
}

/// An element in the arena. The key's first bytes decide most comparisons.
#[derive(Debug, Clone, Copy)]
struct Entry {
    prefix: u64,
    at: u32,
    length: u32,
}

/// Elements in memory.
#[derive(Debug)]
struct Arena {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    most: usize,
}

impl Arena {
    fn new(memory: u64) -> Self {
        // Half of the memory is for merging. Vectors have up to twice their length.
        Self { bytes: Vec::new(), entries: Vec::new(), most: (memory / 4).min(u32::MAX.into()) as usize }
    }

    fn is_full(&self, further: usize) -> bool {
        let entries = (self.entries.len() + 1) * size_of::<Entry>();
        !self.entries.is_empty() && self.bytes.len() + further + entries > self.most
    }

    fn push(&mut self, order: &Order, element: &[u8]) {
        let key = order.key(element);
        let mut prefix = [0; 8];
        let known = key.len().min(8);
        prefix[..known].copy_from_slice(&key[..known]);
        self.entries.push(Entry { prefix: u64::from_be_bytes(prefix), at: self.bytes.len() as u32, length: element.len() as u32 });
        self.bytes.extend_from_slice(element);
    }

    fn element(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.at as usize..][..entry.length as usize]
    }

    fn sort(&mut self, order: &Order) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_unstable_by(|a, b| {
            let prefixes = if order.reverse { b.prefix.cmp(&a.prefix) } else { a.prefix.cmp(&b.prefix) };
            // Equal elements stay in the order in which they came.
            prefixes.then_with(|| order.compare(self.element(a), self.element(b))).then(a.at.cmp(&b.at))
        });
        self.entries = entries;
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }
}

/// Sorted elements in the scratch.
struct Run {
    range: Range<u64>,
    /// Bytes of its longest element.
    longest: usize,
}

/// Collects elements, and writes runs.
struct Collector<'a> {
    order: &'a Order,
    limits: Limits,
    arena: Arena,
    runs: Vec<Run>,
    /// The sum of the runs' longest elements: a merge has one of each run in memory.
    longest: usize,
    scratch: Option<Output>,
}

impl Collector<'_> {
    fn push(&mut self, element: &[u8]) -> Result<()> {
        if self.arena.is_full(element.len()) {
            self.write_run()?;
        }
        self.arena.push(self.order, element);
        Ok(())
    }

    fn write_run(&mut self) -> Result<()> {
        let Some(scratch) = &mut self.scratch else {
            let most = self.arena.most;
            return Err(Error::exhausted(format!(
                "elements don't fit into {most} bytes of memory; give a second output object as scratch, as long as the inputs"
            )));
        };
        let longest = self.arena.entries.iter().map(|entry| entry.length as usize).max().unwrap_or_default();
        let memory = self.limits.memory;
        self.longest += longest;
        if self.longest as u64 > memory / 4 {
            let runs = self.runs.len() + 1;
            return Err(Error::exhausted(format!("the longest elements of {runs} runs don't fit into {memory} bytes of memory; sort elsewhere")));
        }
        block_of(memory, self.runs.len() + 1, self.limits.block)?;
        self.arena.sort(self.order);
        let begin = scratch.written();
        let mut sink = Sink::Output(scratch);
        let mut ordered = Ordered::new(self.order, &mut sink);
        for entry in &self.arena.entries {
            ordered.push(self.arena.element(entry))?;
        }
        self.runs.push(Run { range: begin..scratch.written(), longest });
        self.arena.clear();
        Ok(())
    }
}

impl WholeWork for Work {
    fn run(self: Box<Self>, job: &mut Job) -> Result<Vec<Item>> {
        let order = &self.order;
        let limits = job.limits().clone();
        let scratch = if job.outputs.len() > 1 { job.outputs.pop() } else { None };
        let mut collector = Collector { order, limits: limits.clone(), arena: Arena::new(limits.memory), runs: Vec::new(), longest: 0, scratch };
        let count = job.descriptor().inputs.len();
        let mut items = Items::new(limits.result, job.descriptor().outputs.len());
        for number in 0..count {
            items.push(collect(&mut job.input(number)?, &mut collector, &limits)?)?;
        }
        let mut items = items.all;
        collector.arena.sort(order);
        job.stop().check()?;
        if let Some(scratch) = &mut collector.scratch {
            scratch.finish()?;
        }
        let done = write(job, &collector)?;
        // The scratch has no content that counts, and keeps its place among the outputs.
        job.outputs.extend(collector.scratch.take());
        if items.is_empty() {
            items.push(Item::default());
        }
        if let Some(first) = items.first_mut() {
            first.values = done.values;
            first.flags |= done.flags;
            first.data = done.data;
        }
        Ok(items)
    }
}

/// Merges the runs and what is in memory.
fn write(job: &mut Job, collector: &Collector<'_>) -> Result<Item> {
    let (order, arena) = (collector.order, &collector.arena);
    let block = block_of(job.limits().memory, collector.runs.len(), job.limits().block)?;
    let (tracker, runtime, stop) = (job.tracker.clone(), job.runtime().clone(), job.stop().clone());
    let readers = collector.runs.iter().filter_map(|run| Some((job.reader_of_output(1, run.range.clone())?, run.longest)));
    let sources = readers.map(|(reader, longest)| Cursor::new(reader, order, block, longest, (&tracker, &runtime), &stop)).collect();
    let mut merger = Merger::new(order, sources, false)?;
    let mut sink = job.sink();
    let mut ordered = Ordered::new(order, &mut sink);
    let mut entries = arena.entries.iter().peekable();
    for turn in 0u64.. {
        if turn.is_multiple_of(1024) {
            stop.check()?;
        }
        let own = entries.peek().map(|entry| arena.element(entry));
        match (merger.first(), own) {
            (None, None) => break,
            // Runs came before what is in memory.
            (Some(first), own) if own.is_none_or(|own| order.compare(first, own).is_le()) => {
                ordered.push(first)?;
                merger.advance()?;
            }
            (_, own) => {
                ordered.push(own.unwrap_or_default())?;
                entries.next();
            }
        }
    }
    let elements = ordered.elements;
    finish(sink, elements)
}

fn collect(input: &mut Input<'_>, collector: &mut Collector<'_>, limits: &Limits) -> Result<Item> {
    let object = input.object().clone();
    match collector.order.record {
        Some(record) => collect_records(input, &object, collector, record, limits.element),
        None => collect_lines(input, &object, collector, limits),
    }
}

fn collect_lines(input: &mut Input<'_>, object: &Object, collector: &mut Collector<'_>, limits: &Limits) -> Result<Item> {
    let mut lines = Lines::new(object, limits.line, limits.element);
    let mut push = |_: u64, bytes: &[u8]| {
        let mut begin = 0;
        for end in memchr::memchr_iter(b'\n', bytes) {
            collector.push(&bytes[begin..end])?;
            begin = end + 1;
        }
        Ok(ControlFlow::Continue(()))
    };
    while let Some(block) = input.next_block()? {
        let _ = lines.feed(&block, &mut push)?;
    }
    Ok(lines.finish(&mut push)?.0)
}

fn collect_records(input: &mut Input<'_>, object: &Object, collector: &mut Collector<'_>, record: usize, most: usize) -> Result<Item> {
    let length = record as u64;
    let begin = object.position + object.begin;
    let first = if object.is_preceded() { (length - begin % length) % length } else { 0 };
    let mut item = Item::default();
    let too_long = || Error::exhausted(format!("a record that straddles chunks has more than {most} bytes in one; sort elsewhere"));
    if first.min(object.seen()) > most as u64 {
        return Err(too_long());
    }
    if first > object.seen() {
        item.flags |= item_flag::NO_BREAK;
    }
    let (mut head, mut rest): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
    while let Some(block) = input.next_block()? {
        let (now, mut bytes) = block.split_at((first as usize - head.len()).min(block.len()));
        head.extend_from_slice(now);
        if !rest.is_empty() {
            let (now, later) = bytes.split_at((record - rest.len()).min(bytes.len()));
            rest.extend_from_slice(now);
            bytes = later;
            if rest.len() < record {
                continue;
            }
            collector.push(&rest)?;
            rest.clear();
        }
        let records = bytes.chunks_exact(record);
        rest.extend_from_slice(records.remainder());
        for element in records {
            collector.push(element)?;
        }
    }
    if !rest.is_empty() && !object.is_followed() {
        return Err(Error::invalid(format!("input object {}: its last {} bytes are no record of {record}", input.number(), rest.len())));
    }
    if rest.len() > most {
        return Err(too_long());
    }
    item.head = head.into();
    item.tail = rest.into();
    Ok(item)
}
