//! Requests about keys and values.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use skytether_common::{Error, Key, Kind};
use skytether_kinetic_protocol::access::Target;
use skytether_kinetic_protocol::command::{Body, KeyValue, Range};
use skytether_kinetic_protocol::decoder;
use skytether_kinetic_protocol::frame::DEFAULT_MESSAGE_BYTES;
use skytether_kinetic_protocol::kinds::Synchronization;
use skytether_kinetic_protocol::limits::told;
use skytether_kinetic_protocol::range::KeyRange;
use skytether_kinetic_protocol::{MessageType, Permission, Refusal, StatusCode};
use skytether_kv::{Change, Durability, Meta, Record, To};

use crate::admission::Request;
use crate::reply::{Answer, Reply};
use crate::shared::{Shared, refusal, write_refusal};
use crate::watches;

/// Values and messages of up to this length may lie in one block with others, in bytes.
const SHARED_BYTES: usize = decoder::BLOCK;

/// What a message takes beyond a list of keys, in bytes: at most.
const HEADER_ROOM: usize = 1024;

/// What a key takes in a message beyond its bytes: a tag, and a length of up to five bytes.
const KEY_OVERHEAD: usize = 6;

/// A copy that does not keep the frame in memory which it came in.
pub(crate) fn detached(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

/// The value, without the memory of the frames around it: a block is shared by small ones, and a long message by its
/// value.
fn detached_value(request: &Request) -> Bytes {
    if request.value.len() <= SHARED_BYTES || request.message_bytes > SHARED_BYTES { detached(&request.value) } else { request.value.clone() }
}

/// The key and what is said of it.
pub(crate) fn key_value(request: &Request) -> Result<&KeyValue, Refusal> {
    request.body.key_value.as_ref().ok_or_else(|| Refusal::invalid("the request names no key"))
}

/// The change that a put or a delete asks for, after all checks; and when it is acknowledged.
pub(crate) fn change(shared: &Shared, request: &Request) -> Result<(Change, Durability), Refusal> {
    let kv = key_value(request)?;
    let put = request.kind() == MessageType::Put;
    request.caller.check(if put { Permission::Write } else { Permission::Delete }, Target::Key(kv.key()))?;
    shared.limits.check_key(kv.key())?;
    shared.limits.check_version(kv.db_version())?;
    let durability = match kv.synchronization() {
        Synchronization::WriteThrough => Durability::Through,
        Synchronization::WriteBack => Durability::Back,
        Synchronization::Flush => Durability::Flush,
        Synchronization::Invalid => return Err(Refusal::invalid("the request does not say when it is acknowledged: WRITETHROUGH, WRITEBACK or FLUSH")),
    };
    let to = if put {
        shared.limits.check_version(kv.new_version())?;
        shared.limits.check_tag(kv.tag())?;
        shared.limits.check_value(request.value_bytes())?;
        if request.dropped.is_some() {
            return Err(Refusal::invalid("the value is longer than this drive takes"));
        }
        let algorithm = kv.algorithm.unwrap_or(-1);
        To::Put { version: detached_field(kv.new_version.as_ref()), tag: detached_field(kv.tag.as_ref()), algorithm, value: detached_value(request) }
    } else {
        To::Delete
    };
    let expect = (!kv.force()).then(|| detached_field(kv.db_version.as_ref()));
    Ok((Change { key: detached_field(kv.key.as_ref()), expect, to }, durability))
}

fn detached_field(field: Option<&Bytes>) -> Bytes {
    field.map(detached).unwrap_or_default()
}

/// Puts or deletes a key.
pub(crate) async fn write(shared: &Shared, request: &Request) -> Result<Reply, Refusal> {
    let (change, durability) = change(shared, request)?;
    let changes = vec![change];
    let seen = shared.watches.seen(&request.caller.chain, &changes);
    let writing = shared.keys.begin(changes, durability).await.map_err(|failed| write_refusal(&failed.why))?;
    let writing = watches::told(seen, writing);
    let (done, header) = (Answer::of(request, Ok(())), request.header.clone());
    Ok(Reply::Write(Box::pin(async move {
        match writing.await {
            Ok(()) => done,
            Err(failed) => Answer::refused(&header, &write_refusal(&failed.why)),
        }
    })))
}

/// Makes all earlier writes durable.
pub(crate) async fn flush(shared: &Shared, request: &Request) -> Result<Reply, Refusal> {
    let flushing = shared.keys.begin_flush().await.map_err(|e| refusal(&e))?;
    let (done, header) = (Answer::of(request, Ok(())), request.header.clone());
    Ok(Reply::Write(Box::pin(async move {
        match flushing.await {
            Ok(()) => done,
            Err(error) => Answer::refused(&header, &refusal(&error)),
        }
    })))
}

/// Reads a value, or only what is known of it.
pub(crate) fn get(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    let kv = key_value(request)?;
    request.caller.check(Permission::Read, Target::Key(kv.key()))?;
    shared.limits.check_key(kv.key())?;
    if kv.metadata_only() {
        return match shared.keys.meta(kv.key()).map_err(|e| refusal(&e))? {
            Some(meta) => Ok(Reply::Now(found(request, kv.key.clone(), meta, Bytes::new()))),
            None => slice(shared, request, kv, Wanted::Metadata),
        };
    }
    match shared.keys.get(kv.key()).map_err(|e| refusal(&e))? {
        Some(Record { meta, value }) => Ok(Reply::Now(found(request, kv.key.clone(), meta, value))),
        None => slice(shared, request, kv, Wanted::Value),
    }
}

/// Reads the version of a key.
pub(crate) fn get_version(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    let kv = key_value(request)?;
    request.caller.check(Permission::Read, Target::Key(kv.key()))?;
    shared.limits.check_key(kv.key())?;
    let Some(meta) = shared.keys.meta(kv.key()).map_err(|e| refusal(&e))? else { return slice(shared, request, kv, Wanted::Version) };
    let mut answer = Answer::of(request, Ok(()));
    let kv = KeyValue { key: kv.key.clone(), db_version: Some(meta.version), ..KeyValue::default() };
    answer.command.body = Some(Body { key_value: Some(kv), ..Body::default() });
    Ok(Reply::Now(answer))
}

/// Reads the key after or before the one that is named. The permission is that for the key that is found.
pub(crate) fn get_beside(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    let kv = key_value(request)?;
    shared.limits.check_key(kv.key())?;
    let next = request.kind() == MessageType::GetNext;
    if kv.metadata_only() {
        let (from, to) = if next { (Bound::Excluded(kv.key()), Bound::Unbounded) } else { (Bound::Unbounded, Bound::Excluded(kv.key())) };
        let key = shared.keys.keys(from, to, !next, 1).map_err(|e| refusal(&e))?.pop().ok_or_else(absent)?;
        request.caller.check(Permission::Read, Target::Key(&key))?;
        let meta = shared.keys.meta(&key).map_err(|e| refusal(&e))?.ok_or_else(absent)?;
        return Ok(Reply::Now(found(request, Some(key), meta, Bytes::new())));
    }
    let beside = if next { shared.keys.next(kv.key()) } else { shared.keys.previous(kv.key()) };
    let (key, Record { meta, value }) = beside.map_err(|e| refusal(&e))?.ok_or_else(absent)?;
    request.caller.check(Permission::Read, Target::Key(&key))?;
    Ok(Reply::Now(found(request, Some(key), meta, value)))
}

/// Lists the keys of a range. The list ends before the first key that the caller may not see.
pub(crate) fn key_range(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    let range = request.body.range.as_ref().ok_or_else(|| Refusal::invalid("the request names no range"))?;
    request.caller.check(Permission::Range, Target::Keys(range.start_key(), range.end_key()))?;
    let wanted = KeyRange::of(range, &shared.limits)?;
    let mut keys = match wanted.bounds() {
        Some((start, end)) => {
            let limit = usize::try_from(wanted.max_returned).unwrap_or(usize::MAX);
            shared.keys.keys(start, end, wanted.reverse, limit).map_err(|e| refusal(&e))?
        }
        None => Vec::new(),
    };
    let seen = keys.iter().take_while(|key| request.caller.may(Permission::Range, Target::Key(key))).count();
    keys.truncate(seen);
    // The answer is a message, which must fit into the announced limit.
    fit(shared, &mut keys);
    let mut answer = Answer::of(request, Ok(()));
    answer.command.body = Some(Body { range: Some(Range { keys, ..Range::default() }), ..Body::default() });
    Ok(Reply::Now(answer))
}

/// Drops the last keys that do not fit into an answer, whose length is limited as that of a message.
pub(crate) fn fit(shared: &Shared, keys: &mut Vec<Bytes>) {
    let room = (told(shared.limits.max_message_size).unwrap_or(DEFAULT_MESSAGE_BYTES) as usize).saturating_sub(HEADER_ROOM);
    let mut taken = 0;
    let fits = |key: &&Bytes| {
        taken += key.len() + KEY_OVERHEAD;
        taken <= room
    };
    keys.truncate(keys.iter().take_while(fits).count());
}

fn absent() -> Refusal {
    Refusal::new(StatusCode::NotFound, "there is no such key")
}

fn found(request: &Request, key: Option<Bytes>, meta: Meta, value: Bytes) -> Answer {
    let mut answer = Answer::of(request, Ok(()));
    let algorithm = (meta.algorithm >= 0).then_some(meta.algorithm);
    let kv = KeyValue { key, db_version: Some(meta.version), tag: Some(meta.tag), algorithm, ..KeyValue::default() };
    answer.command.body = Some(Body { key_value: Some(kv), ..Body::default() });
    answer.value = value;
    answer
}

/// What is asked of a slice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Version,
    Metadata,
    Value,
}

