//! Imports that work on one field of many records, as eBPF's helpers do: see [`skytether_ebpf::records`].

use bytes::Bytes;
use skytether_ebpf::records::{self, COLUMN_BYTES, Combine, Condition, Emitted, Field, Summary, Wrong};
use wasmi::{Caller, Error};

use super::{call, cost_of};
use crate::memory::Memory;
use crate::state::State;
use crate::trap::Cause;

type Program<'a, 'b> = Caller<'a, State<'b>>;

/// A cause that does not know its import yet.
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

/// As [`call`], for work that may find its arguments wrong.
fn bulk<R>(program: &mut Program<'_, '_>, import: &'static str, work: impl FnOnce(&mut Memory<'_>, &mut State<'_>) -> Result<R, Failed>) -> Result<R, Error> {
    call(program, import, |memory, state| {
        work(memory, state).map_err(|failed| match failed {
            Failed::Wrong(Wrong(what)) => Cause::Argument { import, what },
            Failed::Cause(cause) => cause,
        })
    })
}

fn field(memory: &Memory<'_>, address: u32) -> Result<Field, Failed> {
    Ok(Field::read(memory.read(address.into(), COLUMN_BYTES as u64)?)?)
}

/// The region of [`Field::region`] that is the value which `get` found last; 0 is the program's memory.
const VALUE: u64 = 1;

/// Bytes of a field: of the program's memory, or of the value, which is not copied for it.
fn bytes_of<'a>(field: &Field, range: (u64, u64), memory: &'a Memory<'_>, value: &'a Bytes) -> Result<&'a [u8], Failed> {
    if field.region() == VALUE { Ok(in_value(range, value)?) } else { Ok(memory.read(range.0, range.1)?) }
}

/// As [`bytes_of`], in the value.
fn in_value((from, length): (u64, u64), value: &Bytes) -> Result<&[u8], Wrong> {
    let from = from - (VALUE << 32);
    let range = from.checked_add(length).and_then(|end| Some(usize::try_from(from).ok()?..usize::try_from(end).ok()?));
    range.and_then(|range| value.get(range)).ok_or(Wrong("the column is longer than the value that get found last"))
}

/// The bitmap at `address`, or `None` if that is 0: then all records are selected.
fn bitmap_of<'a>(field: &Field, memory: &'a Memory<'_>, address: u32) -> Result<Option<&'a [u8]>, Cause> {
    if address == 0 { Ok(None) } else { memory.read(address.into(), field.bitmap_length()).map(Some) }
}

pub(super) fn select(mut program: Program<'_, '_>, column: u32, comparison: u32, constant: u64, bitmap: u32, how: u32) -> Result<u64, Error> {
    bulk(&mut program, "select", |memory, state| {
        let field = field(memory, column)?;
        let condition = Condition::new(comparison.into(), constant)?;
        let combine = Combine::of(how.into())?;
        let (values, to) = (field.values()?, (bitmap.into(), field.bitmap_length()));
        let work = |records| Ok(state.meter.work(records)?);
        if field.region() == VALUE {
            let values = in_value(values, &state.value)?;
            let bitmap = memory.write(to.0, to.1)?;
            return field.select(values, condition, bitmap, combine, work);
        }
        let Some((values, bitmap)) = memory.read_and_write(values, to)? else { return Err(Wrong("the bitmap overlaps the records").into()) };
        field.select(values, condition, bitmap, combine, work)
    })
}

pub(super) fn count(mut program: Program<'_, '_>, column: u32, comparison: u32, constant: u64) -> Result<u64, Error> {
    bulk(&mut program, "count", |memory, state| {
        let field = field(memory, column)?;
        let condition = Condition::new(comparison.into(), constant)?;
        let values = bytes_of(&field, field.values()?, memory, &state.value)?;
        field.count(values, condition, |records| Ok(state.meter.work(records)?))
    })
}

fn aggregate_of(memory: &Memory<'_>, state: &mut State<'_>, column: u32, bitmap: u32) -> Result<Summary, Failed> {
    let field = field(memory, column)?;
    let values = bytes_of(&field, field.values()?, memory, &state.value)?;
    let bitmap = bitmap_of(&field, memory, bitmap)?;
    field.aggregate(values, bitmap, |records| Ok(state.meter.work(records)?))
}

pub(super) fn aggregate(mut program: Program<'_, '_>, column: u32, bitmap: u32, to: u32) -> Result<u64, Error> {
    bulk(&mut program, "aggregate", |memory, state| {
        let found = aggregate_of(memory, state, column, bitmap)?;
        memory.put_words(to.into(), found.words())?;
        Ok(found.count)
    })
}

pub(super) fn sum(mut program: Program<'_, '_>, column: u32, bitmap: u32) -> Result<u64, Error> {
    bulk(&mut program, "sum", |memory, state| Ok(aggregate_of(memory, state, column, bitmap)?.sum))
}

pub(super) fn minmax(mut program: Program<'_, '_>, column: u32, bitmap: u32, to: u32) -> Result<u32, Error> {
    bulk(&mut program, "minmax", |memory, state| {
        let found = aggregate_of(memory, state, column, bitmap)?;
        let (low, high) = found.range.unwrap_or_default();
        memory.put_words(to.into(), [low, high])?;
        Ok(u32::from(found.range.is_some()))
    })
}

pub(super) fn emit_selected(mut program: Program<'_, '_>, column: u32, bitmap: u32) -> Result<u64, Error> {
    bulk(&mut program, "emit_selected", |memory, state| {
        let field = field(memory, column)?;
        let records = bytes_of(&field, field.records()?, memory, &state.value)?;
        let bitmap = bitmap_of(&field, memory, bitmap)?;
        let (output, meter) = (&mut state.output, &mut state.meter);
        let work = |records: u64, bytes| meter.work(records.saturating_add(cost_of(bytes)));
        match field.emit(records, bitmap, |record| output.push(record), work)? {
            Emitted::Records(number) => Ok(number),
            Emitted::TooMuch => Err(Cause::OutputLimit { limit: output.limit() }.into()),
        }
    })
}

pub(super) fn count_bits(mut program: Program<'_, '_>, bitmap: u32, bits: u64) -> Result<u64, Error> {
    bulk(&mut program, "count_bits", |memory, state| {
        state.meter.work(cost_of(bits / 8))?;
        Ok(records::count_bits(memory.read(bitmap.into(), bits.div_ceil(8))?, bits))
    })
}
