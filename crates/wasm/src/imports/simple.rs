//! Imports that work on one value or one range of bytes.

use wasmi::{Caller, Error};

use super::{HOST_CALL, call, cost_of};
use crate::state::State;
use crate::trap::Cause;

/// The result of imports that found nothing.
const NONE: i64 = -1;

type Program<'a, 'b> = Caller<'a, State<'b>>;

fn refused(import: &'static str) -> impl Fn(skytether_common::Error) -> Cause {
    move |error| Cause::Refused { import, error }
}

fn length(bytes: &[u8]) -> i64 {
    i64::try_from(bytes.len()).unwrap_or(i64::MAX)
}

/// What copying costs: the charge comes before the copy.
fn copied(bytes: &[u8], room: u32) -> u64 {
    cost_of((bytes.len() as u64).min(room.into()))
}

pub(super) fn argument_count(mut program: Program<'_, '_>) -> Result<u32, Error> {
    call(&mut program, "arg_count", |_, state| Ok(u32::try_from(state.arguments.len()).unwrap_or(u32::MAX)))
}

pub(super) fn argument(mut program: Program<'_, '_>, index: u32, to: u32, room: u32) -> Result<i64, Error> {
    call(&mut program, "arg", |memory, state| {
        let Some(argument) = state.arguments.get(index as usize) else { return Ok(NONE) };
        state.meter.charge(copied(argument, room))?;
        memory.put(to.into(), room.into(), argument)?;
        Ok(length(argument))
    })
}

pub(super) fn get(mut program: Program<'_, '_>, key: u32, key_length: u32, to: u32, room: u32) -> Result<i64, Error> {
    call(&mut program, "get", |memory, state| {
        state.meter.charge(cost_of(key_length.into()).saturating_add(HOST_CALL))?;
        let found = state.host.get(memory.read(key.into(), key_length.into())?).map_err(refused("get"))?;
        let Some(value) = found else {
            state.value.clear();
            return Ok(NONE);
        };
        // Somebody read it whole, whatever is copied of it.
        state.meter.work((cost_of(value.len() as u64) / 8).saturating_add(copied(&value, room)))?;
        memory.put(to.into(), room.into(), &value)?;
        state.value = value;
        Ok(length(&state.value))
    })
}

pub(super) fn read(mut program: Program<'_, '_>, offset: u64, to: u32, room: u32) -> Result<i64, Error> {
    call(&mut program, "read", |memory, state| {
        let rest = usize::try_from(offset).ok().and_then(|from| state.value.get(from..)).unwrap_or_default();
        state.meter.charge(copied(rest, room))?;
        memory.put(to.into(), room.into(), rest)?;
        Ok(length(rest).min(room.into()))
    })
}

pub(super) fn next(mut program: Program<'_, '_>, after: u32, after_length: u32, to: u32, room: u32) -> Result<i64, Error> {
    call(&mut program, "next", |memory, state| {
        state.meter.charge(cost_of(after_length.into()).saturating_add(HOST_CALL))?;
        let found = state.host.next(memory.read(after.into(), after_length.into())?).map_err(refused("next"))?;
        let Some(key) = found else { return Ok(NONE) };
        state.meter.work(copied(&key, room))?;
        memory.put(to.into(), room.into(), &key)?;
        Ok(length(&key))
    })
}

pub(super) fn put(mut program: Program<'_, '_>, key: u32, key_length: u32, value: u32, value_length: u32) -> Result<(), Error> {
    call(&mut program, "put", |memory, state| {
        state.meter.charge(cost_of(u64::from(key_length) + u64::from(value_length)).saturating_add(HOST_CALL))?;
        let (key, value) = (memory.read(key.into(), key_length.into())?, memory.read(value.into(), value_length.into())?);
        state.host.put(key, value).map_err(refused("put"))?;
        state.meter.check()
    })
}

pub(super) fn emit(mut program: Program<'_, '_>, from: u32, length: u32) -> Result<(), Error> {
    call(&mut program, "emit", |memory, state| {
        state.meter.charge(cost_of(length.into()))?;
        let fits = state.output.push(memory.read(from.into(), length.into())?);
        if fits { Ok(()) } else { Err(Cause::OutputLimit { limit: state.output.limit() }) }
    })
}

pub(super) fn print(mut program: Program<'_, '_>, from: u32, length: u32) -> Result<(), Error> {
    call(&mut program, "print", |memory, state| {
        state.meter.charge(cost_of(length.into()))?;
        let fits = state.stdout.push(memory.read(from.into(), length.into())?);
        if fits { Ok(()) } else { Err(Cause::StdoutLimit { limit: state.stdout.limit() }) }
    })
}

pub(super) fn remaining(mut program: Program<'_, '_>) -> Result<u64, Error> {
    call(&mut program, "remaining", |_, state| Ok(state.meter.remaining()))
}
