//! The memory of one run: regions of a 64-bit address space, each checked at every access.
//!
//! A region's number is the upper half of its addresses, so a pointer that leaves its region finds nothing:
//!
//! | region | content | access |
//! |---|---|---|
//! | 0, 1 | nothing, so that null pointers are found | none |
//! | 2 | the stack | read, write |
//! | 3 | constants (`.rodata`) | read |
//! | 4 | variables (`.data`, `.bss`), a copy for each run | read, write |
//! | from 5 | one for each argument | read |
//! | then | one for each mapped value or allocation | read; allocations also write |
//!
//! Values and arguments are mapped where they are, without a copy. All unsafe code about addresses is in this module.
//!
//! Invariants:
//! - A region points to memory that this `Memory` owns, or shares as [`Bytes`], until the region is emptied.
//! - Memory that a region may write is reached through the region's pointer only.

use bytes::Bytes;
use solana_sbpf::error::{EbpfError, StableResult};
use solana_sbpf::memory_region::{AccessType, HostBuffer, MemoryMapping, MemoryRegion};
use solana_sbpf::program::SBPFVersion;
use solana_sbpf::vm::Config;

use crate::limits::{Limits, MAX_ARGUMENTS};
use crate::trap::{Access, Cause};

/// How many regions come before those of arguments.
const FIXED: usize = 5;
/// The number of bits of an address within a region.
const REGION_BITS: u32 = 32;
/// The largest region in bytes.
const MAX_REGION: usize = u32::MAX as usize;
/// The most values and allocations that a run may hold at once, whatever its limits say.
const MAX_SLOTS: usize = 65_536;

/// Zeroed memory that is reached by its address only.
struct Buffer(*mut [u8]);

impl Buffer {
    /// `initial`, and then zeros up to `length`.
    fn new(initial: &[u8], length: usize) -> Self {
        let mut bytes = vec![0; length.max(initial.len())].into_boxed_slice();
        bytes.iter_mut().zip(initial).for_each(|(to, from)| *to = *from);
        Self(Box::into_raw(bytes))
    }

    fn region(&self, address: u64) -> MemoryRegion {
        MemoryRegion::new(self.0, address)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from `Box::into_raw`, and nothing else frees it.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// What a slot holds.
enum Slot {
    Free,
    Value(Bytes),
    Allocation(Buffer),
}

/// What the memory of a run begins with, besides arguments.
pub(crate) struct Image<'a> {
    pub(crate) constants: &'a Bytes,
    /// The first variables; the others begin as zeros.
    pub(crate) variables: &'a [u8],
    pub(crate) variables_length: usize,
}

/// The memory of one run.
pub(crate) struct Memory {
    mapping: MemoryMapping,
    slots: Vec<Slot>,
    free: Vec<usize>,
    arguments: Vec<Bytes>,
    max_slots: usize,
    mapped: usize,
    max_mapped: usize,
    scratch: usize,
    max_scratch: usize,
    // What the fixed regions point to.
    _stack: Buffer,
    _data: Buffer,
    _read_only: Bytes,
}

fn address(region: usize) -> u64 {
    (region as u64) << REGION_BITS
}

fn internal(error: &EbpfError) -> Cause {
    Cause::Internal(error.to_string())
}

/// The cause that a failed access of the machine is for a caller.
pub(crate) fn violation(access: AccessType, address: u64, length: u64) -> Cause {
    let access = if access == AccessType::Store { Access::Store } else { Access::Load };
    Cause::Memory { access, address, length }
}

impl Memory {
    /// The memory of a run that begins with `image`.
    pub(crate) fn new(image: &Image<'_>, arguments: &[Bytes], config: &Config, limits: &Limits) -> Result<Self, Cause> {
        let scratch = image.variables_length;
        if scratch > limits.scratch_bytes {
            return Err(Cause::ScratchLimit { limit: limits.scratch_bytes });
        }
        if arguments.len() > MAX_ARGUMENTS || arguments.iter().any(|argument| argument.len() > MAX_REGION) {
            return Err(Cause::Arguments { count: arguments.len() });
        }
        let (stack, data) = (Buffer::new(&[], config.stack_size()), Buffer::new(image.variables, scratch));
        let (read_only, arguments) = (image.constants.clone(), arguments.to_vec());
        let max_slots = limits.mapped_values.min(MAX_SLOTS);
        let mut regions = vec![
            MemoryRegion::new_empty(address(0)),
            MemoryRegion::new_empty(address(1)),
            stack.region(address(2)),
            MemoryRegion::new(&raw const *read_only, address(3)),
            data.region(address(4)),
        ];
        regions.reserve_exact(arguments.len() + max_slots);
        regions.extend(arguments.iter().enumerate().map(|(i, argument)| MemoryRegion::new(&raw const **argument, address(FIXED + i))));
        regions.extend((0..max_slots).map(|i| MemoryRegion::new_empty(address(FIXED + arguments.len() + i))));
        // SAFETY: the regions point to buffers and shared bytes that `self` keeps until after its last access. Bytes
        // may have any value.
        let mapping = unsafe { MemoryMapping::new(regions, config, SBPFVersion::V3) }.map_err(|error| internal(&error))?;
        Ok(Self {
            mapping,
            slots: Vec::new(),
            free: Vec::new(),
            arguments,
            max_slots,
            mapped: 0,
            max_mapped: limits.mapped_bytes,
            scratch,
            max_scratch: limits.scratch_bytes,
            _stack: stack,
            _data: data,
            _read_only: read_only,
        })
    }

