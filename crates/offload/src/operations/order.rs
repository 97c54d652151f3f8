//! Elements and their order: lines, or records with a key; and merging of sorted sources.

use std::cmp::Ordering;
use std::ops::Range;

use bytes::Bytes;
use memchr::memchr;
use skytether_common::{Error, Result};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::codes::tag;
use crate::input::ObjectReader;
use crate::limits::{Limits, Stop};
use crate::operation::Arguments;
use crate::output::Sink;

/// What is put into an order, and into which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Bytes of a record; `None` for lines.
    pub record: Option<usize>,
    /// The bytes of a record that are compared.
    pub key: Range<usize>,
    /// The greatest first.
    pub reverse: bool,
    /// Of equal elements, the first only.
    pub unique: bool,
}

/// The longest record in bytes.
const MOST_RECORD: u64 = 1 << 20;

impl Order {
    pub(crate) fn of(records: bool, arguments: &mut Arguments<'_>) -> Result<Self> {
        let (reverse, unique) = (arguments.flag(tag::REVERSE)?, arguments.flag(tag::UNIQUE)?);
        if !records {
            return Ok(Self { record: None, key: 0..0, reverse, unique });
        }
        let record = arguments.length(tag::RECORD, MOST_RECORD)?;
        let at = arguments.number(tag::KEY_AT, record)?.unwrap_or(0);
        let length = arguments.number(tag::KEY_LENGTH, record - at)?.unwrap_or(record - at);
        Ok(Self { record: Some(record as usize), key: at as usize..(at + length) as usize, reverse, unique })
    }

    /// The bytes of an element, without its newline, that are compared.
    #[must_use]
    pub fn key<'a>(&self, element: &'a [u8]) -> &'a [u8] {
        if self.record.is_some() { &element[self.key.clone()] } else { element }
    }

    /// The order of two elements, without their newlines.
    #[must_use]
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        let order = self.key(a).cmp(self.key(b));
        if self.reverse { order.reverse() } else { order }
    }
}

/// Takes elements in their order, and writes them.
#[derive(Debug)]
pub(crate) struct Ordered<'a, 'b> {
    order: &'a Order,
    sink: &'a mut Sink<'b>,
    last: Option<Vec<u8>>,
    pub(crate) elements: u64,
}

impl<'a, 'b> Ordered<'a, 'b> {
    pub(crate) fn new(order: &'a Order, sink: &'a mut Sink<'b>) -> Self {
        Self { order, sink, last: None, elements: 0 }
    }

    pub(crate) fn push(&mut self, element: &[u8]) -> Result<()> {
        if self.order.unique {
            let last = self.last.get_or_insert_default();
            if self.elements > 0 && self.order.compare(last, element) == Ordering::Equal {
                return Ok(());
            }
            last.clear();
            last.extend_from_slice(element);
        }
        self.elements += 1;
        self.sink.write(element)?;
        if self.order.record.is_none() { self.sink.write(b"\n") } else { Ok(()) }
    }
}

/// Elements of an object in the order in which they lie there, with one read ahead.
#[derive(Debug)]
pub(crate) struct Cursor {
    reader: ObjectReader,
    at: u64,
    block: usize,
    ahead: Option<JoinHandle<Result<Bytes>>>,
    buffer: Vec<u8>,
    element: Range<usize>,
    /// Where the next element begins.
    next: usize,
    record: Option<usize>,
    most: usize,
    runtime: Handle,
    tracker: TaskTracker,
    stop: Stop,
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if let Some(ahead) = &self.ahead {
            ahead.abort();
        }
    }
}

impl Cursor {
    /// Over elements of at most `most` bytes, with reads of `block` bytes.
    pub(crate) fn new(reader: ObjectReader, order: &Order, block: usize, most: usize, tasks: (&TaskTracker, &Handle), stop: &Stop) -> Self {
        let mut cursor = Self {
            reader,
            at: 0,
            block,
            ahead: None,
            buffer: Vec::new(),
            element: 0..0,
            next: 0,
            record: order.record,
            most,
            runtime: tasks.1.clone(),
            tracker: tasks.0.clone(),
            stop: stop.clone(),
        };
        cursor.read_ahead();
        cursor
    }

    fn read_ahead(&mut self) {
        let range = self.at..(self.at + self.block as u64).min(self.reader.len());
        if range.is_empty() {
            return;
        }
        self.at = range.end;
        let reader = self.reader.clone();
        self.ahead = Some(self.tracker.spawn_on(async move { reader.read(range).await }, &self.runtime));
    }

