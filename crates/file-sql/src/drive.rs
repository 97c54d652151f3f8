//! [`FileDrive`]: some files as a drive, which has what a host must know of them and runs sub-plans.

use std::ops::Range;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream;
use skytether_common::{Error, Key, Result};
use skytether_device::{Annotation, Capabilities, Cse, CseInfo, DeliveryStream, Program, ProgramKind, ResultMessage, Storage, StorageOnly, SubPlan};
use skytether_store::{Entry, Op, Usage, Version};

use crate::files::{Answer, Files, Rows, Work};
use oas::Ran;

/// The one epoch of a plan that runs as a whole.
const EPOCH: u32 = 0;

/// Some files as a drive.
#[derive(Debug)]
pub(crate) struct FileDrive {
    info: CseInfo,
    /// Records, and no rows.
    records: StorageOnly,
    files: Files,
}

impl FileDrive {
    /// The files as the drive that `records` is.
    pub(crate) fn new(records: StorageOnly, files: Files) -> Self {
        let own = records.info();
        let capabilities = Capabilities { programs: vec![ProgramKind::Substrait], ..own.capabilities.clone() };
        Self { info: CseInfo { capabilities, ..own.clone() }, records, files }
    }
}

impl Storage for FileDrive {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        self.records.apply(batch)
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        self.records.get(key)
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        self.records.get_ranges_unverified(key, ranges)
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        self.records.stat(key)
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        self.records.list(prefix, after, limit)
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        self.records.usage()
    }
}

impl Cse for FileDrive {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let rung = plan.rung;
            let Program::Substrait(bytes) = plan.program else {
                return Err(Error::unsupported(format!("{}: files run Substrait plans, and no other programs", self.info.name)));
            };
            let answer = self.files.run(Work { plan: bytes, filters: plan.filters, tables: plan.tables }).await?;
            Ok(delivery(answer, Annotation { cse: self.info.name.clone(), rung: Some(rung), ..Annotation::default() }))
        })
    }
}

/// An answer as the host takes it. `none` is the annotation where the answer has no receipt.
fn delivery(answer: Answer, none: Annotation) -> DeliveryStream {
    let Answer { schema, rows, ran } = answer;
    let messages = stream::try_unfold((rows, At::Rows, ran, none), |(mut rows, at, ran, none)| async move {
        let (message, next) = match at {
            At::Rows => match rows.next().await? {
                Some(batch) => (ResultMessage::Batch { epoch: EPOCH, batch }, At::Rows),
                None => (ResultMessage::EpochComplete { epoch: EPOCH }, At::End),
            },
            At::End => (ResultMessage::Done(annotation(&rows, &ran, none.clone())), At::After),
            At::After => return Ok(None),
        };
        Ok::<_, Error>(Some((message, (rows, next, ran, none))))
    });
    DeliveryStream { schema, messages: Box::pin(messages) }
}

/// Where a delivery is.
#[derive(Clone, Copy)]
enum At {
    Rows,
    End,
    After,
}

fn annotation(rows: &Rows, ran: &Ran, none: Annotation) -> Annotation {
    let cse = none.cse.clone();
    let told = rows.receipt().and_then(|receipt| serde_json::from_slice(receipt).ok());
    let reason = match ran {
        Ran::Here { why: Some(why) } => Some(format!("done here: {}", why.report())),
        Ran::Here { why: None } => Some("done here: there is no target".to_owned()),
        Ran::There => None,
    };
    let told: Annotation = told.unwrap_or(none);
    Annotation { cse, reason: reason.or(told.reason.clone()), ..told }
}
