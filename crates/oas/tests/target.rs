//! A target in this process: an image file as a disk, served over iSCSI.

use std::path::Path;
use std::sync::Arc;

use oas::files::{Content, Files, FilesDevice};
use oas::{Access, OpenFile, Session, Settings};
use skytether_common::Result;
use skytether_device::{Cse, StorageOnly};
use skytether_doors::DriveDoor;
use skytether_iscsi::{Iscsi, Options, SCHEME, Secrets};
use skytether_offload::Offload;
use skytether_offload::operations::registry;
use skytether_transport::{Endpoint, Listener, Security, ServeContext};
use skytether_volume::{BlockDevice, Exec};
use tokio::runtime::Runtime;

/// A served disk.
pub(crate) struct Target {
    pub(crate) url: String,
    context: ServeContext,
    runtime: Option<Runtime>,
}

/// A file as a disk.
pub(crate) fn disk(path: &Path) -> Arc<dyn BlockDevice> {
    let file = OpenFile::open(path, Access::Write).unwrap();
    let size = file.size().unwrap();
    let mut files = Files::new();
    files.add(Content::File(Arc::new(file)), size).unwrap();
    Arc::new(FilesDevice::new(files))
}

/// What a drive computes.
pub(crate) fn operations() -> Arc<dyn Exec> {
    Arc::new(Offload::new(registry(None).unwrap(), skytether_offload::Options::default()).unwrap())
}

impl Target {
    /// Serves `image`, with or without EXEC, and to a user with a secret or to all.
    pub(crate) fn new(image: &Path, exec: Option<Arc<dyn Exec>>, secrets: Option<&str>) -> Self {
        Self::at(image, exec, secrets, 0)
    }

    /// The same, on a port of the caller's.
    pub(crate) fn at(image: &Path, exec: Option<Arc<dyn Exec>>, secrets: Option<&str>, port: u16) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut options = Options::default();
        let file = tempfile::NamedTempFile::new().unwrap();
        if let Some(secrets) = secrets {
            std::fs::write(file.path(), secrets).unwrap();
            options.secrets = Some(Secrets::read(file.path()).unwrap());
        }
        let context = ServeContext::default();
        let door = Iscsi::new(vec![("disk".to_owned(), disk(image))], exec, options).unwrap();
        let bound = runtime.block_on(Listener::bind(&Endpoint::new(SCHEME, format!("127.0.0.1:{port}")), Security::Plain, &context));
        let listener = bound.unwrap();
        let url = format!("{}/{}/1", listener.url(), door.target_name("drive"));
        let drive: Arc<dyn Cse> = Arc::new(StorageOnly::in_memory(uuid::Uuid::from_u128(1), "drive"));
        let serving = door.serve(drive, listener, context.clone());
        runtime.spawn(async move {
            let served: Result<()> = serving.await;
            served.unwrap();
        });
        Self { url, context, runtime: Some(runtime) }
    }

    /// A session, in which nothing is done here.
    pub(crate) fn session(&self) -> Session {
        Session::open(&self.url, Settings { here: false, ..Settings::default() }).unwrap()
    }

    /// The URL with a user and a secret.
    pub(crate) fn url_of(&self, login: &str) -> String {
        self.url.replace("iscsi://", &format!("iscsi://{login}@"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.context.shutdown.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        }
    }
}
