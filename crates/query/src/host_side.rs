//! Whether slices that travel anyway, as a lost drive's are decoded from them, are worked off where they arrive.
//!
//! While a drive is lost, whoever decodes what it had takes K - 1 of K slices of each of its groups from the drives
//! that are here, and one parity. With few more drives than a group has slices that is most of what they have; then a
//! drive that works a slice off itself has only more to do. What is decoded from them is measured as slow disks and
//! links, so that a run that learns from that would leave to slow drives what is here already.

use skytether_device::PushdownLevel;
use skytether_erasure::Scheme;
use skytether_scheduler::cost::CostModel;
use skytether_scheduler::work::PRIORS;

use skytether_exec::scan::Moves;

/// The least share of their slices that drives send to be decoded from.
const MOST: f64 = 0.5;

/// Handing out may take so many times as long as working off, by the estimate: nothing is done twice then, and the
/// order in which drives read is one.
const AS_LONG: f64 = 1.25;

/// The least share of slices that a query reads: of fewer columns only those travel.
const NEARLY_ALL: f64 = 0.75;

/// How much more than its own slices each of the drives that are here reads and sends, where so many of all are `lost`:
/// its share of the parities.
pub(crate) fn parities(lost: &[bool]) -> f64 {
    let count = lost.iter().filter(|lost| **lost).count();
    count as f64 / (lost.len() - count).max(1) as f64
}

/// Whether all drives are to hand out what they have, of which those that `lost` says are lost; a query of them reads
/// the share `read` of their slices' bytes. Not where that would take longer, as this host is slow at it, or links are
/// that send what need not travel.
pub(crate) fn prefer_host(scheme: Scheme, lost: &[bool], read: f64, moves: &Moves) -> bool {
    let Some(code) = scheme.code().filter(|_| scheme.inner().is_none()) else { return false };
    let (count, others) = (lost.iter().filter(|lost| **lost).count() as f64, lost.len() as f64 - 1.0);
    let travel = (count * (code.data() as f64 - 1.0) / others.max(1.0)).min(1.0);
    if count < 1.0 || travel < MOST || read < NEARLY_ALL {
        return false;
    }
    let parities = parities(lost);
    let model = CostModel::new(moves.work.clone(), moves.host, &moves.profiles, PRIORS).with_kinds(&moves.kinds);
    let (mut host, mut handing_out, mut working) = (0.0, 0.0f64, 0.0f64);
    for (at, ((_, rows, bytes), lost)) in moves.parts.iter().zip(lost).enumerate() {
        let (slice, profile) = ((*rows as f64, *bytes as f64), &moves.profiles[at]);
        host += model.slice(at, PushdownLevel::Raw, slice).above / f64::from(moves.host.cores.max(1));
        if !lost {
            let (disk, link) = (slice.1 / profile.disk_bytes_per_s, slice.1 / profile.link_bytes_per_s());
            let works = model.slice(at, PushdownLevel::Full, slice).cpu / f64::from(profile.cores.max(1));
            handing_out = handing_out.max(disk).max(link * (1.0 + parities));
            working = working.max(disk).max(link * (travel + parities)).max(works);
        }
    }
    host.max(handing_out) <= working * AS_LONG
}

#[cfg(test)]
mod tests {
    use skytether_scheduler::profile::Profile;
    use skytether_scheduler::query::{Limits, Policy};
    use skytether_scheduler::work::{Kind, Operator, Output, Work};

    use super::*;

    /// A search of a gigabyte of particles on so many drives.
    fn search(drives: u64, profile: Profile, host: Profile) -> Moves {
        let lower = vec![Operator { kind: Kind::Decode, units_per_row: 24.0 }, Operator { kind: Kind::Compute, units_per_row: 1.0 }];
        let rows = Output::Rows { per_row: 0.001, bytes_per_row: 24.0 };
        Moves {
            work: Work { lower, upper: Vec::new(), filtered: rows, result: rows },
            policy: Policy::Adaptive,
            estimated: true,
            host,
            profiles: vec![profile; drives as usize],
            kinds: Vec::new(),
            limits: Limits::default(),
            parts: vec![(1000, 50_000_000 / drives, 1_000_000_000 / drives); drives as usize],
            engines: Vec::new(),
        }
    }

    #[test]
    fn where_most_travels_anyway_and_the_host_is_quick_enough() {
        let [envoy, server] = ["envoy", "server"].map(|name| Profile::shipped(name).unwrap());
        let lost = |lost: usize, of: usize| (0..of).map(|at| at < lost).collect::<Vec<_>>();
        let above = |scheme: &str, lost: &[bool], read: f64, profile: Profile, host: Profile| {
            prefer_host(scheme.parse().unwrap(), lost, read, &search(lost.len() as u64, profile, host))
        };
        assert!(above("ec:4+1", &lost(1, 5), 1.0, envoy, server));
        assert!(above("ec:4+2", &lost(2, 6), 1.0, envoy, server));
        assert!(!above("ec:4+1", &lost(0, 5), 1.0, envoy, server), "all are here");
        assert!(!above("ec:4+1", &lost(1, 5), 0.5, envoy, server), "half of the columns");
        assert!(!above("ec:4+1", &lost(1, 20), 1.0, envoy, server), "many more drives than a group has slices");
        assert!(!above("replicas:2", &lost(1, 3), 1.0, envoy, server), "one copy is read");
        assert!(!above("ec:4+1", &lost(1, 5), 1.0, server, envoy), "a slow host");
        let slow = Profile { link_bits_per_s: 1e8, ..server };
        assert!(!above("ec:4+1", &lost(1, 7), 1.0, slow, server), "slow links, over which half need not go");
    }
}
