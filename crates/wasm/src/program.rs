//! A module that was checked and translated.

use std::panic::{AssertUnwindSafe, catch_unwind};

use skytether_common::{Context as _, Error, Kind, Result};
use wasmi::{CompilationMode, Config, EnforcedLimits, Engine, ExternType, Module, ValType};

use crate::imports;
use crate::limits::{CALL_DEPTH, MAX_MEMORY, MAX_MODULE, STACK_BYTES};

/// What every module begins with.
const MAGIC: &[u8] = b"\0asm";
/// A page of memory in bytes.
const PAGE: u64 = 64 << 10;
/// The name of the exported memory.
pub(crate) const MEMORY: &str = "memory";
/// The name of the exported function at which a program begins.
pub(crate) const MAIN: &str = "main";

/// Whether a program is a WebAssembly module, by its first bytes.
#[must_use]
pub fn is_module(program: &[u8]) -> bool {
    program.starts_with(MAGIC)
}

/// A program that was checked and translated. Several threads may run it at once.
pub struct Program {
    // An engine of its own: code of a module lives as long as the engine does.
    engine: Engine,
    module: Module,
    memory_bytes: u64,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("imports", &self.module.imports().count()).finish_non_exhaustive()
    }
}

/// Checks and translates a module.
///
/// # Errors
/// [`Kind::Invalid`] for a module that is malformed or too large, or uses instructions that drives do not have;
/// [`Kind::Unsupported`] for imports that they do not have.
pub fn load(module: &[u8]) -> Result<Program> {
    checked(module).context(|| "WebAssembly program")
}

fn checked(bytes: &[u8]) -> Result<Program> {
    if !is_module(bytes) {
        return Err(Error::invalid("it does not begin as a module does; compile it with `clang --target=wasm32`"));
    }
    if bytes.len() > MAX_MODULE {
        return Err(Error::invalid(format!("the module has {} bytes, the limit is {MAX_MODULE}", bytes.len())));
    }
    let engine = Engine::new(&config());
    // wasmi 2.0 panics over a code section of no functions.
    let translated = catch_unwind(AssertUnwindSafe(|| Module::new(&engine, bytes)));
    let module = translated.map_err(|_| Error::invalid("the machine cannot read the module"))?;
    let module = module.map_err(|error| Error::new(Kind::Invalid, error.to_string()))?;
    for import in module.imports() {
        imports::check(import.module(), import.name(), import.ty())?;
    }
    let memory_bytes = check_exports(&module)?;
    Ok(Program { engine, module, memory_bytes })
}

/// With how many bytes of memory the module begins.
fn check_exports(module: &Module) -> Result<u64> {
    match module.get_export(MAIN) {
        Some(ExternType::Func(main)) if main.params().is_empty() && main.results() == [ValType::I32] => {}
        Some(_) => return Err(Error::invalid("its export main is no function without parameters that returns an i32; write ST_MAIN")),
        None => return Err(Error::invalid("it exports no function main; write ST_MAIN, and link with --no-entry")),
    }
    let Some(ExternType::Memory(memory)) = module.get_export(MEMORY) else {
        return Err(Error::invalid("it exports no memory of the name memory"));
    };
    let bytes = memory.minimum().saturating_mul(PAGE);
    if bytes > MAX_MEMORY as u64 {
        return Err(Error::invalid(format!("it begins with {bytes} bytes of memory; the limit is {MAX_MEMORY}")));
    }
    Ok(bytes)
}

/// How the machine is set up: metered, translated at once, and with the instructions that clang uses by default.
fn config() -> Config {
    let mut config = Config::default();
    config
        .consume_fuel(true)
        .compilation_mode(CompilationMode::Eager)
        // A start function would run before there are exports, and so outside of a run's bounds.
        .allow_start_fn(false)
        .ignore_custom_sections(true)
        .enforced_limits(EnforcedLimits::strict())
        .set_max_recursion_depth(CALL_DEPTH)
        .set_max_stack_height(STACK_BYTES)
        .set_max_cached_stacks(1)
        .wasm_multi_memory(false)
        .wasm_tail_call(false);
    config
}

impl Program {
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub(crate) fn module(&self) -> &Module {
        &self.module
    }
}
