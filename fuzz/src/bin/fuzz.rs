//! Runs libFuzzer over the target that the variable FUZZ_TARGET names. With FUZZ_SEEDS it first writes the target's
//! seeds into that directory.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use skytether_fuzz::{Bounded, TARGETS, Target, target};

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let Some(target) = target(&name) else {
        let names: Vec<_> = TARGETS.iter().map(|t| t.name).collect();
        eprintln!("FUZZ_TARGET is {name:?}: name one of {}", names.join(", "));
        std::process::exit(2)
    };
    // libFuzzer's hook would stop at panics that our parsers catch by design; what they do not catch ends
    // the process all the same.
    std::panic::set_hook(Box::new(|_| {}));
    target
});

fuzz_target!(
    init: {
        let target = LazyLock::force(&TARGET);
        if let Ok(directory) = std::env::var("FUZZ_SEEDS") {
            for (n, seed) in (target.seeds)().into_iter().enumerate() {
                if let Err(e) = std::fs::write(format!("{directory}/seed-{n}"), seed) {
                    eprintln!("cannot write the seeds into {directory}: {e}");
                    std::process::exit(2)
                }
            }
        }
    },
    |data: &[u8]| {
        if std::panic::catch_unwind(|| (TARGET.run)(data)).is_err() {
            eprintln!("the target panicked");
            std::process::abort()
        }
    }
);
