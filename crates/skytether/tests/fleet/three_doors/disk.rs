//! A volume of a drive, served over iSCSI and over NVMe/TCP, and clients of it: they write, read and compute over the
//! wire alone.

use std::fmt::{self, Debug};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use oas::path::{Caller, Path as _};
use oas::remote::Remote;
use oas::request::Request;
use oas::scsi::{Command, Reply, Scsi, ScsiPath};
use oas::url::Url;
use parking_lot::Mutex;
use skytether_common::{Error, Kind, Result};
use skytether_doors::DriveDoor;
use skytether_drive::Drive;
use skytether_file_query::FileEngine;
use skytether_file_sql::Source;
use skytether_iscsi::{Iscsi, SCHEME};
use skytether_nvme_tcp::command::io;
use skytether_nvme_tcp::pdu::Digests;
use skytether_nvme_tcp::{NvmeTcp, nqn_of};
use skytether_offload::operations::query::Format;
use skytether_offload::operations::registry;
use skytether_offload::{Descriptor, ExecResult, Extent, Object, ObjectReader, Offload};
use skytether_store::disk::DriveIdentity;
use skytether_transport::{Endpoint, Listener, Security, ServeContext};
use skytether_volume::{BlockDevice, StorageBacking, Volumes};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;
use uuid::Uuid;

use super::host::{Host, Sqe};

const BLOCK: usize = 512;

/// Bytes of a file that lie one after the other.
const PIECE: usize = 40 << 10;

/// Bytes of a result that one command gives over NVMe/TCP.
const PART: usize = 64 << 10;

/// Bytes from the begin of a piece to that of the one before it.
const STEP: usize = 64 << 10;

/// A served volume.
pub(crate) struct Disk {
    unit: Remote,
    ways: Vec<Way>,
    /// The first byte that no file has.
    free: u64,
    context: ServeContext,
    volume: Arc<dyn BlockDevice>,
    volumes: Arc<Volumes>,
    serving: Vec<JoinHandle<Result<()>>>,
}

impl Disk {
    /// A new drive in `dir` with one volume, and what `drive serve --volume` puts on sockets.
    pub(crate) async fn serve(dir: &Path) -> Self {
        let identity = DriveIdentity { id: Uuid::from_u128(77), name: "disks".into() };
        let drive = Drive::open(dir, Some(identity.clone()), Default::default()).unwrap();
        let queries = Arc::new(FileEngine::new(drive.file_engine().unwrap()));
        let exec = Arc::new(Offload::new(registry(Some(queries)).unwrap(), Default::default()).unwrap());
        let volumes = Volumes::open(Arc::new(StorageBacking::new(drive.clone()).unwrap()), &dir.join("volumes"), Default::default()).await.unwrap();
        let volume: Arc<dyn BlockDevice> = volumes.ensure(&"disk=256MiB".parse().unwrap()).await.unwrap();
        let context = ServeContext::default();

        let door = Iscsi::new(vec![("disk".into(), volume.clone())], Some(exec.clone()), Default::default()).unwrap();
        let listener = Listener::bind(&Endpoint::new(SCHEME, "127.0.0.1:0"), Security::Plain, &context).await.unwrap();
        let url = format!("{}/{}/1", listener.url(), door.target_name("disks"));
        let Ok(Url::Iscsi(url)) = url.parse() else { panic!("{url}") };
        let iscsi = tokio::spawn(door.serve(drive.clone(), listener, context.clone()));

        let door = NvmeTcp::new(vec![("disk".into(), volume.clone())], Some(exec), Default::default()).unwrap();
        let listener = Listener::bind(&Endpoint::new(skytether_nvme_tcp::SCHEME, "127.0.0.1:0"), Security::Plain, &context).await.unwrap();
        let address = listener.endpoint().authority().to_owned();
        let nvme = tokio::spawn(door.serve(drive, listener, context.clone()));
        let associated = spawn_blocking(move || Host::associate(&address, &nqn_of(identity.id), (9, Digests { header: true, data: true }, 0)));

        let ways = vec![Way::Iscsi(Arc::new(ScsiPath::new(Remote::new(url.clone())))), Way::Nvme(Arc::new(Nvme(Mutex::new(associated.await.unwrap()))))];
        Self { unit: Remote::new(url), ways, free: 1 << 20, context, volume, volumes, serving: vec![iscsi, nvme] }
    }

    /// The ways to its EXEC.
    pub(crate) fn ways(&self) -> &[Way] {
        &self.ways
    }

    /// A file as a table's, whose target is at the end of `way`.
    pub(crate) fn source(&self, way: &Way, object: &Object) -> Arc<dyn Source> {
        Arc::new(InVolume { way: way.clone(), object: object.clone(), device: self.volume.clone() })
    }

    /// Ends the serving, and closes the volume.
    pub(crate) async fn close(self) {
        let Self { unit, ways, context, volume, volumes, serving, .. } = self;
        drop((unit, ways, volume));
        context.shutdown.cancel();
        for serving in serving {
            serving.await.unwrap().unwrap();
        }
        volumes.close().await.unwrap();
    }

    async fn command(&self, code: u8, place: u64, bytes: usize, out: Bytes) -> Reply {
        let mut cdb = [0; 16];
        cdb[0] = code;
        cdb[2..10].copy_from_slice(&(place / BLOCK as u64).to_be_bytes());
        cdb[10..14].copy_from_slice(&((bytes / BLOCK) as u32).to_be_bytes());
        let most_in = if out.is_empty() { bytes as u32 } else { 0 };
        let mut tries = 0;
        loop {
            let command = Command { cdb, length: 16, out: out.clone(), most_in };
            let reply = self.unit.execute(command, Instant::now() + Duration::from_secs(60)).await.unwrap();
            tries += 1;
            // The first command of a session is told that the unit was switched on.
            if reply.status == 0 || tries == 3 {
                return reply;
            }
        }
    }

