//! Made-up particles, like those of the simulation of which C2's authors published how many are above which energy.
//!
//! **Energies.** The share of particles with `ke > t` is, for the t of [`PUBLISHED`], what was published: 1.1 M, 63 k,
//! 2.5 k, 80 and 0 of 500 M above 0.3, 0.4, 0.5, 0.6 and 0.7. Between these points, and from (0, all) to the first, the
//! logarithm of the share falls in a straight line (energies are exponential there, with another temperature in each
//! piece); from 0.6 on the share itself does, down to 0 at 0.7. Each particle's energy is drawn by itself, so that the
//! shares hold at any number of rows but for the error of sampling.
//!
//! **Places.** A dump is what one rank of the simulation after the other wrote. So the rows are in runs of [`RANK`],
//! each the particles of one brick of the box (a cube of [`BOX`] to a side, the bricks in rows along x, then y, then
//! z), and anywhere within it. A slice has few bricks, so conditions on places skip most slices. Which particles are
//! energetic does not depend on the place: the published figures say how many they are, and not where, and evenly
//! spread is what is hardest to skip: from some thousandth of a percent of hits on, nearly every slice has one.
//! [`Particles::gathered`] gathers some of them in every 16th brick instead, as they are where field lines reconnect.
//!
//! **IDs** are the numbers from 0 to the number of rows, each once, in no order: particles keep theirs while
//! they move from rank to rank.
//!
//! All of a particle follows from the seed, its row and the number of rows, by arithmetic that is the same on every
//! machine: rows can be made in any order and in batches of any size.

use std::ops::Range;

use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

use crate::{Columns, vpic};

/// Energies, and the share of particles above each.
pub const PUBLISHED: [(f64, f64); 5] = [(0.3, 1.1e6 / 500e6), (0.4, 63e3 / 500e6), (0.5, 2.5e3 / 500e6), (0.6, 80.0 / 500e6), (0.7, 0.0)];

/// The energy and the share from which on particles count as energetic: the first that was published.
const ENERGETIC: f64 = PUBLISHED[0].1;

/// Rows of one rank.
pub const RANK: u64 = 1 << 16;

/// The length of the box's sides.
pub const BOX: f64 = 100.0;

/// Cells of a brick in x, y and z.
const CELLS: [f64; 3] = [32.0, 32.0, 64.0];

/// Of so many bricks one has what is gathered.
const GATHERING: u64 = 16;

/// Made-up particles, of which any rows can be made.
#[derive(Debug, Clone, PartialEq)]
pub struct Particles {
    rows: u64,
    seed: u64,
    gathered: f64,
    /// All rows by those that are in such bricks.
    crowded: f64,
    /// Bricks to a side.
    side: u64,
    /// Bits of one half of a row's number, where that is written with twice as many.
    half: u32,
}

/// One particle before its numbers are rounded to what records have.
struct Drawn {
    brick: [u64; 3],
    within: [f64; 3],
    ke: f32,
}

