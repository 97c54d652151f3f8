//! Object files of clang, as they are before linking: sections, symbols and relocations.
//!
//! | in the object | in the program |
//! |---|---|
//! | `.text` | the code |
//! | sections to read (`.rodata*`) | region 3, one after the other |
//! | sections to write (`.data*`, `.bss*`) | region 4, a copy for each run |
//! | `R_BPF_64_64` | the address of a constant or a variable, in an instruction |
//! | `R_BPF_64_ABS64` | the same, in data |
//! | `R_BPF_64_32` | the distance of a function, or a helper that is called by name |
//! | sections that are not loaded (BTF, DWARF) | ignored, but for relocations of types (CO-RE) |
//!
//! All else is refused, by name.

use std::collections::BTreeMap;

use object::elf;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionFlags, SymbolSection};
use skytether_common::{Error, Result};
use solana_sbpf::ebpf;

use crate::code::{Instruction, MAX_INSTRUCTIONS, SLOT};
use crate::helpers;
use crate::program::{Data, MAX_DATA, Program};

/// The largest object file, in bytes.
const MAX_OBJECT: usize = 64 << 20;
/// The most sections, symbols or relocations.
const MAX_ENTRIES: usize = 1 << 20;
/// The longest name in bytes. Names may overlap, so it bounds the time that their search takes.
const MAX_NAME: usize = 4096;
/// How far apart sections are put in memory.
const ALIGNMENT: usize = 64;
/// Relocations that the crate `object` has no names for.
const ABSOLUTE_64: u32 = 2;
const CONSTANTS: u64 = 3 << 32;
const VARIABLES: u64 = 4 << 32;

type File<'a> = ElfFile64<'a, LittleEndian>;

fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::unsupported(format!("eBPF object: {what}"))
}

fn invalid(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("eBPF object: {what}"))
}

fn broken(error: object::Error) -> Error {
    invalid("it is damaged").with_source(error)
}

/// A name that is not too long.
fn checked(name: object::Result<&[u8]>) -> Result<&[u8]> {
    let name = name.map_err(broken)?;
    if name.len() > MAX_NAME {
        return Err(unsupported(format_args!("a name has {} bytes, and at most {MAX_NAME} can be loaded", name.len())));
    }
    Ok(name)
}

/// A name out of the object, for messages.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(60).collect()
}

/// Loads an object file that clang wrote (`clang -target bpf -mcpu=v3 -O2 -c`).
///
/// The program begins at the function `main`, or at the only global function.
///
/// # Errors
/// `Invalid` for what is no such object, `Unsupported` for what the machine does not have; the text names it.
pub fn load(object: &[u8]) -> Result<Program> {
    load_entry(object, None)
}

/// [`load`], for a program that begins at the function `entry`.
///
/// # Errors
/// As [`load`], and `NotFound` if the object has no such function.
pub fn load_entry(object: &[u8], entry: Option<&str>) -> Result<Program> {
    if object.len() > MAX_OBJECT {
        return Err(unsupported(format_args!("it has {} bytes, and at most {MAX_OBJECT} can be loaded", object.len())));
    }
    let file = File::parse(object).map_err(|error| invalid("it is no 64-bit little-endian ELF file").with_source(error))?;
    let header = file.elf_header();
    if header.e_machine.get(LittleEndian) != elf::EM_BPF || header.e_type.get(LittleEndian) != elf::ET_REL {
        return Err(invalid("it is no relocatable object for eBPF; compile with `clang -target bpf -mcpu=v3 -O2 -c`"));
    }
    let mut loader = Loader::new(&file)?;
    loader.place_sections()?;
    loader.relocate()?;
    let entry = loader.entry(entry)?;
    let Loader { text, data, .. } = loader;
    Program::new(&text, entry, data)
}

/// Where a section went.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Text,
    Constants(usize),
    Variables(usize),
}

struct Loader<'a, 'd> {
    file: &'a File<'d>,
    places: BTreeMap<usize, Place>,
    text: Vec<u8>,
    data: Data,
}

