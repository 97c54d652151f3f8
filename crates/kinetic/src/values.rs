//! The operations of a connection on keys and values.

use bytes::Bytes;
use skytether_common::Kind;
use skytether_common::checksum::crc32c;
use skytether_kinetic_protocol::MessageType;
use skytether_kinetic_protocol::command::{Body, KeyValue, Range};
use skytether_kinetic_protocol::kinds::{Algorithm, Synchronization};

use crate::connection::{Connection, Request, Response};
use crate::failure::{Failure, Outcome};

/// A key's value and what is stored with it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// Its version.
    pub version: Bytes,
    /// The writer's checksum.
    pub tag: Bytes,
    /// What that is computed with: the number of an [`Algorithm`].
    pub algorithm: Option<i32>,
}

/// What a put writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// The version that must be stored (empty: the key must be absent); `None`: whatever is stored.
    pub expected: Option<Bytes>,
    /// The version that the key gets.
    pub version: Bytes,
    /// The checksum that is stored with it, and the number of its [`Algorithm`].
    pub tag: (Bytes, i32),
    /// When the put is acknowledged.
    pub synchronization: Synchronization,
}

impl Put {
    /// A put that is durable when it is acknowledged, with the value's CRC-32C as its tag.
    #[must_use]
    pub fn new(key: Bytes, value: Bytes, expected: Option<Bytes>, version: Bytes) -> Put {
        let tag = (Bytes::copy_from_slice(&crc32c(&value).to_be_bytes()), Algorithm::Crc32c.into());
        Put { key, value, expected, version, tag, synchronization: Synchronization::WriteThrough }
    }

    pub(crate) fn request(self) -> Request {
        let key_value = KeyValue {
            new_version: Some(self.version),
            key: Some(self.key),
            force: self.expected.is_none().then_some(true),
            db_version: self.expected.filter(|version| !version.is_empty()),
            tag: Some(self.tag.0),
            algorithm: Some(self.tag.1),
            synchronization: Some(self.synchronization.into()),
            metadata_only: None,
        };
        Request::new(MessageType::Put).body(about(key_value)).value(self.value)
    }
}

/// What a delete removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete {
    /// The key.
    pub key: Bytes,
    /// The version that must be stored; `None`: whatever is stored, and nothing is no error.
    pub expected: Option<Bytes>,
    /// When the delete is acknowledged.
    pub synchronization: Synchronization,
}

impl Delete {
    /// A delete that is durable when it is acknowledged.
    #[must_use]
    pub fn new(key: Bytes, expected: Option<Bytes>) -> Delete {
        Delete { key, expected, synchronization: Synchronization::WriteThrough }
    }

    pub(crate) fn request(self) -> Request {
        let key_value = KeyValue {
            key: Some(self.key),
            force: self.expected.is_none().then_some(true),
            db_version: self.expected.filter(|version| !version.is_empty()),
            synchronization: Some(self.synchronization.into()),
            ..KeyValue::default()
        };
        Request::new(MessageType::Delete).body(about(key_value))
    }
}

/// A range of keys, for [`Connection::get_key_range`] and media operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// The first key, and whether it belongs to the range.
    pub start: (Bytes, bool),
    /// The last key, and whether it belongs to the range.
    pub end: (Bytes, bool),
    /// How many keys come back at most. The drive has a limit, too.
    pub most: u32,
    /// Whether they come from the end, in falling order.
    pub reverse: bool,
}

impl Keys {
    pub(crate) fn body(self) -> Body {
        let range = Range {
            start_key: Some(self.start.0),
            end_key: Some(self.end.0),
            start_key_inclusive: Some(self.start.1),
            end_key_inclusive: Some(self.end.1),
            max_returned: Some(self.most),
            reverse: self.reverse.then_some(true),
            keys: Vec::new(),
        };
        Body { range: Some(range), ..Body::default() }
    }
}

fn about(key_value: KeyValue) -> Body {
    Body { key_value: Some(key_value), ..Body::default() }
}

fn key_request(of: MessageType, key: Bytes, metadata_only: bool) -> Request {
    Request::new(of).body(about(KeyValue { key: Some(key), metadata_only: metadata_only.then_some(true), ..KeyValue::default() }))
}

