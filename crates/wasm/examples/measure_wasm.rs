//! How quick a filter over a million records is: native, by the bulk import, record by record.
//!
//! `cargo run --profile benchmark -p skytether-wasm --example measure_wasm`

#[path = "../../ebpf/examples/records/mod.rs"]
mod records;

use std::sync::atomic::AtomicBool;

use records::{Filter, best, counted};
use skytether_common::{Error, Result};
use skytether_wasm::{Limits, load, run};

fn main() -> Result<()> {
    let filter = Filter::new()?;
    for (name, module) in [("bulk", &include_bytes!("../tests/modules/bulk.wasm")[..]), ("scan", include_bytes!("../tests/modules/scan.wasm"))] {
        let program = load(module)?;
        let (mut host, never) = (filter.host.clone(), AtomicBool::new(false));
        let mut fuel = 0;
        let work = || {
            let outcome = run(&program, &filter.arguments, &mut host, &Limits::default(), &never).map_err(Error::from)?;
            fuel = outcome.fuel;
            counted(&outcome.output)
        };
        let time = best(work, filter.expected)?;
        println!("{name} {time:?}: {:.0}% of native, {fuel} instructions", filter.share(time));
    }
    Ok(())
}