/// SplitMix64's mixer.
fn mix(mut h: u64) -> u64 {
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

/// A number above 0 and up to 1, in steps of 2^-53.
fn unit(h: u64) -> f64 {
    ((h >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The energy above which there is the share `share` of all particles.
#[must_use]
pub fn energy_above(share: f64) -> f32 {
    let (mut from, mut above) = (0.0, 1.0);
    for (to, below) in PUBLISHED {
        if share > below {
            let part = if below > 0.0 { libm::log(above / share) / libm::log(above / below) } else { (above - share) / (above - below) };
            return ((from + (to - from) * part) as f32).clamp(0.0, to as f32);
        }
        (from, above) = (to, below);
    }
    from as f32
}

impl Particles {
    /// So many particles, all from `seed`.
    #[must_use]
    pub fn new(rows: u64, seed: u64) -> Self {
        let ranks = rows.div_ceil(RANK).max(1);
        let side = (1..).find(|side: &u64| side.saturating_pow(3) >= ranks).unwrap_or(1);
        let bits = 64 - rows.saturating_sub(1).leading_zeros();
        let gathering = rows / (RANK * GATHERING) * RANK + (rows % (RANK * GATHERING)).min(RANK);
        Self { rows, seed, gathered: 0.0, crowded: rows as f64 / gathering.max(1) as f64, side, half: bits.div_ceil(2).max(1) }
    }

    /// The same, with the share `gathered` of the energetic ones (those above 0.3) in every 16th brick and the others
    /// anywhere. How many are above which energy stays as it is.
    ///
    /// # Errors
    /// `Invalid` for what is no share.
    pub fn gathered(self, gathered: f64) -> Result<Self> {
        if (0.0..=1.0).contains(&gathered) {
            Ok(Self { gathered, ..self })
        } else {
            Err(Error::invalid(format!("{gathered} is no share: say a number from 0 to 1")))
        }
    }

    /// How many there are.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Number `lane` of those that are drawn for a row.
    fn draw(&self, row: u64, lane: u64) -> u64 {
        mix(mix(self.seed.wrapping_add(lane.wrapping_mul(0x9e37_79b9_7f4a_7c15))) ^ row.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    /// The energy of a row.
    #[must_use]
    pub fn energy(&self, row: u64) -> f32 {
        let u = unit(self.draw(row, 1));
        // How many times the usual share this brick has of the energetic ones.
        let here = if (row / RANK).is_multiple_of(GATHERING) { self.crowded } else { 0.0 };
        let times = 1.0 - self.gathered + self.gathered * here;
        let energetic = ENERGETIC * times;
        if u <= energetic {
            return energy_above(u / times);
        }
        energy_above(ENERGETIC + (u - energetic) / (1.0 - energetic) * (1.0 - ENERGETIC))
    }

    /// The row's ID: a Feistel network over numbers of an even number of bits, again and again until it
    /// gives one that there is.
    fn id(&self, row: u64) -> u64 {
        if self.rows < 2 {
            return row;
        }
        let mask = (1u64 << self.half) - 1;
        let mut id = row;
        loop {
            let (mut left, mut right) = (id >> self.half & mask, id & mask);
            for round in 0..4 {
                (left, right) = (right, left ^ (self.draw(right, 16 + round) & mask));
            }
            id = left << self.half | right;
            if id < self.rows {
                return id;
            }
        }
    }

    fn drawn(&self, row: u64) -> Drawn {
        let rank = row / RANK;
        let brick = [rank % self.side, rank / self.side % self.side, rank / self.side / self.side];
        let (a, b) = (self.draw(row, 2), self.draw(row, 3));
        let part = |bits: u64| (bits & 0xff_ffff) as f64 * (1.0 / (1u64 << 24) as f64);
        Drawn { brick, within: [part(a), part(a >> 24), part(b)], ke: self.energy(row) }
    }

    fn place(&self, drawn: &Drawn) -> [f32; 3] {
        let one = BOX / self.side as f64;
        std::array::from_fn(|n| ((drawn.brick[n] as f64 + drawn.within[n]) * one) as f32)
    }

    /// The particles of `rows`; rows beyond the last are left out.
    ///
    /// # Errors
    /// `Internal`, which would be a defect.
    pub fn batch(&self, rows: Range<u64>) -> Result<RecordBatch> {
        let mut all = Columns::with_capacity(rows.clone().count());
        for row in rows.start..rows.end.min(self.rows) {
            let drawn = self.drawn(row);
            all.id.push(self.id(row));
            all.place.iter_mut().zip(self.place(&drawn)).for_each(|(column, value)| column.push(value));
            all.ke.push(drawn.ke);
        }
        all.finish()
    }

    /// The same as raw records ([`vpic`]): the cell is that of the brick's 32 by 32 by 64, counted along x, then y,
    /// then z; the momentum has any direction, and the length that the energy says, sqrt((1 + ke)^2 - 1).
    ///
    /// # Errors
    /// As [`Self::batch`].
    pub fn records(&self, rows: Range<u64>) -> Result<Vec<u8>> {
        let first = rows.start;
        vpic::encode(&self.batch(rows)?, |n| {
            let row = first + n as u64;
            let drawn = self.drawn(row);
            let [x, y, z]: [i32; 3] = std::array::from_fn(|n| (drawn.within[n] * CELLS[n]) as i32);
            let gamma = 1.0 + f64::from(drawn.ke);
            let length = libm::sqrt(gamma * gamma - 1.0);
            let (up, around) = (2.0 * unit(self.draw(row, 4)) - 1.0, 2.0 * std::f64::consts::PI * unit(self.draw(row, 5)));
            let flat = length * libm::sqrt(1.0 - up * up);
            let momentum = [flat * libm::cos(around), flat * libm::sin(around), length * up];
            (x + 32 * (y + 32 * z), momentum.map(|u| u as f32))
        })
    }

    /// All of them, in batches of `rows`.
    pub fn batches(&self, rows: usize) -> impl Iterator<Item = Result<RecordBatch>> + Send + use<> {
        let own = self.clone();
        self.parts(rows).map(move |part| own.batch(part))
    }

    /// All rows in parts of `rows`.
    pub fn parts(&self, rows: usize) -> impl Iterator<Item = Range<u64>> + Send + use<> {
        let (all, step) = (self.rows, rows.max(1));
        (0..all).step_by(step).map(move |start| start..all.min(start + step as u64))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::columns;

    /// That `found` of `all` is a sample of the share `share`, within five standard errors; of a small
    /// number that is a wide berth.
    #[track_caller]
    fn assert_share(found: u64, all: u64, share: f64, what: &str) {
        let due = share * all as f64;
        assert!((found as f64 - due).abs() <= 5.0 * due.sqrt() + 3.0 * f64::from(due > 0.0), "{what}: {found} of {all}, {due} are due");
    }

    #[test]
    fn as_many_are_energetic_as_were_published() {
        for (rows, seed, gathered) in [(20_000_000, 1, 0.0), (3_000_000, 2, 0.0), (3_000_000, 3, 0.9), (1_100_000, 4, 1.0)] {
            let particles = Particles::new(rows, seed).gathered(gathered).unwrap();
            let mut above = [0u64; PUBLISHED.len()];
            for row in 0..rows {
                let ke = particles.energy(row);
                assert!((0.0..=0.7).contains(&ke));
                PUBLISHED.iter().zip(&mut above).for_each(|((t, _), n)| *n += u64::from(f64::from(ke) > *t));
            }
            for ((t, share), found) in PUBLISHED.into_iter().zip(above) {
                assert_share(found, rows, share, &format!("{rows} rows, {gathered} gathered, ke > {t}"));
            }
            assert!(above[0] > 0 && above[1] > 0 && above[4] == 0);
        }
    }

    #[test]
    fn distribution_matches_its_documentation() {
        for (t, share) in PUBLISHED {
            assert!((f64::from(energy_above(share)) - t).abs() < 1e-6, "{t}");
        }
        assert_eq!(energy_above(1.0), 0.0);
        // The middle of a piece by the logarithm, and of the last by itself.
        let middle = (PUBLISHED[1].1 * PUBLISHED[2].1).sqrt();
        assert!((energy_above(middle) - 0.45).abs() < 1e-6);
        assert!((energy_above(PUBLISHED[3].1 / 2.0) - 0.65).abs() < 1e-6);
        assert!(energy_above(f64::MIN_POSITIVE) <= 0.7);
    }

    #[test]
    fn clustered_particles_are_in_few_bricks_and_others_anywhere() {
        let hits = |gathered: f64| -> (u64, u64) {
            let particles = Particles::new(RANK * 64, 5).gathered(gathered).unwrap();
            let energetic: Vec<u64> = (0..RANK * 64).filter(|row| particles.energy(*row) > 0.3).collect();
            (energetic.iter().filter(|row| (**row / RANK).is_multiple_of(GATHERING)).count() as u64, energetic.len() as u64)
        };
        let (there, all) = hits(0.0);
        assert_share(there, all, 1.0 / 16.0, "of those anywhere");
        let (there, all) = hits(0.8);
        assert_share(all - there, all, 0.2 * 15.0 / 16.0, "of those that are not gathered");
        assert_eq!(hits(1.0).0, hits(1.0).1);
        assert!(Particles::new(1, 1).gathered(1.5).is_err() && Particles::new(1, 1).gathered(f64::NAN).is_err());
    }

    #[test]
    fn every_id_occurs_once_in_random_order() {
        for rows in [0, 1, 2, 3, 100, 4096, 4097, 100_000] {
            let batch = Particles::new(rows, 11).batch(0..rows).unwrap();
            let ids = columns(&batch).unwrap().0;
            assert_eq!(ids.len() as u64, rows);
            assert!(ids.iter().all(|id| *id < rows) && ids.iter().collect::<HashSet<_>>().len() as u64 == rows, "{rows}");
            assert!(rows < 100 || !ids.is_sorted());
        }
    }

    /// The first row is pinned, so that a change of the data is noticed.
    #[test]
    fn rows_depend_on_the_seed_and_not_on_batch_sizes() {
        let particles = Particles::new(70_000, 3);
        let whole = particles.batch(0..70_000).unwrap();
        let parts: Vec<_> = particles.batches(9_999).map(Result::unwrap).collect();
        assert_eq!(arrow::compute::concat_batches(&crate::schema(), &parts).unwrap(), whole);
        assert_eq!(particles.batch(65_000..66_000).unwrap(), whole.slice(65_000, 1000));
        assert_eq!(particles.batch(69_999..80_000).unwrap().num_rows(), 1);
        assert_eq!(vpic::decode("d", &particles.records(0..70_000).unwrap(), 0).unwrap(), whole);
        assert_ne!(Particles::new(70_000, 4).batch(0..70_000).unwrap(), whole);
        // This very data, so that nobody changes them unawares.
        let (ids, floats) = columns(&whole).unwrap();
        assert_eq!((ids[0], floats.map(|f| f[0].to_bits())), (FIRST.0, FIRST.1), "{:?} {:?}", ids[0], floats.map(|f| f[0]));
    }

    const FIRST: (u64, [u32; 4]) = (41741, [1082910193, 1099774109, 1100994667, 1007492144]);

    #[test]
    fn particles_of_a_rank_are_in_its_brick() {
        let particles = Particles::new(RANK * 8, 9);
        for rank in [0u64, 3, 7] {
            let batch = particles.batch(rank * RANK..(rank + 1) * RANK).unwrap();
            let (_, [x, y, z, _]) = columns(&batch).unwrap();
            for (values, at) in [(x, rank % 2), (y, rank / 2 % 2), (z, rank / 4)] {
                let from = 50.0 * at as f32;
                assert!(values.iter().all(|v| (from..=from + 50.0).contains(v)));
                assert!(values.iter().any(|v| *v < from + 1.0) && values.iter().any(|v| *v > from + 49.0));
            }
        }
    }

    #[test]
    fn momentum_and_cell_are_those_of_the_particle() {
        let particles = Particles::new(RANK, 6);
        for record in particles.records(0..500).unwrap().chunks_exact(48) {
            let float = |at: usize| f64::from(f32::from_le_bytes(record[at..at + 4].try_into().unwrap()));
            let u2: f64 = [32, 36, 40].map(|at| float(at).powi(2)).iter().sum();
            assert!(((1.0 + u2).sqrt() - 1.0 - float(44)).abs() < 1e-5);
            let cell = i32::from_le_bytes(record[28..32].try_into().unwrap());
            let due = (float(16) * 0.32) as i32 + 32 * ((float(20) * 0.32) as i32 + 32 * (float(24) * 0.64) as i32);
            assert_eq!(cell, due);
        }
    }
}
