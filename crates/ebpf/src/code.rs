//! Instructions: what this machine refuses, and how it is told about the rest.
//!
//! clang and the machine differ in two points, so [`translate`] rewrites programs:
//! - Helpers: clang writes the helper's number, the machine looks up a hash of its name.
//! - 32-bit addition, subtraction and multiplication: eBPF clears the upper half of the register, the machine fills it
//!   with the sign. A move of the lower half follows each of them, and jumps are counted again.
//!
//! Opcodes, registers and constant operands are checked by the machine's own verifier afterwards.

use skytether_common::{Error, Result};
use solana_sbpf::ebpf;

/// How many instructions a program may have (in units of 8 bytes), before and after it is rewritten.
pub(crate) const MAX_INSTRUCTIONS: usize = 65_536;
/// The length of an instruction in bytes.
pub(crate) const SLOT: usize = 8;
/// The second half of a 16-byte instruction.
const HALF: u32 = u32::MAX;

/// One instruction of 8 bytes.
#[derive(Clone, Copy)]
pub(crate) struct Instruction {
    pub(crate) opcode: u8,
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

impl Instruction {
    pub(crate) fn read(bytes: [u8; SLOT]) -> Self {
        let [opcode, registers, offset_low, offset_high, a, b, c, d] = bytes;
        Self { opcode, registers, offset: i16::from_le_bytes([offset_low, offset_high]), immediate: i32::from_le_bytes([a, b, c, d]) }
    }

    pub(crate) fn bytes(self) -> [u8; SLOT] {
        let ([low, high], [a, b, c, d]) = (self.offset.to_le_bytes(), self.immediate.to_le_bytes());
        [self.opcode, self.registers, low, high, a, b, c, d]
    }

    pub(crate) fn source(self) -> u8 {
        self.registers >> 4
    }

    fn class(self) -> u8 {
        self.opcode & 0x07
    }

    fn is_jump(self) -> bool {
        matches!(self.class(), ebpf::BPF_JMP64 | ebpf::BPF_JMP32) && !matches!(self.opcode, ebpf::CALL_IMM | ebpf::CALL_REG | ebpf::EXIT)
    }

    /// Whether the machine extends the sign of the result, where eBPF clears the upper half.
    fn extends_sign(self) -> bool {
        matches!(self.opcode, ebpf::ADD32_IMM | ebpf::ADD32_REG | ebpf::SUB32_IMM | ebpf::SUB32_REG | ebpf::MUL32_IMM | ebpf::MUL32_REG)
    }

