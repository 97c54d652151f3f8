//! Whether the host processes slices that travel to it anyway, because a lost drive's slices are decoded from them.
//!
//! To decode a lost drive's slices, the host reads K - 1 of the K slices of each group from living drives, and one
//! parity. Where the fleet has few more drives than a group has slices, these are most of their slices. A drive that
//! processes a slice itself then only adds work. Adaptive execution can't learn this: it measures the reads for
//! decoding as slow disks and links, and would leave slices to slow drives that the host has already.

use skytether_device::PushdownLevel;
use skytether_erasure::Scheme;
use skytether_scheduler::cost::CostModel;
use skytether_scheduler::work::PRIORS;

use skytether_exec::scan::Moves;

/// The least share of their slices that living drives must send for decoding.
const MOST: f64 = 0.5;

/// The longest estimated time for slices sent raw, relative to their processing on drives. The host accepts that much
/// more time: no work is done twice then, and drives read in one order.
const AS_LONG: f64 = 1.25;

/// The least share of slice bytes that a query must read. Of fewer columns, only these travel.
const NEARLY_ALL: f64 = 0.75;

/// The share of parities that each living drive reads and sends in addition to its own slices, where `lost` drives are
/// lost.
pub(crate) fn parities(lost: &[bool]) -> f64 {
    let count = lost.iter().filter(|lost| **lost).count();
    count as f64 / (lost.len() - count).max(1) as f64
}

/// Whether all drives send their slices raw, where `lost` says which drives are lost. The query reads the share `read`
/// of the bytes of slices. False where that would take longer: the host is slow, or slow links would carry unneeded
/// bytes.
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

    /// A search of a gigabyte of particles on `drives` drives.
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
