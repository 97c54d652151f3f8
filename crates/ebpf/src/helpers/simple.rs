//! Helpers that work on one value or one range of bytes.

use std::cmp::Ordering;

use memchr::memmem;

use super::{HOST_CALL, cost_of};
use crate::context::Context;
use crate::trap::Cause;

/// The result of helpers that found nothing: -1.
const NONE: u64 = u64::MAX;

fn refused(helper: &'static str) -> impl Fn(skytether_common::Error) -> Cause {
    move |error| Cause::Refused { helper, error }
}

/// Writes a length to where the program wants it, if it wants it.
fn put_length(context: &mut Context, to: u64, length: u64) -> Result<(), Cause> {
    if to != 0 {
        context.memory.write(to, 8)?.copy_from_slice(&length.to_le_bytes());
    }
    Ok(())
}

pub(super) fn get(context: &mut Context, [key, key_length, length, ..]: [u64; 5]) -> Result<u64, Cause> {
    context.meter.charge(cost_of(key_length).saturating_add(HOST_CALL))?;
    let key = context.memory.read(key, key_length)?;
    let Some(value) = context.host.get().get(key).map_err(refused("get"))? else {
        put_length(context, length, 0)?;
        return Ok(0);
    };
    // It is not copied, but somebody read it.
    context.meter.work(cost_of(value.len() as u64) / 8)?;
    put_length(context, length, value.len() as u64)?;
    context.memory.map(value)
}

pub(super) fn next(context: &mut Context, [after, after_length, to, room, _]: [u64; 5]) -> Result<u64, Cause> {
    context.meter.charge(cost_of(after_length).saturating_add(HOST_CALL))?;
    let after = context.memory.read(after, after_length)?;
    let Some(key) = context.host.get().next(after).map_err(refused("next"))? else { return Ok(NONE) };
    context.meter.work(cost_of(key.len() as u64))?;
    let fit = key.len().min(usize::try_from(room).unwrap_or(usize::MAX));
    let target = context.memory.write(to, fit as u64)?;
    target.iter_mut().zip(&key).for_each(|(to, from)| *to = *from);
    Ok(key.len() as u64)
}

pub(super) fn put(context: &mut Context, [key, key_length, value, value_length, _]: [u64; 5]) -> Result<u64, Cause> {
    let cost = cost_of(key_length).saturating_add(cost_of(value_length)).saturating_add(HOST_CALL);
    context.meter.charge(cost)?;
    let (key, value) = (context.memory.read(key, key_length)?, context.memory.read(value, value_length)?);
    context.host.get().put(key, value).map_err(refused("put"))?;
    context.meter.check()?;
    Ok(0)
}

pub(super) fn emit(context: &mut Context, [from, length, ..]: [u64; 5]) -> Result<u64, Cause> {
    context.meter.charge(cost_of(length))?;
    let fits = context.output.push(context.memory.read(from, length)?);
    if fits { Ok(0) } else { Err(Cause::OutputLimit { limit: context.output.limit() }) }
}

pub(super) fn print(context: &mut Context, [from, length, ..]: [u64; 5]) -> Result<u64, Cause> {
    context.meter.charge(cost_of(length))?;
    let fits = context.stdout.push(context.memory.read(from, length)?);
    if fits { Ok(0) } else { Err(Cause::StdoutLimit { limit: context.stdout.limit() }) }
}

pub(super) fn argument_count(context: &mut Context, _: [u64; 5]) -> Result<u64, Cause> {
    Ok(context.memory.argument_count() as u64)
}

pub(super) fn argument(context: &mut Context, [index, length, ..]: [u64; 5]) -> Result<u64, Cause> {
    let (address, found) = context.memory.argument(index).unwrap_or((0, 0));
    put_length(context, length, found)?;
    Ok(address)
}

pub(super) fn allocate(context: &mut Context, [length, ..]: [u64; 5]) -> Result<u64, Cause> {
    // The limit first: it bounds the memory, and names the reason if both would end the program.
    let address = context.memory.allocate(length)?;
    context.meter.charge(cost_of(length))?;
    Ok(address)
}

pub(super) fn release(context: &mut Context, [address, ..]: [u64; 5]) -> Result<u64, Cause> {
    if context.memory.release(address)? {
        return Ok(0);
    }
    Err(Cause::Argument { helper: "release", what: "neither get nor alloc returned this address, or it was released before" })
}

pub(super) fn remaining(context: &mut Context, _: [u64; 5]) -> Result<u64, Cause> {
    Ok(context.meter.remaining())
}

pub(super) fn compare(context: &mut Context, [a, a_length, b, b_length, _]: [u64; 5]) -> Result<u64, Cause> {
    context.meter.charge(cost_of(a_length.min(b_length)))?;
    let (a, b) = (context.memory.read(a, a_length)?, context.memory.read(b, b_length)?);
    Ok(match a.cmp(b) {
        Ordering::Less => u64::MAX,
        Ordering::Equal => 0,
        Ordering::Greater => 1,
    })
}

pub(super) fn find(context: &mut Context, [text, text_length, word, word_length, _]: [u64; 5]) -> Result<u64, Cause> {
    context.meter.charge(cost_of(text_length).saturating_add(cost_of(word_length)))?;
    let (text, word) = (context.memory.read(text, text_length)?, context.memory.read(word, word_length)?);
    let found = memmem::find(text, word);
    context.meter.check()?;
    Ok(found.map_or(NONE, |at| at as u64))
}

pub(super) fn copy(context: &mut Context, [to, from, length, ..]: [u64; 5]) -> Result<u64, Cause> {
    context.meter.charge(cost_of(length))?;
    context.memory.copy(to, from, length)?;
    Ok(to)
}

pub(super) fn fill(context: &mut Context, [to, byte, length, ..]: [u64; 5]) -> Result<u64, Cause> {
    context.meter.charge(cost_of(length))?;
    context.memory.write(to, length)?.fill(byte as u8);
    Ok(to)
}

/// Arithmetic of floats, whose bits are in the registers. The operations are numbered in the header.
pub(super) fn float(_: &mut Context, [operation, a, b, ..]: [u64; 5]) -> Result<u64, Cause> {
    let (x, y) = (f64::from_bits(a), f64::from_bits(b));
    Ok(match operation {
        1 => (x + y).to_bits(),
        2 => (x - y).to_bits(),
        3 => (x * y).to_bits(),
        4 => (x / y).to_bits(),
        5 => x.sqrt().to_bits(),
        6 => u64::from(x < y),
        7 => u64::from(x == y),
        // Casts saturate, and what is no number becomes 0.
        8 => (a.cast_signed() as f64).to_bits(),
        9 => (x as i64).cast_unsigned(),
        10 => f64::from(f32::from_bits(a as u32)).to_bits(),
        11 => u64::from((x as f32).to_bits()),
        _ => return Err(Cause::Argument { helper: "float", what: "the operation has no such number" }),
    })
}
