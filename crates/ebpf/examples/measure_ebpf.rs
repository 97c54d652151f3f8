//! How quick a filter over a million records is: native, by the bulk helper, record by record.
//!
//! `cargo run --release -p skytether-ebpf --example measure_ebpf`

mod records;

use records::{Filter, best, counted};
use skytether_common::{Error, Result};
use skytether_ebpf::{Engine, Limits, load, run_on};

fn main() -> Result<()> {
    let filter = Filter::new()?;
    for (name, object) in [("bulk", &include_bytes!("../tests/objects/bulk.o")[..]), ("scan", include_bytes!("../tests/objects/scan.o"))] {
        let program = load(object)?;
        for engine in [Engine::Compiled, Engine::Interpreted] {
            let (mut host, mut instructions) = (filter.host.clone(), 0);
            let work = || {
                let outcome = run_on(engine, &program, &filter.arguments, &mut host, &Limits::default()).map_err(Error::from)?;
                instructions = outcome.instructions;
                counted(&outcome.output)
            };
            let time = best(work, filter.expected)?;
            println!("{name} {engine:?} {time:?}: {:.0}% of native, {instructions} instructions", filter.share(time));
        }
    }
    Ok(())
}
