//! Tests of volumes over fleets, one program. Those of crate `volume` run here over a fleet, too.

#[path = "../../volume/tests/basic.rs"]
mod basic;
#[path = "../../volume/tests/concurrency.rs"]
mod concurrency;
#[path = "../../volume/tests/crash.rs"]
mod crash;
#[path = "../../volume/tests/full.rs"]
mod full;
mod losses;
#[path = "../../volume/tests/model.rs"]
mod model;
mod records;
mod scrubs;
mod snapshots;
mod util;