    /// A move of the lower half of this instruction's destination to itself, which clears the upper half.
    fn clear_upper_half(self) -> Self {
        let register = self.registers & 0x0f;
        Self { opcode: ebpf::MOV32_REG, registers: register << 4 | register, offset: 0, immediate: 0 }
    }
}

/// A program as the machine takes it.
pub(crate) struct Code {
    pub(crate) bytes: Vec<u8>,
    /// The first instruction that is executed.
    pub(crate) entry: usize,
    /// For each instruction, the one of the source that it came from.
    pub(crate) origins: Vec<u32>,
}

fn refuse<T>(at: usize, what: impl AsRef<str>) -> Result<T> {
    Err(Error::unsupported(format!("eBPF program: instruction {at}: {}", what.as_ref())))
}

fn invalid<T>(at: usize, what: impl AsRef<str>) -> Result<T> {
    Err(Error::invalid(format!("eBPF program: instruction {at}: {}", what.as_ref())))
}

/// The instructions of `text`, which has whole ones.
fn instructions(text: &[u8]) -> Result<Vec<Instruction>> {
    let (slots, rest) = text.as_chunks::<SLOT>();
    if !rest.is_empty() {
        return Err(Error::invalid(format!("eBPF program: its code has {} bytes, and instructions have 8 each", text.len())));
    }
    if slots.is_empty() {
        return Err(Error::invalid("eBPF program: it has no instructions"));
    }
    if slots.len() > MAX_INSTRUCTIONS {
        return Err(Error::unsupported(format!("eBPF program: {} instructions, and at most {MAX_INSTRUCTIONS} can be loaded", slots.len())));
    }
    Ok(slots.iter().map(|slot| Instruction::read(*slot)).collect())
}

/// Refuses what belongs to kernels or to later versions of the instruction set, by name.
fn check(at: usize, instruction: Instruction) -> Result<()> {
    let (opcode, mode) = (instruction.opcode, instruction.opcode & 0xe0);
    match instruction.class() {
        ebpf::BPF_LD if opcode == ebpf::LD_DW_IMM && instruction.source() != 0 => {
            refuse(at, "it refers to a map; this machine has no maps, use the helpers get, put and alloc")
        }
        ebpf::BPF_LD if mode == 0x20 || mode == 0x40 => refuse(at, "it loads from a network packet, and there is none"),
        ebpf::BPF_LDX if mode == 0x80 => refuse(at, "it loads with sign extension; compile with -mcpu=v3"),
        ebpf::BPF_STX if mode == 0xc0 => refuse(at, "it is atomic; a program runs alone and needs no atomic operations"),
        ebpf::BPF_ALU32_LOAD | ebpf::BPF_ALU64_STORE if instruction.offset != 0 => refuse(at, "it is of a later instruction set; compile with -mcpu=v3"),
        _ if opcode == ebpf::CALL_REG => refuse(at, "it calls a function by its address; call functions by name"),
        _ => Ok(()),
    }
}

/// Rewrites `text` for the machine. `entry` is the instruction at which the program begins, `helper` gives the name of
/// the helper with a number.
///
/// # Errors
/// Instructions that this machine refuses, unknown helpers, jumps and calls that leave the program.
pub(crate) fn translate(text: &[u8], entry: usize, helper: fn(i32) -> Option<&'static str>) -> Result<Code> {
    let source = instructions(text)?;
    // Where each instruction goes, with the length of the result at the end.
    let mut places = Vec::with_capacity(source.len() + 1);
    let mut next: u32 = 0;
    while let Some(instruction) = source.get(places.len()) {
        let at = places.len();
        check(at, *instruction)?;
        places.push(next);
        if instruction.opcode == ebpf::LD_DW_IMM {
            if source.get(at + 1).is_none_or(|second| second.opcode != 0 || second.registers != 0 || second.offset != 0) {
                return invalid(at, "it loads 64 bits, and its second half is not one");
            }
            places.push(HALF);
            next += 2;
        } else {
            next += 1 + u32::from(instruction.extends_sign());
        }
    }
    if next as usize > MAX_INSTRUCTIONS {
        return Err(Error::unsupported(format!("eBPF program: it takes {next} instructions, and at most {MAX_INSTRUCTIONS} can be loaded")));
    }
    let place = |target: i64| usize::try_from(target).ok().and_then(|target| places.get(target)).copied().filter(|place| *place != HALF);
    let Some(entry) = place(entry as i64) else {
        return Err(Error::invalid(format!("eBPF program: it begins at instruction {entry}, which is none")));
    };
    let mut code = Code { bytes: Vec::with_capacity(next as usize * SLOT), entry: entry as usize, origins: Vec::with_capacity(next as usize) };
    for (at, mut instruction) in source.iter().copied().enumerate() {
        let here = places.get(at).copied().unwrap_or(HALF);
        if here != HALF {
            if instruction.is_jump() {
                let target = at as i64 + 1 + i64::from(instruction.offset);
                let Some(target) = place(target) else { return invalid(at, format!("it jumps to instruction {target}, out of the program")) };
                let Ok(offset) = i16::try_from(i64::from(target) - i64::from(here) - 1) else { return refuse(at, "it jumps too far") };
                instruction.offset = offset;
            }
            if instruction.opcode == ebpf::CALL_IMM {
                instruction = call(at, instruction, here, helper, place)?;
            }
        }
        code.bytes.extend_from_slice(&instruction.bytes());
        code.origins.push(at as u32);
        if here != HALF && instruction.extends_sign() {
            code.bytes.extend_from_slice(&instruction.clear_upper_half().bytes());
            code.origins.push(at as u32);
        }
    }
    Ok(code)
}

/// A call as the machine takes it: a helper by the hash of its name, a function by its new distance.
fn call(
    at: usize,
    mut instruction: Instruction,
    here: u32,
    helper: fn(i32) -> Option<&'static str>,
    place: impl Fn(i64) -> Option<u32>,
) -> Result<Instruction> {
    match instruction.source() {
        0 => {
            let Some(name) = helper(instruction.immediate) else {
                return refuse(at, format!("it calls the unknown helper {}; skytether_ebpf.h has those that exist", instruction.immediate));
            };
            instruction.immediate = ebpf::hash_symbol_name(name.as_bytes()) as i32;
        }
        1 => {
            let target = at as i64 + 1 + i64::from(instruction.immediate);
            let Some(target) = place(target) else { return invalid(at, format!("it calls instruction {target}, out of the program")) };
            // Both are below MAX_INSTRUCTIONS.
            instruction.immediate = (i64::from(target) - i64::from(here) - 1) as i32;
        }
        other => return refuse(at, format!("it is a call of kind {other}; only helpers and functions of the program can be called")),
    }
    Ok(instruction)
}
