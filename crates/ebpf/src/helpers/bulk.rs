//! Helpers that work on one field of many records.
//!
//! They charge one instruction per record, in steps between which they look at the deadline: see [`crate::records`].

use super::cost_of;
use crate::context::Context;
use crate::memory::Memory;
use crate::records::{self, COLUMN_BYTES, Combine, Condition, Emitted, Field, Summary, Wrong};
use crate::trap::Cause;

/// A cause that does not know its helper yet.
enum Failed {
    Wrong(Wrong),
    Cause(Cause),
}

impl From<Wrong> for Failed {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

impl From<Cause> for Failed {
    fn from(cause: Cause) -> Self {
        Self::Cause(cause)
    }
}

fn named<T>(helper: &'static str, result: Result<T, Failed>) -> Result<T, Cause> {
    result.map_err(|failed| match failed {
        Failed::Wrong(Wrong(what)) => Cause::Argument { helper, what },
        Failed::Cause(cause) => cause,
    })
}

fn field(memory: &Memory, address: u64) -> Result<Field, Failed> {
    Ok(Field::read(memory.read(address, COLUMN_BYTES as u64)?)?)
}

/// The bitmap at `address`, or `None` if that is 0: then all records are selected.
fn bitmap_of<'a>(field: &Field, memory: &'a Memory, address: u64) -> Result<Option<&'a [u8]>, Cause> {
    if address == 0 { Ok(None) } else { memory.read(address, field.bitmap_length()).map(Some) }
}

fn select_of(context: &mut Context, [column, operation, constant, bitmap, how]: [u64; 5]) -> Result<u64, Failed> {
    let field = field(&context.memory, column)?;
    let condition = Condition::new(operation, constant)?;
    let combine = Combine::of(how)?;
    let ranges = context.memory.read_and_write(field.values()?, (bitmap, field.bitmap_length()))?;
    let Some((values, bitmap)) = ranges else { return Err(Wrong("the bitmap overlaps the records").into()) };
    field.select(values, condition, bitmap, combine, |records| Ok(context.meter.work(records)?))
}

pub(super) fn select(context: &mut Context, arguments: [u64; 5]) -> Result<u64, Cause> {
    named("select", select_of(context, arguments))
}

fn count_of(context: &mut Context, [column, operation, constant, ..]: [u64; 5]) -> Result<u64, Failed> {
    let field = field(&context.memory, column)?;
    let condition = Condition::new(operation, constant)?;
    let (from, length) = field.values()?;
    field.count(context.memory.read(from, length)?, condition, |records| Ok(context.meter.work(records)?))
}

pub(super) fn count(context: &mut Context, arguments: [u64; 5]) -> Result<u64, Cause> {
    named("count", count_of(context, arguments))
}

fn aggregate_of(context: &mut Context, column: u64, bitmap: u64) -> Result<Summary, Failed> {
    let field = field(&context.memory, column)?;
    let (from, length) = field.values()?;
    let values = context.memory.read(from, length)?;
    let bitmap = bitmap_of(&field, &context.memory, bitmap)?;
    field.aggregate(values, bitmap, |records| Ok(context.meter.work(records)?))
}

fn put_words<const N: usize>(memory: &mut Memory, to: u64, words: [u64; N]) -> Result<(), Cause> {
    let target = memory.write(to, 8 * N as u64)?;
    target.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    Ok(())
}

pub(super) fn aggregate(context: &mut Context, [column, bitmap, to, ..]: [u64; 5]) -> Result<u64, Cause> {
    let found = named("aggregate", aggregate_of(context, column, bitmap))?;
    put_words(&mut context.memory, to, found.words())?;
    Ok(found.count)
}

pub(super) fn sum(context: &mut Context, [column, bitmap, ..]: [u64; 5]) -> Result<u64, Cause> {
    Ok(named("sum", aggregate_of(context, column, bitmap))?.sum)
}

pub(super) fn minmax(context: &mut Context, [column, bitmap, to, ..]: [u64; 5]) -> Result<u64, Cause> {
    let found = named("minmax", aggregate_of(context, column, bitmap))?;
    let (low, high) = found.range.unwrap_or_default();
    put_words(&mut context.memory, to, [low, high])?;
    Ok(u64::from(found.range.is_some()))
}

fn emit_of(context: &mut Context, column: u64, bitmap: u64) -> Result<u64, Failed> {
    let field = field(&context.memory, column)?;
    let (from, length) = field.records()?;
    let records = context.memory.read(from, length)?;
    let bitmap = bitmap_of(&field, &context.memory, bitmap)?;
    let (output, meter) = (&mut context.output, &mut context.meter);
    let emitted = field.emit(records, bitmap, |record| output.push(record), |records, bytes| meter.work(records.saturating_add(cost_of(bytes))))?;
    match emitted {
        Emitted::Records(number) => Ok(number),
        Emitted::TooMuch => Err(Cause::OutputLimit { limit: output.limit() }.into()),
    }
}

pub(super) fn emit_selected(context: &mut Context, [column, bitmap, ..]: [u64; 5]) -> Result<u64, Cause> {
    named("emit_selected", emit_of(context, column, bitmap))
}

pub(super) fn count_bits(context: &mut Context, [bitmap, bits, ..]: [u64; 5]) -> Result<u64, Cause> {
    context.meter.work(cost_of(bits / 8))?;
    let bytes = context.memory.read(bitmap, bits.div_ceil(8))?;
    Ok(records::count_bits(bytes, bits))
}
