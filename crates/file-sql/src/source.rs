//! Where the files of a table are: [`Source`]. Files of a mounted file system are one, and the disk below them has the
//! target.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use oas::{Format, Input, Session};
use skytether_common::{Error, Kind, Result};
use skytether_offload::ObjectReader;
use tokio_util::sync::CancellationToken;

/// What a target answers to a plan: rows as an Arrow IPC stream, and a receipt.
pub type Answered = (Bytes, Bytes);

/// Files of one format, over which plans run in a target, or here.
pub trait Source: Send + Sync + Debug {
    /// Its name, for receipts: that of the file where it is one.
    fn name(&self) -> String;
    /// How many files it has.
    fn count(&self) -> usize;
    /// Bytes of all files.
    ///
    /// # Errors
    /// Where that can't be told.
    fn bytes(&self) -> Result<u64>;
    /// Each file by itself.
    fn each(&self) -> Vec<Arc<dyn Source>>;
    /// Whether there is a target.
    ///
    /// # Errors
    /// Why there is none, where one was looked for.
    fn target(&self) -> Result<(), Option<Error>>;
    /// Runs a plan over the files, the table `table`, in the target.
    ///
    /// # Errors
    /// Those of the plan and of the target.
    fn there(&self, format: Format, plan: Bytes, table: &'static str) -> BoxFuture<'_, Result<Answered>>;
    /// The files, to be read here.
    ///
    /// # Errors
    /// Where one can't be read.
    fn readers(&self) -> Result<Vec<ObjectReader>>;
    /// Whether what the target failed in may be done here.
    fn may_run_here(&self, error: &Error) -> bool;
}

/// Files of a mounted file system, and the session with the target below.
#[derive(Debug, Clone)]
pub(crate) struct FilesBelow {
    pub(crate) session: Arc<Session>,
    pub(crate) inputs: Vec<Input>,
}

impl Source for FilesBelow {
    fn name(&self) -> String {
        let first = self.inputs.first().map(|input| input.file.path().display().to_string()).unwrap_or_default();
        if self.inputs.len() > 1 { format!("{first} and {} more", self.inputs.len() - 1) } else { first }
    }

    fn count(&self) -> usize {
        self.inputs.len()
    }

    fn bytes(&self) -> Result<u64> {
        self.inputs.iter().map(|input| input.file.size()).sum()
    }

    fn each(&self) -> Vec<Arc<dyn Source>> {
        let one = |input: &Input| Arc::new(Self { session: self.session.clone(), inputs: vec![input.clone()] }) as Arc<dyn Source>;
        self.inputs.iter().map(one).collect()
    }

    fn target(&self) -> Result<(), Option<Error>> {
        if self.session.name().is_some() { Ok(()) } else { Err(self.session.why().map(|why| why.flattened())) }
    }

    fn there(&self, format: Format, plan: Bytes, table: &'static str) -> BoxFuture<'_, Result<Answered>> {
        async move {
            let stop = CancellationToken::new();
            let session = self.session.only_there().stopped_by(stop.clone());
            let _dropped = stop.drop_guard();
            let inputs = self.inputs.clone();
            let asked = tokio::task::spawn_blocking(move || session.query(format, plan, &[table.to_owned()], &inputs).value);
            asked.await.map_err(|e| Error::internal("a query's thread ended").with_source(e))?
        }
        .boxed()
    }

    fn readers(&self) -> Result<Vec<ObjectReader>> {
        self.inputs.iter().map(Input::reader).collect()
    }

    /// Damage must be told, and not be hidden by a cache that still has the bytes.
    fn may_run_here(&self, error: &Error) -> bool {
        self.session.settings().here && error.kind() != Kind::Corrupt
    }
}