    /// Writes a file to places of the volume by WRITE(16): piece by piece, the last one first, with gaps.
    pub(crate) async fn put(&mut self, content: &[u8]) -> Object {
        let pieces = content.len().div_ceil(PIECE);
        let mut extents = Vec::new();
        for (number, piece) in content.chunks(PIECE).enumerate() {
            let place = self.free + ((pieces - 1 - number) * STEP) as u64;
            let mut blocks = piece.to_vec();
            // What is behind the file's end must not matter.
            blocks.resize(piece.len().next_multiple_of(BLOCK), 0xa5);
            extents.push(Extent::new(place, blocks.len() as u64));
            let reply = self.command(0x8a, place, blocks.len(), blocks.into()).await;
            assert_eq!(reply.status, 0, "{reply:?}");
        }
        self.free += ((pieces + 1) * STEP) as u64;
        Object::new(content.len() as u64, extents)
    }

    /// Reads a file from its places by READ(16).
    pub(crate) async fn get(&self, object: &Object) -> Vec<u8> {
        let mut content = Vec::new();
        for extent in &object.extents {
            let reply = self.command(0x88, extent.place, extent.length as usize, Bytes::new()).await;
            assert_eq!((reply.status, reply.data.len() as u64), (0, extent.length));
            content.extend_from_slice(&reply.data);
        }
        content.truncate(object.length as usize);
        content
    }
}

/// A way to the EXEC of a volume.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    Iscsi(Arc<ScsiPath<Remote>>),
    Nvme(Arc<Nvme>),
}

impl Way {
    /// What EXEC answers to `descriptor`.
    async fn exec(&self, descriptor: &Descriptor) -> Result<ExecResult> {
        let descriptor = descriptor.encode()?;
        let result = match self {
            Self::Iscsi(path) => path.exec(descriptor, 64 << 20, Caller { deadline: Instant::now() + Duration::from_secs(120) }).await?,
            Self::Nvme(nvme) => {
                let nvme = nvme.clone();
                spawn_blocking(move || nvme.exec(&descriptor)).await.unwrap()?
            }
        };
        let result = ExecResult::decode(&result)?;
        result.done()?;
        Ok(result)
    }

    /// The digest of a file by `operation`, computed in the drive.
    pub(crate) async fn digest(&self, operation: u16, object: &Object) -> Bytes {
        let result = self.exec(&Descriptor::new(operation).input(object.clone())).await.unwrap();
        result.items[0].done().unwrap().data.clone()
    }
}

/// A controller over NVMe/TCP: its admin queue and an I/O queue.
pub(crate) struct Nvme(Mutex<(Host, Host)>);

impl Debug for Nvme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nvme")
    }
}

impl Nvme {
    /// EXEC OUT, and as many EXEC IN as the result takes.
    fn exec(&self, descriptor: &[u8]) -> Result<Bytes> {
        let refused = |status: u16| Error::unavailable(format!("the status of the command is {status:#06x}"));
        let (_, queue) = &mut *self.0.lock();
        let out = Sqe::new(io::EXEC_OUT).namespace(1).word(10, 7).word(11, descriptor.len() as u32);
        let out = if descriptor.len() <= 8192 { out.in_capsule(descriptor.len()) } else { out.transfer(descriptor.len()) };
        let length = queue.command(out, descriptor).map_err(refused)?.result as usize;
        let mut result = Vec::with_capacity(length);
        while result.len() < length {
            let part = (length - result.len()).min(PART);
            let give = Sqe::new(io::EXEC_IN).namespace(1).word(10, 7).word(11, part as u32).word(12, result.len() as u32).transfer(part);
            result.extend(queue.command(give, &[]).map_err(refused)?.data);
        }
        Ok(result.into())
    }
}

/// A Parquet file in the volume, and a way to its EXEC.
#[derive(Debug, Clone)]
struct InVolume {
    way: Way,
    object: Object,
    device: Arc<dyn BlockDevice>,
}

impl Source for InVolume {
    fn name(&self) -> String {
        "plain.parquet".to_owned()
    }

    fn count(&self) -> usize {
        1
    }

    fn bytes(&self) -> Result<u64> {
        Ok(self.object.length)
    }

    fn each(&self) -> Vec<Arc<dyn Source>> {
        vec![Arc::new(self.clone())]
    }

    fn target(&self) -> Result<(), Option<Error>> {
        Ok(())
    }

    fn there(&self, format: Format, plan: Bytes, table: &'static str) -> BoxFuture<'_, Result<(Bytes, Bytes)>> {
        Box::pin(async move {
            let request = Request::query(format, plan, &[table.to_owned()]);
            let (opcode, arguments) = (request.opcode(), request.arguments().to_vec());
            let result = self.way.exec(&Descriptor { opcode, arguments, inputs: vec![self.object.clone()], ..Descriptor::default() }).await?;
            Ok((result.items[0].data.clone(), result.items[0].head.clone()))
        })
    }

    fn readers(&self) -> Result<Vec<ObjectReader>> {
        Ok(vec![ObjectReader::new(self.device.clone(), self.object.clone(), 1 << 20)])
    }

    fn may_run_here(&self, error: &Error) -> bool {
        error.kind() == Kind::Unsupported
    }
}
