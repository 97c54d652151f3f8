//! WebAssembly programs of strangers: modules. What is loaded runs within small limits.

use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use skytether_common::Kind;
use skytether_wasm::{Cause, Limits, load, run};

use crate::ebpf::Values;

pub(crate) fn modules() -> Vec<Vec<u8>> {
    let modules: [&[u8]; 4] = [
        include_bytes!("../../crates/wasm/tests/modules/filter.wasm"),
        include_bytes!("../../crates/wasm/tests/modules/words.wasm"),
        include_bytes!("../../crates/wasm/tests/modules/bulk.wasm"),
        include_bytes!("../../crates/wasm/tests/modules/mixed.wasm"),
    ];
    modules.map(<[u8]>::to_vec).to_vec()
}

/// Loads a module and runs it. Whether it could be loaded.
pub(crate) fn module_load(data: &[u8]) -> bool {
    let program = match load(data) {
        Ok(program) => program,
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Invalid | Kind::Unsupported), "{error}");
            return false;
        }
    };
    let limits = Limits { fuel: 20_000, memory_bytes: 1 << 20, output_bytes: 1000, stdout_bytes: 100, deadline: None };
    let arguments = [Bytes::from_static(b"key"), Bytes::from_static(&[0; 8])];
    match run(&program, &arguments, &mut Values, &limits, &AtomicBool::new(false)) {
        Ok(outcome) => assert!(outcome.output.len() <= 1000 && outcome.stdout.len() <= 100 && outcome.fuel <= 20_000),
        Err(trap) => assert!(!matches!(trap.cause, Cause::Internal(_)) && trap.fuel <= 20_000 && trap.stdout.len() <= 100, "{trap}"),
    }
    true
}
