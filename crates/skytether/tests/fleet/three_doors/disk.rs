//! A volume of a drive, served over iSCSI, and a client of it: it writes, reads and computes over the wire alone.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use oas::path::{Caller, Path as Way};
use oas::remote::Remote;
use oas::scsi::{Command, Reply, Scsi, ScsiPath};
use oas::url::Url;
use skytether_common::Result;
use skytether_doors::DriveDoor;
use skytether_drive::Drive;
use skytether_file_query::FileEngine;
use skytether_iscsi::{Iscsi, SCHEME};
use skytether_offload::codes::{format, opcode, tag};
use skytether_offload::operations::registry;
use skytether_offload::{Descriptor, ExecResult, Extent, Object, Offload};
use skytether_store::disk::DriveIdentity;
use skytether_transport::{Endpoint, Listener, Security, ServeContext};
use skytether_volume::{BlockDevice, StorageBacking, Volumes};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

const BLOCK: usize = 512;

/// Bytes of a file that lie one after the other.
const PIECE: usize = 40 << 10;

/// Bytes from the begin of a piece to that of the one before it.
const STEP: usize = 64 << 10;

/// A served volume.
pub(crate) struct Disk {
    exec: ScsiPath<Remote>,
    unit: Remote,
    /// The first byte that no file has.
    free: u64,
    context: ServeContext,
    volumes: Arc<Volumes>,
    serving: JoinHandle<Result<()>>,
}

impl Disk {
    /// A new drive in `dir` with one volume, and what `drive serve --volume` puts on a socket.
    pub(crate) async fn serve(dir: &Path) -> Self {
        let identity = DriveIdentity { id: Uuid::from_u128(77), name: "disks".into() };
        let drive = Drive::open(dir, Some(identity), Default::default()).unwrap();
        let queries = Arc::new(FileEngine::new(drive.file_engine().unwrap()));
        let exec = Arc::new(Offload::new(registry(Some(queries)).unwrap(), Default::default()).unwrap());
        let volumes = Volumes::open(Arc::new(StorageBacking::new(drive.clone()).unwrap()), &dir.join("volumes"), Default::default()).await.unwrap();
        let volume = volumes.ensure(&"disk=256MiB".parse().unwrap()).await.unwrap();
        let door = Iscsi::new(vec![("disk".into(), volume as Arc<dyn BlockDevice>)], Some(exec), Default::default()).unwrap();
        let context = ServeContext::default();
        let listener = Listener::bind(&Endpoint::new(SCHEME, "127.0.0.1:0"), Security::Plain, &context).await.unwrap();
        let url = format!("{}/{}/1", listener.url(), door.target_name("disks"));
        let Ok(Url::Iscsi(url)) = url.parse() else { panic!("{url}") };
        let serving = tokio::spawn(door.serve(drive, listener, context.clone()));
        Self { exec: ScsiPath::new(Remote::new(url.clone())), unit: Remote::new(url), free: 1 << 20, context, volumes, serving }
    }

    /// Ends the serving, and closes the volume.
    pub(crate) async fn close(self) {
        let Self { exec, unit, context, volumes, serving, .. } = self;
        drop((exec, unit));
        context.shutdown.cancel();
        serving.await.unwrap().unwrap();
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

    /// What EXEC answers to `descriptor`.
    pub(crate) async fn exec(&self, descriptor: &Descriptor) -> Result<ExecResult> {
        let caller = Caller { deadline: Instant::now() + Duration::from_secs(120) };
        let result = self.exec.exec(descriptor.encode()?, 64 << 20, caller).await?;
        let result = ExecResult::decode(&result)?;
        result.done()?;
        Ok(result)
    }

    /// The digest of a file by `operation`, computed in the drive.
    pub(crate) async fn digest(&self, operation: u16, object: &Object) -> Bytes {
        let result = self.exec(&Descriptor::new(operation).input(object.clone())).await.unwrap();
        result.items[0].done().unwrap().data.clone()
    }

    /// The rows that `plan` gives over a Parquet file, which is its table `plain`; its columns for an empty plan.
    pub(crate) async fn query(&self, plan: Bytes, object: &Object) -> Result<(SchemaRef, Vec<RecordBatch>)> {
        let descriptor = Descriptor::new(opcode::QUERY).number(tag::FORMAT, format::PARQUET).bytes(tag::PLAN, plan).text(tag::TABLE, "plain");
        let result = self.exec(&descriptor.input(object.clone())).await?;
        let reader = StreamReader::try_new(std::io::Cursor::new(result.items[0].data.clone()), None).unwrap();
        Ok((reader.schema(), reader.map(std::result::Result::unwrap).collect()))
    }
}
