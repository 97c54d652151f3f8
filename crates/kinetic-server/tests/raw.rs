//! A client that keeps no rules: it sends what a test wants, when the test wants it. And a store whose commits wait.

use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::{Condvar, Mutex};
use skytether_common::Result;
use skytether_kinetic_protocol::command::{Body, Command, Header, KeyValue};
use skytether_kinetic_protocol::frame::encode_into;
use skytether_kinetic_protocol::kinds::Synchronization;
use skytether_kinetic_protocol::{FrameDecoder, FrameLimits, HmacKey, Limits, Message, MessageType};
use skytether_kinetic_server::Options;
use skytether_kv::KeyValues;
use skytether_kv::backend::{Backend, Erased, Step, View};
use skytether_kv::memory::Memory;
use skytether_transport::Endpoint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Served, serve_over};

/// A connection without TLS, as identity 1.
pub(crate) struct Raw {
    stream: TcpStream,
    decoder: FrameDecoder,
    connection: Option<i64>,
    sequence: u64,
    out: BytesMut,
}

impl Raw {
    pub(crate) async fn open(at: &Endpoint) -> Raw {
        let stream = TcpStream::connect(at.authority()).await.unwrap();
        let decoder = FrameDecoder::new(FrameLimits::of(&Limits::DRIVE));
        let mut raw = Raw { stream, decoder, connection: None, sequence: 0, out: BytesMut::new() };
        let (greeting, _) = raw.receive().await;
        raw.connection = greeting.header.unwrap().connection_id;
        raw
    }

    /// Adds a request to what [`Raw::send`] sends; its sequence.
    pub(crate) fn add(&mut self, header: Header, body: Body, value: &[u8]) -> u64 {
        self.sequence += 1;
        let header = Header { cluster_version: Some(0), connection_id: self.connection, sequence: Some(self.sequence), ..header };
        let command = Command { header: Some(header), body: Some(body), status: None };
        encode_into(&Message::signed(1, &HmacKey::new(b"asdfasdf"), &command), value, &mut self.out).unwrap();
        self.sequence
    }

    /// As [`Raw::add`]: a put that is durable when it is acknowledged.
    pub(crate) fn add_put(&mut self, key: &str) -> u64 {
        let put = KeyValue {
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            force: Some(true),
            synchronization: Some(Synchronization::WriteThrough.into()),
            ..KeyValue::default()
        };
        self.add(of(MessageType::Put), Body { key_value: Some(put), ..Body::default() }, b"value")
    }

    /// As [`Raw::add`]: a get that may take some milliseconds; 0 is no limit.
    pub(crate) fn add_get(&mut self, key: &str, timeout: u64) -> u64 {
        let get = KeyValue { key: Some(Bytes::copy_from_slice(key.as_bytes())), ..KeyValue::default() };
        self.add(Header { timeout: Some(timeout), ..of(MessageType::Get) }, Body { key_value: Some(get), ..Body::default() }, b"")
    }

    pub(crate) async fn send(&mut self) {
        self.stream.write_all(&self.out.split()).await.unwrap();
    }

    /// Takes what [`Raw::send`] would send.
    pub(crate) fn take(&mut self) -> BytesMut {
        self.out.split()
    }

    /// Sends bytes of no particular form. It fails where the drive has ended the connection.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads and drops what comes until the drive ends the connection.
    pub(crate) async fn ended(&mut self) {
        let mut dropped = vec![0; 64 << 10];
        // A drive that has not read all that was sent resets the connection.
        while self.stream.read(&mut dropped).await.is_ok_and(|bytes| bytes > 0) {}
    }

    /// The next message.
    pub(crate) async fn receive(&mut self) -> (Command, Bytes) {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return (Message::parse(frame.message).unwrap().command().unwrap(), frame.value);
            }
            assert!(self.stream.read_buf(&mut self.decoder.space()).await.unwrap() > 0, "the drive closed the connection");
        }
    }
}

pub(crate) fn of(message_type: MessageType) -> Header {
    Header { message_type: Some(message_type.into()), ..Header::default() }
}

/// A backend in memory whose commits wait while its gate is shut.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gated {
    pub(crate) inner: Memory,
    shut: Arc<(Mutex<bool>, Condvar)>,
}

impl Gated {
    pub(crate) fn shut(&self) {
        *self.shut.0.lock() = true;
    }

    pub(crate) fn open(&self) {
        *self.shut.0.lock() = false;
        self.shut.1.notify_all();
    }
}

/// A drive over such a backend.
pub(crate) async fn serve_gated(dir: &Path) -> (Gated, Served) {
    let gated = Gated::default();
    let keys = KeyValues::over(Arc::new(gated.clone()), "gated".to_owned(), &skytether_kv::Options::default()).unwrap();
    let served = serve_over(dir, keys, Options::default(), false).await;
    (gated, served)
}

impl Backend for Gated {
    fn view(&self) -> Result<Box<dyn View + '_>> {
        self.inner.view()
    }

    fn commit(&self, steps: Vec<Step>, commit: u64, sync: bool) -> Result<()> {
        let mut shut = self.shut.0.lock();
        while *shut {
            self.shut.1.wait(&mut shut);
        }
        drop(shut);
        self.inner.commit(steps, commit, sync)
    }

    fn sync(&self, commit: u64) -> Result<()> {
        self.inner.sync(commit)
    }

    fn throttle(&self) -> Result<()> {
        self.inner.throttle()
    }

    fn room(&self) -> Result<Option<u64>> {
        self.inner.room()
    }

    fn compact(&self) -> Result<()> {
        self.inner.compact()
    }

    fn erase(&self, secure: bool) -> Erased {
        self.inner.erase(secure)
    }

    fn stored_bytes(&self) -> Result<u64> {
        self.inner.stored_bytes()
    }
}
