//! The `skytether` program: see the library of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    skytether_cli::main()
}
