//! Files of one format, and plans that run over them: in the target, or here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use oas::{Format, Ran};
use parking_lot::Mutex;
use skytether_common::{Error, Result};
use skytether_device::arrow_messages::{ArrowMessage, ArrowStream};
use skytether_file_query::FileEngine;
use skytether_offload::operations::query::{QueryFile, QueryFiles, QueryPart, QueryRequest};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::record::STORED;
use crate::source::Source;

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
    pub(crate) source: Arc<dyn Source>,
    pub(crate) format: Format,
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
    /// Each file by itself.
    pub(crate) fn each(&self) -> Vec<Self> {
        self.source.each().into_iter().map(|source| Self { source, ..self.clone() }).collect()
    }

    /// Runs a plan. Where the future or the answer is dropped, it ends.
    ///
    /// # Errors
    /// Those of the plan, and of the target where nothing may be done here.
    pub(crate) async fn run(&self, work: Work) -> Result<Answer> {
        let why = match self.there(&work).await {
            Ok(parts) => return self.answer(parts, Ran::There).await,
            Err(Some(error)) if !self.source.may_run_here(&error) => return Err(self.named(error)),
            Err(why) => why.map(Arc::new),
        };
        let here = async { self.answer(self.here(work)?, Ran::Here { why }).await };
        here.await.map_err(|error| self.named(error))
    }

    /// An error that names the file, where there is one.
    fn named(&self, error: Error) -> Error {
        if self.source.count() == 1 { error.named(&self.source.name()) } else { error }
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
        self.source.target()?;
        if !work.filters.is_empty() || !work.tables.is_empty() {
            return Err(Some(Error::unsupported("this part of the query comes with rows of other parts, which EXEC does not take")));
        }
        let (rows, receipt) = self.source.there(self.format, work.plan.clone(), STORED).await.map_err(Some)?;
        let parts = [Ok(QueryPart::Rows(rows)), Ok(QueryPart::Receipt(receipt))];
        Ok(stream::iter(parts).boxed())
    }

    fn here(&self, work: Work) -> Result<BoxStream<'static, Result<QueryPart>>> {
        let file = |bytes| QueryFile { table: STORED.to_owned(), bytes, preceded: false };
        let stop = CancellationToken::new();
        let request = QueryRequest {
            format: self.format,
            plan: work.plan,
            files: self.source.readers()?.into_iter().map(file).collect(),
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
