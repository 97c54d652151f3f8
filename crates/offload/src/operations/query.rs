//! Query: a plan over files of tables in the inputs. The engine is given from outside; this crate has none.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use memchr::{memchr, memrchr};
use skytether_common::{Error, Result};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::merge::{Items, finish};
use crate::codes::{format, item_flag, opcode, tag};
use crate::descriptor::{Descriptor, Object, Value};
use crate::input::ObjectReader;
use crate::job::Job;
use crate::operation::{Arguments, Operation, Plan, WholeWork};
use crate::result::Item;

/// A file's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values, with names in the first line.
    Csv,
    /// JSON lines.
    Json,
    /// Parquet.
    Parquet,
}

/// What an engine is asked.
#[derive(Debug, Clone)]
pub struct QueryRequest {
    /// The format of all files.
    pub format: Format,
    /// A Substrait plan.
    pub plan: Bytes,
    /// The files, each with the table that it belongs to. Chunks without a whole line are not among them.
    pub files: Vec<QueryFile>,
    /// Sets of keys that the plan refers to. A descriptor has none.
    pub filters: BTreeMap<String, Bytes>,
    /// Small tables that the plan joins with, as Arrow IPC streams. A descriptor has none.
    pub tables: BTreeMap<String, Bytes>,
    /// The most memory in bytes.
    pub memory: u64,
    /// When it has to end.
    pub deadline: Instant,
    /// Cancelled when the answer is not wanted any more.
    pub cancel: CancellationToken,
}

/// A file of a table.
#[derive(Debug, Clone)]
pub struct QueryFile {
    /// The table's name in the plan.
    pub table: String,
    /// Its bytes. Of a chunk, only whole lines.
    pub bytes: ObjectReader,
    /// Whether it is a chunk that others precede: a CSV file has no line of names then.
    pub preceded: bool,
}

/// A part of an engine's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryPart {
    /// Bytes of one Arrow IPC stream, in their order.
    Rows(Bytes),
    /// What it took, as JSON. At most 64 KiB; the last one counts.
    Receipt(Bytes),
}

/// An engine that queries files.
pub trait QueryFiles: Send + Sync + Debug {
    /// Runs a plan. The stream is dropped where its end is not wanted.
    fn query(&self, request: QueryRequest) -> BoxStream<'static, Result<QueryPart>>;
}

/// The operation, with the engine that carries it out.
#[derive(Debug)]
pub struct Query(pub Arc<dyn QueryFiles>);

struct Work {
    engine: Arc<dyn QueryFiles>,
    format: Format,
    plan: Bytes,
    tables: Vec<String>,
}

/// The longest receipt in bytes.
const MOST_RECEIPT: usize = 64 << 10;

impl Operation for Query {
    fn opcode(&self) -> u16 {
        opcode::QUERY
    }

    fn name(&self) -> &'static str {
        "query"
    }

    fn takes_chunks(&self) -> bool {
        true
    }

    fn plan(&self, arguments: &mut Arguments<'_>, descriptor: &Descriptor) -> Result<Plan> {
        let engine = self.0.clone();
        let format = match arguments.number(tag::FORMAT, u64::MAX)? {
            Some(format::CSV) => Format::Csv,
            Some(format::JSON) => Format::Json,
            Some(format::PARQUET) => Format::Parquet,
            other => return Err(Error::unsupported(format!("query: format {other:?} is not known"))),
        };
        let plan = arguments.bytes(tag::PLAN)?.ok_or_else(|| Error::invalid("query: there is no plan"))?;
        let tables = arguments.all(tag::TABLE).into_iter().map(|value| match value {
            Value::Text(table) => Ok(table.clone()),
            _ => Err(Error::invalid("query: a table's name is no text")),
        });
        let mut tables = tables.collect::<Result<Vec<_>>>()?;
        let inputs = descriptor.inputs.len();
        if let [table] = &tables[..] {
            tables = vec![table.clone(); inputs];
        }
        if tables.len() != inputs || descriptor.outputs.len() > 1 {
            return Err(Error::invalid(format!("query: {inputs} inputs need a table each, or one for all, and at most one output object")));
        }
        if format == Format::Parquet && descriptor.inputs.iter().any(|object| object.flags != 0) {
            return Err(Error::invalid("query: chunks of Parquet files can't be read"));
        }
        Ok(Plan::Whole(Box::new(Work { engine, format, plan, tables })))
    }
}