    /// The regions, as the machine accesses them.
    pub(crate) fn mapping(&mut self) -> &mut MemoryMapping {
        &mut self.mapping
    }

    fn range(&self, access: AccessType, address: u64, length: u64) -> Result<HostBuffer, Cause> {
        match self.mapping.map(access, address, length) {
            StableResult::Ok(buffer) => Ok(buffer),
            StableResult::Err(_) => Err(violation(access, address, length)),
        }
    }

    /// `length` bytes at `address`, to read. An empty range has no address.
    pub(crate) fn read(&self, address: u64, length: u64) -> Result<&[u8], Cause> {
        if length == 0 {
            return Ok(&[]);
        }
        let range = self.range(AccessType::Load, address, length)?;
        // SAFETY: the mapping checked that the range lies in a region, whose memory lives as long as `self`. Nothing
        // writes to it meanwhile: writers borrow `self` mutably, and the program waits.
        Ok(unsafe { &*range.ptr() })
    }

    /// `length` bytes at `address`, to write. An empty range has no address.
    pub(crate) fn write(&mut self, address: u64, length: u64) -> Result<&mut [u8], Cause> {
        if length == 0 {
            return Ok(&mut []);
        }
        let range = self.range(AccessType::Store, address, length)?;
        // SAFETY: as in `read`. The region may be written, so this run alone has its memory.
        Ok(unsafe { &mut *range.ptr_mut() })
    }

    /// A range to read and one to write, or `None` if they have bytes in common.
    pub(crate) fn read_and_write(&mut self, from: (u64, u64), to: (u64, u64)) -> Result<Option<(&[u8], &mut [u8])>, Cause> {
        if from.1 == 0 || to.1 == 0 {
            let (read, write) = (from.1 == 0, to.1 == 0);
            return Ok(Some(match (read, write) {
                (true, true) => (&[], &mut []),
                (true, false) => (&[], self.write(to.0, to.1)?),
                _ => (self.read(from.0, from.1)?, &mut []),
            }));
        }
        let source = self.range(AccessType::Load, from.0, from.1)?.ptr();
        let target = self.range(AccessType::Store, to.0, to.1)?.ptr_mut();
        let (first, second) = (source.addr(), target.addr());
        if first < second + target.len() && second < first + source.len() {
            return Ok(None);
        }
        // SAFETY: as in `read` and `write`; the ranges were just found to be disjoint.
        Ok(Some(unsafe { (&*source, &mut *target) }))
    }