/// A slice, record or other value of the drive's own, by its name. It can be read, and in no way changed.
fn slice(shared: &Arc<Shared>, request: &Request, kv: &KeyValue, wanted: Wanted) -> Result<Reply, Refusal> {
    let Some(key) = std::str::from_utf8(kv.key()).ok().and_then(|name| Key::new(name).ok()) else { return Err(absent()) };
    let (shared, mut answer, header) = (Arc::clone(shared), Answer::of(request, Ok(())), request.header.clone());
    let named = kv.key.as_ref().map(detached);
    Ok(Reply::Work(Box::pin(async move {
        let limit = told(shared.limits.max_value_size).map_or(u64::MAX, u64::from);
        let reading = async {
            let Some(entry) = shared.drive.stat(&key).await? else { return Ok(None) };
            if wanted == Wanted::Value && entry.len > limit {
                let text = format!("the value of {key} has {} bytes, more than a Kinetic answer holds; read it over Flight", entry.len);
                return Err(Error::invalid(text));
            }
            let value = if wanted == Wanted::Value { shared.drive.get(&key).await? } else { Bytes::new() };
            Ok(Some((entry, value)))
        };
        match reading.await {
            Ok(Some((entry, _))) if wanted == Wanted::Version => {
                let kv = KeyValue { key: named, db_version: Some(Bytes::from(entry.version.to_string())), ..KeyValue::default() };
                answer.command.body = Some(Body { key_value: Some(kv), ..Body::default() });
                answer
            }
            Ok(Some((entry, value))) => {
                let version = Bytes::from(entry.version.to_string());
                let kv =
                    KeyValue { key: named, db_version: Some(version), tag: Some(Bytes::copy_from_slice(&entry.crc32c.to_be_bytes())), ..KeyValue::default() };
                answer.command.body = Some(Body { key_value: Some(kv), ..Body::default() });
                answer.value = value;
                answer
            }
            Ok(None) => Answer::refused(&header, &absent()),
            Err(error) if error.kind() == Kind::NotFound => Answer::refused(&header, &absent()),
            Err(error) => Answer::refused(&header, &refusal(&error)),
        }
    })))
}

/// Both ends of a range without a limit of keys, as scans have it; an absent range is all keys.
pub(crate) fn ends(range: &KeyRange) -> (Bound<Bytes>, Bound<Bytes>) {
    (range.start.clone(), range.end.clone())
}