/// What a response says of a key. The parts are copies: a small one must not keep a whole frame in memory.
fn record(response: Response) -> Record {
    let about = response.body().key_value.unwrap_or_default();
    let copied = |bytes: Option<Bytes>| bytes.map(|bytes| Bytes::copy_from_slice(&bytes)).unwrap_or_default();
    // A value of half a block or more has a block of its own.
    let value = if response.value.len() < 32 << 10 { Bytes::copy_from_slice(&response.value) } else { response.value };
    Record { key: copied(about.key), value, version: copied(about.db_version), tag: copied(about.tag), algorithm: about.algorithm }
}

impl Connection {
    /// Reads a value, or only what is stored with it.
    ///
    /// # Errors
    /// `NOT_FOUND` where the key is absent; [`Failure`].
    pub async fn get(&self, key: Bytes, metadata_only: bool) -> Outcome<Record> {
        let got = record(self.read(key_request(MessageType::Get, key.clone(), metadata_only)).await?);
        if got.key.is_empty() || got.key == key {
            return Ok(Record { key, ..got });
        }
        Err(self.wrong("a value of another key"))
    }

    /// Reads the first key behind `key`.
    ///
    /// # Errors
    /// `NOT_FOUND` where there is none; [`Failure`].
    pub async fn get_next(&self, key: Bytes) -> Outcome<Record> {
        let got = record(self.read(key_request(MessageType::GetNext, key.clone(), false)).await?);
        if got.key > key { Ok(got) } else { Err(self.wrong("a key that is not behind the named one")) }
    }

    /// Reads the last key in front of `key`.
    ///
    /// # Errors
    /// `NOT_FOUND` where there is none; [`Failure`].
    pub async fn get_previous(&self, key: Bytes) -> Outcome<Record> {
        let got = record(self.read(key_request(MessageType::GetPrevious, key.clone(), false)).await?);
        if got.key < key { Ok(got) } else { Err(self.wrong("a key that is not in front of the named one")) }
    }

    /// The version of a key; `None` where the key is absent.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn get_version(&self, key: Bytes) -> Outcome<Option<Bytes>> {
        match self.read(key_request(MessageType::GetVersion, key, false)).await {
            Ok(response) => Ok(Some(record(response).version)),
            Err(failure) if failure.code() == Some(skytether_kinetic_protocol::StatusCode::NotFound) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The keys of a range.
    ///
    /// # Errors
    /// [`Failure`], also where the keys that come back are too many, or not in the range and in order.
    pub async fn get_key_range(&self, range: Keys) -> Outcome<Vec<Bytes>> {
        let within = skytether_kinetic_protocol::range::KeyRange::unlimited(&range.clone().body().range.unwrap_or_default());
        let response = self.read(Request::new(MessageType::GetKeyRange).body(range.clone().body())).await?;
        let keys = response.body().range.unwrap_or_default().keys;
        let ordered = keys.windows(2).all(|pair| if range.reverse { pair[0] > pair[1] } else { pair[0] < pair[1] });
        if keys.len() > range.most as usize || !ordered || !keys.iter().all(|key| within.contains(key)) {
            return Err(self.wrong("keys that are not those of the range"));
        }
        // One copy for all.
        let all = Bytes::from(keys.concat());
        let mut at = 0;
        let mut part = |key: &Bytes| {
            at += key.len();
            all.slice(at - key.len()..at)
        };
        Ok(keys.iter().map(&mut part).collect())
    }

    /// Writes a value.
    ///
    /// # Errors
    /// `VERSION_MISMATCH` where another version is stored than expected; [`Failure`].
    pub async fn put(&self, put: Put) -> Outcome<()> {
        self.write(put.request()).await.map(drop)
    }

    /// Removes a key.
    ///
    /// # Errors
    /// `NOT_FOUND` where the key is absent (not with force), `VERSION_MISMATCH`; [`Failure`].
    pub async fn delete(&self, delete: Delete) -> Outcome<()> {
        self.write(delete.request()).await.map(drop)
    }

    /// Makes all acknowledged writes durable.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn flush(&self) -> Outcome<()> {
        self.write(Request::new(MessageType::FlushAllData)).await.map(drop)
    }

    /// Does nothing but wait for an answer.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn noop(&self) -> Outcome<()> {
        self.read(Request::new(MessageType::Noop)).await.map(drop)
    }

    /// An answer that can't be right.
    #[allow(clippy::unused_self, reason = "it is about this connection")]
    pub(crate) fn wrong(&self, what: &str) -> Failure {
        Failure::lost(Kind::Corrupt, format!("answers with {what}"), true)
    }
}
