//! Merge of sorted inputs.

use skytether_common::{Error, Result};

use super::order::{Cursor, Merger, Order, Ordered, block_of, most_of};
use crate::codes::{item_flag, opcode};
use crate::descriptor::Descriptor;
use crate::job::Job;
use crate::operation::{Arguments, Operation, Plan, WholeWork};
use crate::output::Sink;
use crate::result::{HEADER, Item};

/// Merges lines or records of sorted inputs, as `sort -m` does. Inputs that are not sorted are refused.
#[derive(Debug)]
pub struct Merge {
    /// Records of a fixed size, and not lines.
    pub records: bool,
}

struct Work {
    order: Order,
}

impl Operation for Merge {
    fn opcode(&self) -> u16 {
        if self.records { opcode::MERGE_RECORDS } else { opcode::MERGE_LINES }
    }

    fn name(&self) -> &'static str {
        if self.records { "merge of records" } else { "merge of lines" }
    }

    fn plan(&self, arguments: &mut Arguments<'_>, descriptor: &Descriptor) -> Result<Plan> {
        if descriptor.outputs.len() > 1 {
            return Err(Error::invalid(format!("{}: it has one output object, not {}", self.name(), descriptor.outputs.len())));
        }
        Ok(Plan::Whole(Box::new(Work { order: Order::of(self.records, arguments)? })))
    }
}

impl WholeWork for Work {
    fn run(self: Box<Self>, job: &mut Job) -> Result<Vec<Item>> {
        let count = job.descriptor().inputs.len();
        let block = block_of(job.limits().memory, count, job.limits().block)?;
        let (tracker, runtime, stop) = (job.tracker.clone(), job.runtime().clone(), job.stop().clone());
        let most = most_of(job.limits(), count);
        if let Some(record) = self.order.record.filter(|record| *record > most) {
            return Err(Error::exhausted(format!("{count} records of {record} bytes don't fit into the memory; merge fewer inputs at a time")));
        }
        let readers = (0..count).filter_map(|number| job.reader(number));
        let sources = readers.map(|reader| Cursor::new(reader, &self.order, block, most, (&tracker, &runtime), &stop)).collect();
        let mut merger = Merger::new(&self.order, sources, true)?;
        let mut sink = job.sink();
        let mut ordered = Ordered::new(&self.order, &mut sink);
        while let Some(element) = merger.first() {
            ordered.push(element)?;
            if ordered.elements.is_multiple_of(1024) {
                stop.check()?;
            }
            merger.advance()?;
        }
        let elements = ordered.elements;
        Ok(vec![finish(sink, elements)?])
    }
}

/// Items of an operation on all inputs, which have heads and tails. They fit into the result together.
pub(super) struct Items {
    pub(super) all: Vec<Item>,
    length: usize,
    most: usize,
}

impl Items {
    pub(super) fn new(most: usize, outputs: usize) -> Self {
        Self { all: Vec::new(), length: HEADER + 8 * outputs, most }
    }

    pub(super) fn push(&mut self, item: Item) -> Result<()> {
        self.length += item.encoded_length();
        if self.length > self.most {
            let (count, most) = (self.all.len() + 1, self.most);
            return Err(Error::exhausted(format!("heads and tails of {count} chunks are longer than the result's {most} bytes; ask for fewer chunks")));
        }
        self.all.push(item);
        Ok(())
    }
}

/// The item of an operation whose elements went to the sink.
pub(super) fn finish(sink: Sink<'_>, elements: u64) -> Result<Item> {
    let mut item = Item::of_values(&[elements, sink.written()]);
    match sink {
        Sink::Inline(data, _) => item.data = data.into(),
        Sink::Output(output) => {
            output.finish()?;
            item.flags |= item_flag::IN_OUTPUT;
        }
    }
    Ok(item)
}
