//! How many slow drives equal one host: the same slices spread over 1 to 96 drives.

use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::profile::{Profile, ProfileError};
use skytether_scheduler::query::Policy;

use crate::fleet::run;
use crate::grid::{Load, Point, Scenario, fleet};
use crate::workload::Workload;

/// Slices in all; every number of drives of the curve divides it.
pub const SLICES: u32 = 1536;

/// The numbers of drives.
pub const DRIVES: [u32; 13] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96];

/// A point of the curve, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Equal {
    /// Drives.
    pub drives: u32,
    /// One core of the host with all slices in its memory: nothing but processor time.
    pub one_core: f64,
    /// All cores of the host, likewise.
    pub host: f64,
    /// The drives alone (`cut="full"`).
    pub full: f64,
    /// The host over the drives' links (`cut="raw"`).
    pub raw: f64,
    /// Both, as they see fit.
    pub adaptive: f64,
}

/// The curve of `work` over drives of the shipped profile `profile`.
///
/// # Errors
/// No such profile.
pub fn curve(work: &Workload, profile: &str, ground: &Scenario) -> Result<Vec<Equal>, ProfileError> {
    let is = Profile::shipped(profile)?;
    let of = |drives: u32| {
        let point = Point { work: work.clone(), slower: 1.0 / is.speed_per_core, gbit: is.link_bits_per_s / 1e9, drives, load: Load::Idle };
        let ground = Scenario { slices: SLICES / drives, ..*ground };
        let mut fleet = fleet(&point, &ground, ground.seed, 0.0);
        for drive in &mut fleet.drives {
            drive.believed = Profile { speed_per_core: drive.believed.speed_per_core, ..is };
            drive.is = is;
        }
        let time = |policy| run(&fleet, work, policy, ground.seed).end;
        let cpu = f64::from(SLICES) * f64::from(work.rows) * (work.truth.lower * fleet.off.0 + work.truth.upper * fleet.off.1) / fleet.host.speed_per_core;
        Equal {
            drives,
            one_core: cpu,
            host: cpu / f64::from(ground.host_cores),
            full: time(Policy::Static(PushdownLevel::Full)),
            raw: time(Policy::Static(PushdownLevel::Raw)),
            adaptive: time(Policy::Adaptive),
        }
    };
    Ok(DRIVES.into_iter().map(of).collect())
}