    /// Copies within the program's memory; the ranges may overlap.
    pub(crate) fn copy(&mut self, to: u64, from: u64, length: u64) -> Result<(), Cause> {
        if length == 0 {
            return Ok(());
        }
        let source = self.range(AccessType::Load, from, length)?.ptr();
        let target = self.range(AccessType::Store, to, length)?.ptr_mut();
        // SAFETY: both ranges were checked, have `length` bytes and live as long as `self`.
        unsafe { std::ptr::copy(source.cast::<u8>(), target.cast::<u8>(), source.len()) };
        Ok(())
    }

    /// The number of arguments.
    pub(crate) fn argument_count(&self) -> usize {
        self.arguments.len()
    }

    /// Address and length of an argument.
    pub(crate) fn argument(&self, index: u64) -> Option<(u64, u64)> {
        let index = usize::try_from(index).ok()?;
        self.arguments.get(index).map(|argument| (address(FIXED + index), argument.len() as u64))
    }

    /// The number of a free slot.
    fn slot(&mut self) -> Result<usize, Cause> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        if self.slots.len() == self.max_slots {
            return Err(Cause::MappedValues { limit: self.max_slots });
        }
        self.slots.push(Slot::Free);
        Ok(self.slots.len() - 1)
    }

    /// Puts `content` into a free slot, and says at which address the program finds it.
    fn occupy(&mut self, content: Slot) -> Result<u64, Cause> {
        let slot = self.slot()?;
        let region = FIXED + self.arguments.len() + slot;
        let at = address(region);
        let mapped = match &content {
            Slot::Free => MemoryRegion::new_empty(at),
            Slot::Value(value) => MemoryRegion::new(&raw const **value, at),
            Slot::Allocation(buffer) => buffer.region(at),
        };
        // SAFETY: the slot keeps the memory until `release` empties the region. Bytes may have any value.
        unsafe { self.mapping.replace_region(region, mapped) }.map_err(|error| internal(&error))?;
        if let Some(place) = self.slots.get_mut(slot) {
            *place = content;
        }
        Ok(at)
    }

    /// Maps a value to read, without a copy.
    pub(crate) fn map(&mut self, value: Bytes) -> Result<u64, Cause> {
        let length = value.len();
        let total = self.mapped.checked_add(length).filter(|total| *total <= self.max_mapped && length <= MAX_REGION);
        let total = total.ok_or(Cause::MappedBytes { limit: self.max_mapped })?;
        let at = self.occupy(Slot::Value(value))?;
        self.mapped = total;
        Ok(at)
    }

    /// Maps `length` zero bytes to read and write.
    pub(crate) fn allocate(&mut self, length: u64) -> Result<u64, Cause> {
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_REGION);
        let total = length.and_then(|length| self.scratch.checked_add(length)).filter(|total| *total <= self.max_scratch);
        let (Some(length), Some(total)) = (length, total) else { return Err(Cause::ScratchLimit { limit: self.max_scratch }) };
        let at = self.occupy(Slot::Allocation(Buffer::new(&[], length)))?;
        self.scratch = total;
        Ok(at)
    }

    /// Takes back what [`Memory::map`] or [`Memory::allocate`] mapped at `at`. Whether there was such a thing.
    pub(crate) fn release(&mut self, at: u64) -> Result<bool, Cause> {
        let first = FIXED + self.arguments.len();
        let region = usize::try_from(at >> REGION_BITS).unwrap_or(usize::MAX);
        let Some(slot) = region.checked_sub(first).filter(|slot| *slot < self.slots.len() && at == address(region)) else { return Ok(false) };
        let Some(place) = self.slots.get_mut(slot).filter(|place| !matches!(place, Slot::Free)) else { return Ok(false) };
        // The region first, so that it never points to what is gone.
        // SAFETY: an empty region points to nothing.
        unsafe { self.mapping.replace_region(region, MemoryRegion::new_empty(at)) }.map_err(|error| internal(&error))?;
        match std::mem::replace(place, Slot::Free) {
            Slot::Free => {}
            Slot::Value(value) => self.mapped -= value.len(),
            Slot::Allocation(buffer) => self.scratch -= buffer.len(),
        }
        self.free.push(slot);
        Ok(true)
    }
}
