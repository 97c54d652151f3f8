//! Files of one format, and plans that run over them: in the target, or here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use oas::{Format, Input, Ran, Session};
use parking_lot::Mutex;
use skytether_common::{Error, Kind, Result};
use skytether_device::arrow_messages::{ArrowMessage, ArrowStream};
use skytether_file_query::FileEngine;
use skytether_offload::operations::query::{QueryFile, QueryFiles, QueryPart, QueryRequest};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::record::STORED;

/// The longest time of a plan that runs here: the caller's time is what counts.
const TIME: Duration = Duration::from_secs(30 * 24 * 3600);

/// A plan, and what travels next to it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Work {
    /// Empty to ask for the columns.
    pub(crate) plan: Bytes,
    pub(crate) filters: BTreeMap<String, Bytes>,
    pub(crate) tables: BTreeMap<String, Bytes>,
}

/// Where plans ran.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Where {
    /// How many ran in the target.
    pub there: u64,
    /// How many ran here.
    pub here: u64,
    /// Why the first of these did; `None` where there is no target.
    pub why: Option<String>,
}

/// Files of one format.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) session: Arc<Session>,
    pub(crate) format: Format,
    pub(crate) inputs: Vec<Input>,
    /// Runs plans here.
    pub(crate) engine: Arc<FileEngine>,
    pub(crate) log: Arc<Mutex<Where>>,
}

/// What comes of a plan.
pub(crate) struct Answer {
    pub(crate) schema: SchemaRef,
    pub(crate) rows: Rows,
    pub(crate) ran: Ran,
}

/// The rows of an answer, and its receipt after them.
pub(crate) struct Rows {
    parts: BoxStream<'static, Result<QueryPart>>,
    messages: ArrowStream,
    receipt: Option<Bytes>,
    has_ended: bool,
}

impl Files {
    /// The same, of some of the inputs.
    pub(crate) fn of(&self, inputs: Vec<Input>) -> Self {
        Self { inputs, ..self.clone() }
    }

    /// Runs a plan. Where the future or the answer is dropped, it ends.
    ///
    /// # Errors
    /// Those of the plan, and of the target where nothing may be done here.
    pub(crate) async fn run(&self, work: Work) -> Result<Answer> {
        let why = match self.there(&work).await {
            Ok(parts) => return self.answer(parts, Ran::There).await,
            Err(Some(error)) if !self.may_run_here(&error) => return Err(self.named(error)),
            Err(why) => why.map(Arc::new),
        };
        let here = async { self.answer(self.here(work)?, Ran::Here { why }).await };
        here.await.map_err(|error| self.named(error))
    }

    /// An error that names the file, where there is one.
    fn named(&self, error: Error) -> Error {
        match &self.inputs[..] {
            [one] => error.named(&one.file.path().display().to_string()),
            _ => error,
        }
    }

    /// Damage must be told, and not be hidden by a cache that still has the bytes.
    fn may_run_here(&self, error: &Error) -> bool {
        self.session.settings().here && error.kind() != Kind::Corrupt
    }

    async fn answer(&self, parts: BoxStream<'static, Result<QueryPart>>, ran: Ran) -> Result<Answer> {
        let mut rows = Rows { parts, messages: ArrowStream::default(), receipt: None, has_ended: false };
        let schema = rows.schema().await?;
        let mut log = self.log.lock();
        match &ran {
            Ran::There => log.there += 1,
            Ran::Here { why } => {
                log.here += 1;
                if let (None, Some(why)) = (&log.why, why) {
                    log.why = Some(why.report());
                }
            }
        }
        drop(log);
        Ok(Answer { schema, rows, ran })
    }

    /// The whole answer of the target; or why there is none, `None` without a target.
    async fn there(&self, work: &Work) -> Result<BoxStream<'static, Result<QueryPart>>, Option<Error>> {
        if self.session.name().is_none() {
            return Err(self.session.why().map(|why| why.flattened()));
        }
        if !work.filters.is_empty() || !work.tables.is_empty() {
            return Err(Some(Error::unsupported("this part of the query comes with rows of other parts, which EXEC does not take")));
        }
        let stop = CancellationToken::new();
        let session = self.session.only_there().stopped_by(stop.clone());
        let _dropped = stop.drop_guard();
        let (format, plan, inputs) = (self.format, work.plan.clone(), self.inputs.clone());
        let asked = tokio::task::spawn_blocking(move || session.query(format, plan, &[STORED.to_owned()], &inputs).value);
        let (rows, receipt) = asked.await.map_err(|e| Some(Error::internal("a query's thread ended").with_source(e)))?.map_err(Some)?;
        let parts = [Ok(QueryPart::Rows(rows)), Ok(QueryPart::Receipt(receipt))];
        Ok(stream::iter(parts).boxed())
    }

    fn here(&self, work: Work) -> Result<BoxStream<'static, Result<QueryPart>>> {
        let file = |input: &Input| Ok(QueryFile { table: STORED.to_owned(), bytes: input.reader()?, preceded: false });
        let stop = CancellationToken::new();
        let request = QueryRequest {
            format: self.format,
            plan: work.plan,
            files: self.inputs.iter().map(file).collect::<Result<_>>()?,
            filters: work.filters,
            tables: work.tables,
            memory: u64::MAX,
            deadline: Instant::now() + TIME,
            cancel: stop.clone(),
        };
        let (parts, dropped) = (self.engine.query(request), stop.drop_guard());
        Ok(parts
            .inspect(move |_| {
                let _ = &dropped;
            })
            .boxed())
    }
}

impl Rows {
    /// The schema, which comes first.
    async fn schema(&mut self) -> Result<SchemaRef> {
        match self.next_message().await? {
            Some(ArrowMessage::Schema(schema)) => Ok(schema),
            _ => Err(Error::corrupt("the rows of a query have no schema")),
        }
    }

    /// The next message, `None` after the last one.
    async fn next_message(&mut self) -> Result<Option<ArrowMessage>> {
        loop {
            if let Some(message) = self.messages.next_message()? {
                return Ok(Some(message));
            }
            match self.parts.next().await {
                Some(Ok(QueryPart::Rows(bytes))) => self.messages.push(&bytes),
                Some(Ok(QueryPart::Receipt(receipt))) => self.receipt = Some(receipt),
                Some(Err(error)) => return Err(error),
                None => {
                    if !self.has_ended {
                        self.has_ended = true;
                        std::mem::take(&mut self.messages).finish()?;
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// The next rows, `None` after the last ones.
    ///
    /// # Errors
    /// Those of the plan; `Corrupt` for bytes that are no rows.
    pub(crate) async fn next(&mut self) -> Result<Option<arrow::record_batch::RecordBatch>> {
        loop {
            match self.next_message().await? {
                Some(ArrowMessage::Batch(batch)) => return Ok(Some(batch)),
                Some(ArrowMessage::Dictionary) => {}
                Some(ArrowMessage::Schema(_)) => return Err(Error::corrupt("the rows of a query have a second schema")),
                None => return Ok(None),
            }
        }
    }

    /// The receipt, after the last rows.
    pub(crate) fn receipt(&self) -> Option<&Bytes> {
        self.receipt.as_ref()
    }
}