/// Refuses sections of the kernel's loaders, by name.
fn check_name(name: &[u8]) -> Result<()> {
    if name == b".maps" || name == b"maps" || name.starts_with(b"maps/") {
        return Err(unsupported("it defines maps; this machine has none, use the helpers st_get, st_put and st_alloc"));
    }
    Ok(())
}

/// Refuses BTF that asks the loader to change instructions (CO-RE).
fn check_type_relocations(contents: &[u8]) -> Result<()> {
    let word = |at: usize| contents.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes);
    // Header: magic and version, its length, then offset and length of three tables; the third is that of CO-RE.
    const TABLES: usize = 32;
    if word(4) as usize >= TABLES && word(28) > 0 {
        return Err(unsupported("it has relocations of types (BTF, CO-RE), which only kernels can resolve; compile without preserve_access_index"));
    }
    Ok(())
}

impl<'a, 'd> Loader<'a, 'd> {
    fn new(file: &'a File<'d>) -> Result<Self> {
        let (sections, symbols) = (file.sections().count(), file.symbols().count());
        if sections > MAX_ENTRIES || symbols > MAX_ENTRIES {
            return Err(unsupported(format_args!("it has {sections} sections and {symbols} symbols, and at most {MAX_ENTRIES} can be loaded")));
        }
        Ok(Self { file, places: BTreeMap::new(), text: Vec::new(), data: Data::default() })
    }

    fn place_sections(&mut self) -> Result<()> {
        for section in self.file.sections() {
            let name = checked(section.name_bytes())?;
            check_name(name)?;
            if name == b".BTF.ext" {
                check_type_relocations(section.data().map_err(broken)?)?;
            }
            let SectionFlags::Elf { sh_flags } = section.flags() else { continue };
            let flags = sh_flags;
            let size = usize::try_from(section.size()).map_err(|_| invalid("a section is longer than memory"))?;
            if flags & u64::from(elf::SHF_ALLOC) == 0 || size == 0 {
                continue;
            }
            if flags & u64::from(elf::SHF_TLS) != 0 {
                return Err(unsupported(format_args!("section {} is local to threads, and there are none", shown(name))));
            }
            let place = if flags & u64::from(elf::SHF_EXECINSTR) != 0 {
                self.place_text(name, section.data().map_err(broken)?)?
            } else {
                self.place_data(name, flags & u64::from(elf::SHF_WRITE) != 0, section.data().map_err(broken)?, size)?
            };
            self.places.insert(section.index().0, place);
        }
        if self.text.is_empty() {
            return Err(invalid("it has no code in .text"));
        }
        Ok(())
    }

    fn place_text(&mut self, name: &[u8], contents: &[u8]) -> Result<Place> {
        if name != b".text" {
            return Err(unsupported(format_args!("section {} has code; put all functions into .text", shown(name))));
        }
        if !self.text.is_empty() || contents.len() > MAX_INSTRUCTIONS * SLOT {
            return Err(unsupported(format_args!("it has two sections .text, or more than {MAX_INSTRUCTIONS} instructions")));
        }
        self.text = contents.to_vec();
        Ok(Place::Text)
    }

    /// `contents` is empty for sections of zeros, which have a size only.
    fn place_data(&mut self, name: &[u8], writable: bool, contents: &[u8], size: usize) -> Result<Place> {
        let Data { constants, variables, variables_length } = &mut self.data;
        let at = if writable { *variables_length } else { constants.len() }.next_multiple_of(ALIGNMENT);
        let Some(end) = at.checked_add(size).filter(|end| *end <= MAX_DATA) else {
            return Err(unsupported(format_args!("section {} has {size} bytes, and at most {MAX_DATA} can be loaded", shown(name))));
        };
        if contents.len() > size {
            return Err(invalid(format_args!("section {} is longer than its size", shown(name))));
        }
        let bytes = if writable { &mut *variables } else { &mut *constants };
        // Zeros at the end of variables are added for each run.
        if !contents.is_empty() || !writable {
            bytes.resize(at, 0);
            bytes.extend_from_slice(contents);
        }
        if writable {
            *variables_length = end;
            return Ok(Place::Variables(at));
        }
        constants.resize(end, 0);
        Ok(Place::Constants(at))
    }