    /// Appends a block to what is left of the last one; whether there was one.
    fn refill(&mut self) -> Result<bool> {
        let Some(mut ahead) = self.ahead.take() else { return Ok(false) };
        let stop = &self.stop;
        let read = self.runtime.block_on(async {
            tokio::select! {
                read = &mut ahead => Ok(read),
                error = stop.stopped() => Err(error),
            }
        });
        let read = read.inspect_err(|_| ahead.abort())?;
        let block = read.unwrap_or_else(|error| Err(Error::internal("a read ended badly").with_source(error)))?;
        self.read_ahead();
        self.buffer.drain(..self.next);
        self.next = 0;
        self.buffer.extend_from_slice(&block);
        Ok(true)
    }

    /// The element of the last [`Cursor::advance`] that gave true.
    pub(crate) fn element(&self) -> &[u8] {
        &self.buffer[self.element.clone()]
    }

    /// Goes to the next element; whether there is one.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        let mut searched = self.next;
        loop {
            if let Some(record) = self.record {
                if self.buffer.len() - self.next >= record {
                    self.element = self.next..self.next + record;
                    self.next += record;
                    return Ok(true);
                }
            } else if let Some(at) = memchr(b'\n', &self.buffer[searched..]) {
                self.element = self.next..searched + at;
                self.next = searched + at + 1;
                return Ok(true);
            }
            let left = self.buffer.len() - self.next;
            if left > self.most {
                return Err(Error::exhausted(format!("a line has more than {} bytes; merge fewer inputs at a time", self.most)));
            }
            if !self.refill()? {
                return self.last(left);
            }
            searched = left;
        }
    }

    fn last(&mut self, left: usize) -> Result<bool> {
        if left == 0 {
            return Ok(false);
        }
        if let Some(record) = self.record {
            return Err(Error::invalid(format!("the object's last {left} bytes are no record of {record}")));
        }
        self.element = self.next..self.buffer.len();
        self.next = self.buffer.len();
        Ok(true)
    }
}

/// Merges sorted sources. Of equal elements, that of the first source comes first.
pub(crate) struct Merger<'a> {
    order: &'a Order,
    sources: Vec<Cursor>,
    /// A heap of the sources that have an element; the first one's is the least.
    heap: Vec<usize>,
    check: bool,
}

impl<'a> Merger<'a> {
    /// With `check`, a source that is not in its order is an error.
    pub(crate) fn new(order: &'a Order, mut sources: Vec<Cursor>, check: bool) -> Result<Self> {
        let mut heap = Vec::with_capacity(sources.len());
        for (number, source) in sources.iter_mut().enumerate() {
            if source.advance().map_err(|error| error.context(format!("source {number} of the merge")))? {
                heap.push(number);
            }
        }
        let mut merger = Self { order, sources, heap, check };
        for at in (0..merger.heap.len() / 2).rev() {
            merger.sift(at);
        }
        Ok(merger)
    }

    fn is_less(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.heap[a], self.heap[b]);
        self.order.compare(self.sources[a].element(), self.sources[b].element()).then(a.cmp(&b)) == Ordering::Less
    }

    fn sift(&mut self, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.is_less(child, least) {
                    least = child;
                }
            }
            if least == at {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }

    /// The least element.
    pub(crate) fn first(&self) -> Option<&[u8]> {
        self.heap.first().map(|source| self.sources[*source].element())
    }

    /// Goes on after the least element.
    pub(crate) fn advance(&mut self) -> Result<()> {
        let Some(&number) = self.heap.first() else { return Ok(()) };
        let source = &mut self.sources[number];
        let before = if self.check { source.element().to_vec() } else { Vec::new() };
        let more = source.advance().map_err(|error| error.context(format!("source {number} of the merge")))?;
        if more && self.check && self.order.compare(&before, source.element()) == Ordering::Greater {
            return Err(Error::invalid(format!("input object {number} is not sorted: sort it first")));
        }
        if !more {
            let last = self.heap.len() - 1;
            self.heap.swap(0, last);
            self.heap.truncate(last);
        }
        if !self.heap.is_empty() {
            self.sift(0);
        }
        Ok(())
    }
}

/// Bytes of a read of each of `sources`, so that all fit into half of the memory.
pub(crate) fn block_of(memory: u64, sources: usize, most: u32) -> Result<usize> {
    // A block that is read ahead, one in the buffer, and what is left of the last one.
    let share = memory / 2 / (4 * sources.max(1) as u64);
    let block = share.min(most.into()) / 512 * 512;
    if block < 512 {
        Err(Error::exhausted(format!("{sources} sources don't fit into {memory} bytes of memory; merge fewer at a time")))
    } else {
        Ok(block as usize)
    }
}

/// Bytes of an element of each of `sources`, so that all fit into a quarter of the memory. Buffers may take the double.
pub(crate) fn most_of(limits: &Limits, sources: usize) -> usize {
    limits.line.min((limits.memory / 4) as usize / sources.max(1))
}