impl WholeWork for Work {
    fn run(self: Box<Self>, job: &mut Job) -> Result<Vec<Item>> {
        let runtime = job.runtime().clone();
        let (stop, element) = (job.stop().clone(), job.limits().element);
        let (mut files, mut items) = (Vec::new(), Items::new(job.limits().result, job.descriptor().outputs.len()));
        for (number, table) in self.tables.iter().enumerate() {
            let object = job.descriptor().inputs.get(number).cloned().unwrap_or_default();
            let Some(reader) = job.reader(number) else { continue };
            let (bytes, item) = runtime.block_on(async {
                tokio::select! {
                    cut = whole_lines(&object, reader, element) => cut,
                    error = stop.stopped() => Err(error),
                }
            })?;
            // A chunk without a whole line is no file that an engine can read.
            if object.flags == 0 || !bytes.is_empty() {
                files.push(QueryFile { table: table.clone(), bytes, preceded: object.is_preceded() });
            }
            items.push(item)?;
        }
        let (mut items, count) = (items.all, self.tables.len());
        let request = QueryRequest {
            format: self.format,
            plan: self.plan.clone(),
            files,
            filters: BTreeMap::new(),
            tables: BTreeMap::new(),
            memory: job.limits().memory,
            deadline: stop.deadline(),
            cancel: stop.token(),
        };
        let mut parts = if request.files.is_empty() && count > 0 { futures::stream::empty().boxed() } else { self.engine.query(request) };
        let mut receipt = Bytes::new();
        let mut sink = job.sink();
        loop {
            let part = runtime.block_on(async {
                tokio::select! {
                    part = parts.next() => part,
                    error = stop.stopped() => Some(Err(error)),
                }
            });
            match part.transpose()? {
                None => break,
                Some(QueryPart::Rows(rows)) => sink.write(&rows)?,
                Some(QueryPart::Receipt(found)) if found.len() <= MOST_RECEIPT => receipt = found,
                Some(QueryPart::Receipt(_)) => {}
            }
        }
        // The first item is that of the answer. Those of chunks follow it.
        let mut answer = finish(sink, 0)?;
        answer.values.remove(0);
        answer.head = receipt;
        items.insert(0, answer);
        Ok(items)
    }
}

/// Of a chunk, the whole lines; and an item with its head and tail.
async fn whole_lines(object: &Object, reader: ObjectReader, element: usize) -> Result<(ObjectReader, Item)> {
    let (mut item, length, most) = (Item::default(), reader.len(), element as u64);
    let (mut begin, mut end) = (0, length);
    let too_long = || Error::exhausted(format!("a line that straddles chunks has more than {element} bytes; query elsewhere"));
    if object.is_preceded() {
        let first = reader.read(0..length.min(most)).await?;
        match memchr(b'\n', &first) {
            Some(at) => begin = at as u64 + 1,
            None if length <= most => begin = length,
            None => return Err(too_long()),
        }
        // A slice would keep all that was read.
        item.head = Bytes::copy_from_slice(&first[..begin as usize]);
        if begin == length && first.last() != Some(&b'\n') {
            item.flags |= item_flag::NO_BREAK;
            return Ok((reader.within(length..length), item));
        }
    }
    if object.is_followed() {
        let from = begin.max(length.saturating_sub(most));
        let last = reader.read(from..length).await?;
        match memrchr(b'\n', &last) {
            Some(at) => end = from + at as u64 + 1,
            None if from == begin => end = begin,
            None => return Err(too_long()),
        }
        item.tail = Bytes::copy_from_slice(&last[(end - from) as usize..]);
    }
    Ok((reader.within(begin..end), item))
}