    fn relocate(&mut self) -> Result<()> {
        let mut count = 0;
        for section in self.file.sections() {
            let Some(place) = self.places.get(&section.index().0).copied() else { continue };
            for (offset, relocation) in section.relocations() {
                count += 1;
                if count > MAX_ENTRIES {
                    return Err(unsupported(format_args!("it has more than {MAX_ENTRIES} relocations")));
                }
                let RelocationFlags::Elf { r_type } = relocation.flags() else { return Err(invalid("a relocation has no type")) };
                let RelocationTarget::Symbol(symbol) = relocation.target() else { return Err(invalid("a relocation has no symbol")) };
                let symbol = self.file.symbol_by_index(symbol).map_err(broken)?;
                let at = usize::try_from(offset).map_err(|_| invalid("a relocation is out of its section"))?;
                match (r_type, place) {
                    (elf::R_BPF_NONE, _) => {}
                    (elf::R_BPF_64_64, Place::Text) => self.relocate_load(at, &symbol)?,
                    (elf::R_BPF_64_32, Place::Text) => self.relocate_call(at, &symbol)?,
                    (ABSOLUTE_64, Place::Constants(_) | Place::Variables(_)) => self.relocate_data(place, at, &symbol)?,
                    _ => {
                        let section = shown(checked(section.name_bytes())?);
                        return Err(unsupported(format_args!("a relocation of {section} has the type {r_type}, which can't be resolved")));
                    }
                }
            }
        }
        Ok(())
    }

    /// The address of what a symbol names: a constant or a variable.
    fn address_of<'s, S: ObjectSymbol<'s>>(&self, symbol: &S) -> Result<u64> {
        let name = shown(checked(symbol.name_bytes())?);
        let place = match symbol.section() {
            SymbolSection::Section(index) => self.places.get(&index.0).copied(),
            SymbolSection::Common => return Err(unsupported(format_args!("{name} is a common symbol; compile with -fno-common"))),
            SymbolSection::Undefined => return Err(unsupported(format_args!("{name} is not defined, and there is nothing to link with"))),
            _ => None,
        };
        match place {
            Some(Place::Constants(at)) => Ok((CONSTANTS + at as u64).wrapping_add(symbol.address())),
            Some(Place::Variables(at)) => Ok((VARIABLES + at as u64).wrapping_add(symbol.address())),
            Some(Place::Text) => Err(unsupported("it takes the address of a function; call functions by name")),
            None => Err(unsupported(format_args!("{name} is in a section that is not loaded"))),
        }
    }

    fn instruction(&self, at: usize) -> Result<Instruction> {
        let slot = self.text.get(at..).and_then(|rest| rest.first_chunk::<SLOT>()).filter(|_| at.is_multiple_of(SLOT));
        slot.map(|slot| Instruction::read(*slot)).ok_or_else(|| invalid("a relocation is out of the code"))
    }

    fn put(&mut self, at: usize, instruction: Instruction) {
        if let Some(slot) = self.text.get_mut(at..at + SLOT) {
            slot.copy_from_slice(&instruction.bytes());
        }
    }

    /// The address in an instruction that loads 64 bits. What is there is added to it.
    fn relocate_load<'s, S: ObjectSymbol<'s>>(&mut self, at: usize, symbol: &S) -> Result<()> {
        let address = self.address_of(symbol)?;
        let (mut low, mut high) = (self.instruction(at)?, self.instruction(at.saturating_add(SLOT))?);
        if low.opcode != ebpf::LD_DW_IMM {
            return Err(invalid("a relocation of an address is not at an instruction that loads one"));
        }
        let address = address.wrapping_add_signed(i64::from(low.immediate));
        low.immediate = (address as u32).cast_signed();
        high.immediate = ((address >> 32) as u32).cast_signed();
        self.put(at, low);
        self.put(at + SLOT, high);
        Ok(())
    }

