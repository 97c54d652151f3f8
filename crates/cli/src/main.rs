//! The `skytether` program: see the library of this crate.

use std::process::ExitCode;

/// As in the Python module: see there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    skytether_cli::main()
}
