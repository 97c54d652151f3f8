//! A program that is ready to run.

use std::sync::Arc;

use bytes::Bytes;
use skytether_common::{Context as _, Error, Kind, Result};
use solana_sbpf::elf::Executable;
use solana_sbpf::program::{BuiltinProgram, FunctionRegistry, SBPFVersion};
use solana_sbpf::verifier::RequisiteVerifier;
use solana_sbpf::vm::Config;

use crate::code::{Code, translate};
use crate::context::Context;
use crate::helpers;
use crate::limits::CALL_DEPTH;
use crate::memory::Image;

/// The most bytes of constants, and the most of variables, that a program may have.
pub(crate) const MAX_DATA: usize = 64 << 20;

/// A program that was checked and, where the processor permits, compiled. Several threads may run it at once.
pub struct Program {
    executable: Executable<Context>,
    origins: Vec<u32>,
    constants: Bytes,
    variables: Bytes,
    variables_length: usize,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (instructions, compiled) = (self.origins.len(), self.is_compiled());
        f.debug_struct("Program").field("instructions", &instructions).field("compiled", &compiled).finish_non_exhaustive()
    }
}

/// What a program begins with, besides its code.
#[derive(Default)]
pub(crate) struct Data {
    /// Mapped to read.
    pub(crate) constants: Vec<u8>,
    /// The first bytes of each run's variables.
    pub(crate) variables: Vec<u8>,
    /// The length of the variables; the others begin as zeros.
    pub(crate) variables_length: usize,
}

impl Program {
    /// A program from instructions alone: no constants, no variables, and it begins at its first instruction.
    ///
    /// Helpers are called by their numbers, functions by their distance, as in an object file.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for malformed code, [`Kind::Unsupported`] for what the machine does not have.
    pub fn from_instructions(text: &[u8]) -> Result<Self> {
        Self::new(text, 0, Data::default())
    }

    pub(crate) fn new(text: &[u8], entry: usize, data: Data) -> Result<Self> {
        let Code { bytes, entry, origins } = translate(text, entry, helpers::name)?;
        let mut loader = BuiltinProgram::new_loader(config());
        helpers::register(&mut loader)?;
        let mut functions = FunctionRegistry::default();
        let internal = |error: &dyn std::fmt::Display| Error::internal(format!("eBPF program: {error}"));
        functions.register_function(entry as u32, *b"entrypoint", entry).map_err(|error| internal(&error))?;
        let executable = Executable::from_text_bytes(&bytes, Arc::new(loader), SBPFVersion::V3, functions).map_err(|error| internal(&error))?;
        executable.verify::<RequisiteVerifier>().map_err(|error| Error::new(Kind::Invalid, error.to_string())).context(|| "eBPF program")?;
        #[cfg(all(target_arch = "x86_64", not(target_os = "windows")))]
        executable.jit_compile().map_err(|error| internal(&error))?;
        let Data { constants, variables, variables_length } = data;
        Ok(Self { executable, origins, constants: constants.into(), variables: variables.into(), variables_length })
    }

    /// Whether it was compiled to the processor's own instructions. If not, it is interpreted.
    #[must_use]
    pub fn is_compiled(&self) -> bool {
        self.executable.get_compiled_program().is_some()
    }

    /// How many bytes of memory the program takes while it does not run.
    #[must_use]
    pub fn memory(&self) -> usize {
        let compiled = self.executable.get_compiled_program().map_or(0, |program| program.mem_size());
        compiled + self.executable.get_ro_section().len() + 4 * self.origins.len() + self.constants.len() + self.variables.len()
    }

    pub(crate) fn executable(&self) -> &Executable<Context> {
        &self.executable
    }

    /// The instruction of the source from which the machine's instruction `at` was made.
    pub(crate) fn origin(&self, at: u64) -> Option<u64> {
        usize::try_from(at).ok().and_then(|at| self.origins.get(at)).map(|origin| u64::from(*origin))
    }

    /// What the memory of each run begins with.
    pub(crate) fn image(&self) -> Image<'_> {
        Image { constants: &self.constants, variables: &self.variables, variables_length: self.variables_length }
    }
}

/// How the machine is set up: metered, with a region for each upper half of an address.
fn config() -> Config {
    Config {
        max_call_depth: CALL_DEPTH,
        aligned_memory_mapping: true,
        enable_address_translation: true,
        enable_instruction_meter: true,
        enabled_sbpf_versions: SBPFVersion::V3..=SBPFVersion::V3,
        ..Config::default()
    }
}
