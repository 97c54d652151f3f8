//! A server in this process, a client that speaks bytes, and where programs are.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use skytether_device::StorageOnly;
use skytether_doors::DriveDoor;
use skytether_nbd::wire::{self, Request};
use skytether_nbd::{Nbd, Options, SCHEME};
use skytether_transport::{Endpoint, Listener, Security, ServeContext};
use skytether_volume::BlockDevice;
use skytether_volume::memory::MemoryDevice;
use tokio::runtime::Runtime;
use uuid::Uuid;

/// A served door. It ends when this is dropped.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) context: ServeContext,
    _runtime: Runtime,
}

impl Server {
    /// Serves volumes in memory.
    pub(crate) fn of(volumes: &[(&str, u64)]) -> Self {
        let devices = volumes.iter().map(|(name, size)| (name.to_string(), Arc::new(MemoryDevice::new(name, *size)) as Arc<dyn BlockDevice>));
        Self::start(devices.collect(), Options::default())
    }

    pub(crate) fn start(volumes: Vec<(String, Arc<dyn BlockDevice>)>, options: Options) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let context = ServeContext::default();
        let address = runtime.block_on(async {
            let listener = Listener::bind(&Endpoint::new(SCHEME, "127.0.0.1:0"), Security::Plain, &context).await.unwrap();
            let address = listener.endpoint().authority().to_owned();
            let door = Nbd::new(volumes, options).unwrap();
            tokio::spawn(door.serve(Arc::new(StorageOnly::in_memory(Uuid::from_u128(1), "drive")), listener, context.clone()));
            address
        });
        Self { address, context, _runtime: runtime }
    }

    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd://{}/{export}", self.address)
    }

    /// A connection with which nothing was negotiated but the flags.
    pub(crate) fn connect(&self) -> Client {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = Client { stream, cookie: 0 };
        assert_eq!(client.take::<8>(), *b"NBDMAGIC");
        assert_eq!(client.take::<8>(), *b"IHAVEOPT");
        assert_eq!(client.take::<2>(), [0, 3]);
        client.send(&3_u32.to_be_bytes());
        client
    }

    /// A connection to `export` in the transmission phase, and the flags of the export.
    pub(crate) fn go(&self, export: &str, structured: bool) -> (Client, u16) {
        let mut client = self.connect();
        if structured {
            client.option(wire::option::STRUCTURED_REPLY, &[]);
            assert_eq!(client.option_reply(wire::option::STRUCTURED_REPLY), (wire::reply::ACK, vec![]));
            client.option(wire::option::SET_META_CONTEXT, &meta(export, &["base:allocation"]));
            let (kind, context) = client.option_reply(wire::option::SET_META_CONTEXT);
            assert_eq!((kind, &context[4..]), (wire::reply::META_CONTEXT, &b"base:allocation"[..]));
            assert_eq!(client.option_reply(wire::option::SET_META_CONTEXT).0, wire::reply::ACK);
        }
        client.option(wire::option::GO, &info(export, &[]));
        let mut flags = 0;
        loop {
            match client.option_reply(wire::option::GO) {
                (wire::reply::INFO, payload) if payload[..2] == [0, 0] => flags = u16::from_be_bytes([payload[10], payload[11]]),
                (wire::reply::INFO, _) => {}
                (kind, _) => {
                    assert_eq!(kind, wire::reply::ACK);
                    return (client, flags);
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.context.shutdown.cancel();
    }
}

/// The payload of GO and INFO.
pub(crate) fn info(export: &str, wanted: &[u16]) -> Vec<u8> {
    let mut bytes = (export.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(export.as_bytes());
    bytes.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|kind| bytes.extend_from_slice(&kind.to_be_bytes()));
    bytes
}

/// The payload of LIST_META_CONTEXT and SET_META_CONTEXT.
pub(crate) fn meta(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = (export.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(export.as_bytes());
    bytes.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        bytes.extend_from_slice(&(query.len() as u32).to_be_bytes());
        bytes.extend_from_slice(query.as_bytes());
    }
    bytes
}

/// A client that sends and takes bytes.
pub(crate) struct Client {
    stream: TcpStream,
    cookie: u64,
}

/// A chunk of a structured reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) flags: u16,
    pub(crate) kind: u16,
    pub(crate) cookie: u64,
    pub(crate) payload: Vec<u8>,
}

impl Client {
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn take_many(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the server closes, after whatever it still says.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    pub(crate) fn option(&mut self, number: u32, payload: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        bytes.extend_from_slice(payload);
        self.send(&bytes);
    }

    pub(crate) fn option_reply(&mut self, number: u32) -> (u32, Vec<u8>) {
        assert_eq!(u64::from_be_bytes(self.take()), wire::OPTION_REPLY_MAGIC);
        assert_eq!(u32::from_be_bytes(self.take()), number);
        let kind = u32::from_be_bytes(self.take());
        let len = u32::from_be_bytes(self.take());
        (kind, self.take_many(len as usize))
    }

    /// Sends a request and returns its cookie.
    pub(crate) fn request(&mut self, command: u16, flags: u16, at: u64, len: u32, payload: &[u8]) -> u64 {
        self.cookie += 1;
        let mut bytes = Request { flags, command, cookie: self.cookie, at, len }.encode().to_vec();
        bytes.extend_from_slice(payload);
        self.send(&bytes);
        self.cookie
    }

    /// A request without a payload in its reply, answered simply: the error number.
    pub(crate) fn simple(&mut self, command: u16, flags: u16, at: u64, len: u32, payload: &[u8]) -> u32 {
        let cookie = self.request(command, flags, at, len, payload);
        assert_eq!(u32::from_be_bytes(self.take()), wire::SIMPLE_REPLY_MAGIC);
        let error = u32::from_be_bytes(self.take());
        assert_eq!(u64::from_be_bytes(self.take()), cookie);
        error
    }

    pub(crate) fn write(&mut self, at: u64, data: &[u8]) {
        assert_eq!(self.simple(wire::command::WRITE, 0, at, data.len() as u32, data), 0);
    }

    pub(crate) fn read(&mut self, at: u64, len: u32) -> Vec<u8> {
        assert_eq!(self.simple(wire::command::READ, 0, at, len, &[]), 0);
        self.take_many(len as usize)
    }

    pub(crate) fn chunk(&mut self) -> Chunk {
        assert_eq!(u32::from_be_bytes(self.take()), wire::CHUNK_MAGIC);
        let (flags, kind) = (u16::from_be_bytes(self.take()), u16::from_be_bytes(self.take()));
        let (cookie, len) = (u64::from_be_bytes(self.take()), u32::from_be_bytes(self.take()));
        Chunk { flags, kind, cookie, payload: self.take_many(len as usize) }
    }

    /// The chunks of a reply to `cookie`, up to the last one.
    pub(crate) fn chunks(&mut self, cookie: u64) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        loop {
            let chunk = self.chunk();
            assert_eq!(chunk.cookie, cookie);
            let done = chunk.flags & wire::chunk::DONE != 0;
            chunks.push(chunk);
            if done {
                return chunks;
            }
        }
    }
}

/// Whether all `programs` are installed. Where they must be, their absence fails the test.
pub(crate) fn has(programs: &[&str]) -> bool {
    let missing = |program: &&str| !["/usr/bin", "/usr/sbin", "/bin", "/sbin"].iter().any(|at| std::path::Path::new(at).join(program).exists());
    let Some(program) = programs.iter().copied().find(missing) else { return true };
    absent(&format!("{program} is not installed (Debian: qemu-utils, libnbd-bin, nbdfuse, python3-libnbd, xfsprogs, e2fsprogs)"));
    false
}

/// Says why a test does not run, or fails where it must run.
pub(crate) fn absent(why: &str) {
    assert!(std::env::var("SKYTETHER_BLOCK").as_deref() != Ok("required"), "{why}");
    eprintln!("skipped: {why}");
}

/// Runs a program with the system's own Python before others; its standard output. It must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout").arg("100").arg(program).args(arguments).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output().unwrap();
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}\n{error}", output.status);
    out.into_owned()
}