    /// The distance in a call. What is there counts instructions from the symbol, less one.
    fn relocate_call<'s, S: ObjectSymbol<'s>>(&mut self, at: usize, symbol: &S) -> Result<()> {
        let mut call = self.instruction(at)?;
        let name = checked(symbol.name_bytes())?;
        if call.opcode != ebpf::CALL_IMM {
            return Err(invalid("a relocation of a call is not at a call"));
        }
        match symbol.section() {
            SymbolSection::Undefined => {
                let helper = helpers::number(name).ok_or_else(|| unsupported(format_args!("{} is called and not defined", shown(name))))?;
                call.immediate = helper;
                // The kind of call that helpers have.
                call.registers &= 0x0f;
            }
            SymbolSection::Section(index) if self.places.get(&index.0) == Some(&Place::Text) => {
                let target = i64::try_from(symbol.address() / SLOT as u64).unwrap_or(i64::MAX).saturating_add(i64::from(call.immediate) + 1);
                let distance = target.saturating_sub((at / SLOT) as i64 + 1);
                call.immediate = i32::try_from(distance).map_err(|_| invalid(format_args!("{} is out of the code", shown(name))))?;
                call.registers = call.registers & 0x0f | 0x10;
            }
            _ => return Err(invalid(format_args!("{} is called and is no function of .text", shown(name)))),
        }
        self.put(at, call);
        Ok(())
    }

    /// An address in data. What is there is added to it.
    fn relocate_data<'s, S: ObjectSymbol<'s>>(&mut self, place: Place, at: usize, symbol: &S) -> Result<()> {
        let address = self.address_of(symbol)?;
        let (bytes, start) = match place {
            Place::Constants(start) => (&mut self.data.constants, start),
            Place::Variables(start) => (&mut self.data.variables, start),
            Place::Text => return Err(invalid("a relocation of data is in code")),
        };
        let slot = start.checked_add(at).and_then(|at| bytes.get_mut(at..)).and_then(|rest| rest.first_chunk_mut::<8>());
        let slot = slot.ok_or_else(|| invalid("a relocation is out of its section"))?;
        *slot = u64::from_le_bytes(*slot).wrapping_add(address).to_le_bytes();
        Ok(())
    }

    /// The instruction at which the program begins.
    fn entry(&self, wanted: Option<&str>) -> Result<usize> {
        let in_text = |symbol: &object::read::elf::ElfSymbol64<'d, 'a, LittleEndian>| match symbol.section() {
            SymbolSection::Section(index) => self.places.get(&index.0) == Some(&Place::Text),
            _ => false,
        };
        let mut global = Vec::new();
        for symbol in self.file.symbols().filter(|symbol| symbol.is_global() && in_text(symbol)) {
            let name = checked(symbol.name_bytes())?;
            if name == wanted.unwrap_or("main").as_bytes() {
                return start(name, symbol.address());
            }
            global.push((name, symbol.address()));
        }
        match (wanted, &global[..]) {
            (Some(wanted), _) => Err(Error::not_found(format!("eBPF object: it has no global function {wanted:?}"))),
            (None, [(name, address)]) => start(name, *address),
            (None, []) => Err(invalid("it has no global function; make main one")),
            (None, some) => {
                let names: Vec<String> = some.iter().take(5).map(|(name, _)| shown(name)).collect();
                Err(invalid(format_args!("it has several global functions and none is main: {}; choose one", names.join(", "))))
            }
        }
    }
}

fn start(name: &[u8], address: u64) -> Result<usize> {
    let start = usize::try_from(address).ok().filter(|address| address.is_multiple_of(SLOT));
    start.map(|address| address / SLOT).ok_or_else(|| invalid(format_args!("{} begins within an instruction", shown(name))))
}
