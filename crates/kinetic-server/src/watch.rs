//! `WATCH` and `UNWATCH`: programs that the drive runs when keys change.

use bytes::Bytes;
use skytether_kinetic_protocol::access::Target;
use skytether_kinetic_protocol::command::Header;
use skytether_kinetic_protocol::kinds::Priority;
use skytether_kinetic_protocol::program::{ManageApplet, WatchScope};
use skytether_kinetic_protocol::{MessageType, Permission, Refusal, StatusCode};

use crate::admission::{Request, Signer};
use crate::data::detached;
use crate::program_bytes::check_keys;
use crate::reply::{Answer, Reply};
use crate::shared::Shared;
use crate::watches::{Owner, Scope, Teller, WATCHES, Watch, name};

/// The keys of a watch's program, its arguments and the ends of its scope, in bytes.
const BYTES: usize = 64 << 10;

/// Sets a watch.
pub(crate) fn set(shared: &Shared, request: &Request, asked: &ManageApplet, keys: Vec<Bytes>, teller: &Teller) -> Result<Reply, Refusal> {
    let caller = &request.caller;
    check_keys(shared, caller, &keys)?;
    if let Some(key) = &asked.output_key {
        shared.limits.check_key(key)?;
        caller.check(Permission::Write, Target::Key(key))?;
    }
    if asked.set_value_in_response() {
        return Err(Refusal::invalid("messages about a watched program have no value: name an output key, and read that"));
    }
    let scope = scope(asked.watch_scope.as_ref())?;
    shared.limits.check_key(&scope.first)?;
    shared.limits.check_key(&scope.last)?;
    if !scope.last.is_empty() && scope.first > scope.last {
        return Err(Refusal::invalid("the scope of the watch ends before it begins"));
    }
    caller.check(Permission::Range, Target::Keys(&scope.first, &scope.last))?;
    let arguments = asked.program_param.iter();
    let parts = keys.iter().chain(arguments.clone()).chain([&scope.first, &scope.last]);
    let bytes: usize = parts.map(|part| part.len() + size_of::<Bytes>()).sum();
    if bytes > BYTES {
        return Err(Refusal::invalid(format!("the watch's keys and arguments take {bytes} bytes, the limit is {BYTES}")));
    }
    let Some((Signer::Identity(identity, _), acl)) = Some(&caller.signer).zip(caller.acl()) else {
        return Err(Refusal::invalid("a watch needs an identity"));
    };
    let program = ManageApplet {
        lang: asked.lang,
        program_key: keys,
        max_run_time: asked.max_run_time,
        program_param: arguments.map(detached).collect(),
        output_key: asked.output_key.as_ref().map(detached),
        ..ManageApplet::default()
    };
    let noted = format!("a watch runs the program {}", name(&program));
    let watch = Watch {
        owner: Owner { identity: *identity, key: detached(&Bytes::copy_from_slice(acl.key())), tls: caller.tls },
        scope,
        program,
        priority: Priority::of(request.header.priority),
        header: Header { connection_id: request.header.connection_id, ack_sequence: request.header.sequence, ..Header::default() },
        teller: asked.notify_on_completion().then(|| teller.clone()),
    };
    if !shared.watches.set(watch) {
        return Err(Refusal::new(StatusCode::ServiceBusy, format!("the drive has {WATCHES} watches, as many as it may: end one by UNWATCH")));
    }
    shared.note(&noted);
    Ok(Reply::Now(Answer::of(request, Ok(()))))
}

/// Ends the watches of a program that the caller's identity has: all, or those of a scope.
pub(crate) fn end(shared: &Shared, request: &Request, asked: &ManageApplet, keys: &[Bytes]) -> Result<Reply, Refusal> {
    if keys.is_empty() {
        return Err(Refusal::invalid("the request names no program whose watches end"));
    }
    let of = asked.watch_scope.as_ref().map(|named| scope(Some(named))).transpose()?;
    let Signer::Identity(identity, _) = request.caller.signer else { return Err(Refusal::invalid("watches belong to identities")) };
    let ends = |watch: &Watch| watch.owner.identity == identity && watch.program.program_key == keys && of.as_ref().is_none_or(|of| *of == watch.scope);
    if shared.watches.keep(|watch| !ends(watch)) == 0 {
        return Err(Refusal::new(StatusCode::NotFound, "this identity has no such watch"));
    }
    Ok(Reply::Now(Answer::of(request, Ok(()))))
}

/// The scope that a request names; without one, it is all changes of all keys.
fn scope(named: Option<&WatchScope>) -> Result<Scope, Refusal> {
    let kinds = || named.into_iter().flat_map(|named| named.mtype.iter().copied());
    if kinds().any(|kind| kind != i32::from(MessageType::Put) && kind != i32::from(MessageType::Delete)) {
        return Err(Refusal::invalid("a watch sees requests of the types PUT and DELETE, and no others"));
    }
    let any = kinds().next().is_none();
    let has = |kind: MessageType| any || kinds().any(|named| named == i32::from(kind));
    let end = |key: Option<&Bytes>| key.map(detached).unwrap_or_default();
    Ok(Scope {
        first: end(named.and_then(|named| named.start_key.as_ref())),
        last: end(named.and_then(|named| named.end_key.as_ref())),
        puts: has(MessageType::Put),
        deletes: has(MessageType::Delete),
    })
}
