//! The messages between the coordinator of a query and its workers: JSON, in actions and tickets of Flight.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use skytether_api::receipt::TaskReceipt;
use skytether_api::statement::{QueryOptions, Statement};
use skytether_api::values::Values;
use skytether_common::{Error, Result};
use skytether_device::Annotation;
use uuid::Uuid;

use crate::stage_read::Source;

/// The action that starts a worker's part of a query.
pub const BEGIN: &str = "stage_begin";
/// The action that asks whether a worker still has its part, and how far it is.
pub const BEAT: &str = "stage_beat";
/// The action that ends a worker's part and gives its figures.
pub const END: &str = "stage_end";

/// The action that asks for the keys of a join, once all partitions that the worker runs know theirs.
pub const KEYS: &str = "stage_keys";

/// The partitions of an exchange, at most.
pub const MOST_PARTITIONS: usize = 256;

/// The actions, with what they do.
pub const ACTIONS: [(&str, &str); 4] = [
    (BEGIN, "plans this worker's part of a query that several hosts run"),
    (BEAT, "how far this worker's part of a query is"),
    (END, "ends this worker's part of a query, and gives its figures"),
    (KEYS, "the keys of one side of a join that this worker runs"),
];

/// Starts a worker's part of a query.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// The id that tickets name.
    pub query: Uuid,
    /// The statement, as a text of SQL,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql: Option<String>,
    /// or as a Substrait plan in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub substrait: Option<String>,
    /// Values for its parameters, as [`Values::encode`] writes them, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<String>,
    /// How it is run.
    pub options: QueryOptions,
    /// The partitions of each exchange.
    pub partitions: usize,
    /// The addresses of all workers, in the order of their numbers.
    pub workers: Vec<String>,
    /// The number of the worker that gets this.
    pub own: usize,
}

impl Begin {
    /// The message for the first of `workers`, with one partition.
    ///
    /// # Errors
    /// As [`Values::encode`].
    pub fn new(query: Uuid, asked: &Statement, values: &Values, options: &QueryOptions, workers: &[String]) -> Result<Self> {
        let (sql, substrait) = match asked {
            Statement::Sql(text) => (Some(text.to_string()), None),
            Statement::Substrait(plan) => (None, Some(BASE64_STANDARD.encode(plan))),
        };
        let values = if values.is_empty() { None } else { Some(BASE64_STANDARD.encode(values.encode()?)) };
        Ok(Self { query, sql, substrait, values, options: options.clone(), partitions: 1, workers: workers.to_vec(), own: 0 })
    }

    /// The statement.
    ///
    /// # Errors
    /// Invalid where there is none, or two.
    pub fn asked(&self) -> Result<Statement> {
        match (&self.sql, &self.substrait) {
            (Some(text), None) => Ok(Statement::Sql(text.as_str().into())),
            (None, Some(plan)) => Ok(Statement::Substrait(decoded("the plan", plan)?.into())),
            _ => Err(Error::invalid("a worker's part is of one statement: send it as sql or as a substrait plan")),
        }
    }

    /// The values of its parameters.
    ///
    /// # Errors
    /// As [`Values::decode`].
    pub fn values(&self) -> Result<Values> {
        self.values.as_ref().map_or_else(|| Ok(Values::default()), |values| Values::decode(&decoded("the values", values)?))
    }
}

fn decoded(what: &str, text: &str) -> Result<Vec<u8>> {
    BASE64_STANDARD.decode(text).map_err(|e| Error::invalid(format!("{what} of a worker's part are no base64: send the bytes in base64")).with_source(e))
}

/// The answer to [`Begin`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Begun {
    /// The digest of the stages as the worker planned them.
    pub digest: String,
}

/// Names a query.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Named {
    /// The id of [`Begin`].
    pub query: Uuid,
}

/// Names a join of a query.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedJoin {
    /// The id of [`Begin`].
    pub query: Uuid,
    /// The number of the join among those that tell their keys.
    pub join: usize,
}

/// The keys of a join's partitions on one worker, each key of the join by itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ToldKeys {
    /// For each key its values as a stream of Arrow IPC with one column, in base64; `None` where any is possible.
    pub columns: Vec<Option<String>>,
}

impl ToldKeys {
    /// The message for `keys`.
    ///
    /// # Errors
    /// Internal only.
    pub fn new(keys: &[Option<ArrayRef>]) -> Result<Self> {
        let written = |values: &ArrayRef| -> std::result::Result<String, ArrowError> {
            let batch = RecordBatch::try_from_iter([("key", Arc::clone(values))])?;
            let mut stream = StreamWriter::try_new(Vec::new(), &batch.schema())?;
            stream.write(&batch)?;
            Ok(BASE64_STANDARD.encode(stream.into_inner()?))
        };
        let columns = keys.iter().map(|values| values.as_ref().map(written).transpose());
        let columns = columns.collect::<std::result::Result<_, _>>();
        Ok(Self { columns: columns.map_err(|e| Error::internal("the keys of a join can't be written").with_source(e))? })
    }

    /// The keys.
    ///
    /// # Errors
    /// Invalid where they are written in another form.
    pub fn keys(&self) -> Result<Vec<Option<ArrayRef>>> {
        let read = |text: &String| -> Result<ArrayRef> {
            let wrong = |e: ArrowError| Error::invalid("the keys of a join are no Arrow IPC: run the same version on all hosts").with_source(e);
            let bytes = decoded("the keys of a join", text)?;
            let mut stream = StreamReader::try_new(bytes.as_slice(), None).map_err(wrong)?;
            let batch = stream.next().transpose().map_err(wrong)?;
            let column = batch.filter(|batch| batch.num_columns() == 1).map(|batch| Arc::clone(batch.column(0)));
            column.ok_or_else(|| Error::invalid("the keys of a join are no column: run the same version on all hosts"))
        };
        self.columns.iter().map(|text| text.as_ref().map(read).transpose()).collect()
    }
}

/// How far a worker's part is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Progress {
    /// Whether the worker has a part of the query. A worker that was started again has none.
    pub known: bool,
    /// A figure that grows while the part does anything.
    pub done: u64,
}

/// What a worker did.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Ended {
    /// Whether the worker had a part of the query that ended within the last minute.
    pub known: bool,
    /// For each scan of drives, in the order of the plan, what drives wrote on it.
    pub scans: Vec<Vec<Annotation>>,
    /// For each task that this worker had: the number of its stage, and its figures.
    pub tasks: Vec<(usize, TaskReceipt)>,
}

/// A ticket for rows of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadTicket {
    /// What is read.
    pub stage: ReadStage,
}

/// What a [`ReadTicket`] names.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadStage {
    /// The id of [`Begin`].
    pub query: Uuid,
    /// The stage's number.
    pub stage: usize,
    /// The task's number.
    pub task: usize,
    /// The partition's number.
    pub partition: usize,
}

impl ReadTicket {
    /// The ticket for `source`.
    #[must_use]
    pub fn new(query: Uuid, source: Source) -> Self {
        let Source { stage, task, partition } = source;
        Self { stage: ReadStage { query, stage, task, partition } }
    }

    /// What it asks for.
    #[must_use]
    pub fn source(&self) -> Source {
        let ReadStage { stage, task, partition, .. } = self.stage;
        Source { stage, task, partition }
    }
}
