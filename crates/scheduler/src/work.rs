//! What a sub-plan does, as far as costs go: kinds of operators, their output, and priors of their time.

/// Kinds of operators that have priors of their own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Decoding a slice and evaluating a filter; units are bytes of Arrow data.
    Decode,
    /// Decoding a sparse slice; units are nonzeros.
    DecodeSparse,
    /// A projection or filter of computed expressions; units are rows.
    Compute,
    /// A hash aggregate; units are rows.
    HashAggregate {
        /// Groups, as far as known.
        groups: f64,
    },
    /// Grouped moments; units are nonzeros.
    Moments,
    /// A sort with a limit; units are rows.
    TopK,
}

/// Priors: seconds of one core of this machine. Measured where docs/benchmarks.md or the design notes say so, plausible
/// elsewhere; what is measured while queries run corrects them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Priors {
    /// Decoding and filtering, per byte of Arrow data.
    pub decode_s_per_byte: f64,
    /// Decoding sparse slices, per nonzero (index and value, 0.27 ns each).
    pub decode_sparse_s_per_nonzero: f64,
    /// A computed expression, per row.
    pub compute_s_per_row: f64,
    /// Hash aggregate of at most 1,000 groups, per row.
    pub aggregate_few_s_per_row: f64,
    /// Hash aggregate of a million groups or more, per row.
    pub aggregate_many_s_per_row: f64,
    /// Grouped moments, per nonzero.
    pub moments_s_per_nonzero: f64,
    /// Sort with a limit, per row.
    pub top_k_s_per_row: f64,
    /// Merging states above, per state.
    pub merge_s_per_state: f64,
    /// Giving out states at the end of an epoch, per state.
    pub emit_s_per_state: f64,
    /// Sending or receiving, per byte.
    pub transfer_s_per_byte: f64,
    /// Opening a session: a drive plans the sub-plan before it lists its slices.
    pub session_s: f64,
    /// Taking on an epoch: setting up the sub-plan.
    pub epoch_s: f64,
    /// The parent's beginning with a drive's raw or filtered slices, once per drive: planning over them, reading their
    /// metadata, setting up the engine.
    pub begin_above_s: f64,
}

/// The priors that planning starts from, and what costs are in the simulator: what `benches/moving.py` takes, where
/// that was measured (docs/benchmarks.md).
pub const PRIORS: Priors = Priors {
    decode_s_per_byte: 0.5e-9,
    decode_sparse_s_per_nonzero: 0.54e-9,
    compute_s_per_row: 2e-9,
    aggregate_few_s_per_row: 12e-9,
    aggregate_many_s_per_row: 80e-9,
    moments_s_per_nonzero: 2.6e-9,
    top_k_s_per_row: 15e-9,
    merge_s_per_state: 100e-9,
    emit_s_per_state: 20e-9,
    transfer_s_per_byte: 0.25e-9,
    session_s: 1.2e-3,
    epoch_s: 0.3e-3,
    begin_above_s: 6e-3,
};

/// An operator of the sub-plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Operator {
    /// Its kind.
    pub kind: Kind,
    /// Units per row that it reads.
    pub units_per_row: f64,
}

impl Operator {
    /// Seconds of a core of this machine per row that it reads.
    #[must_use]
    pub fn seconds_per_row(&self, priors: &Priors) -> f64 {
        let per_unit = match self.kind {
            Kind::Decode => priors.decode_s_per_byte,
            Kind::DecodeSparse => priors.decode_sparse_s_per_nonzero,
            Kind::Compute => priors.compute_s_per_row,
            Kind::HashAggregate { groups } => {
                // Between tables that fit the caches and tables that do not, by the logarithm of the groups.
                let share = ((groups.max(1.0).log10() - 3.0) / 3.0).clamp(0.0, 1.0);
                priors.aggregate_few_s_per_row + share * (priors.aggregate_many_s_per_row - priors.aggregate_few_s_per_row)
            }
            Kind::Moments => priors.moments_s_per_nonzero,
            Kind::TopK => priors.top_k_s_per_row,
        };
        per_unit * self.units_per_row
    }
}

/// What leaves a part of the sub-plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Output {
    /// Rows as they come.
    Rows {
        /// Rows out per row of the slice, as far as known.
        per_row: f64,
        /// Bytes of each.
        bytes_per_row: f64,
    },
    /// States of groups at the end of the epoch; the more slices an epoch has, the fewer per slice.
    Groups {
        /// Groups in all of the table, as far as known.
        groups: f64,
        /// Bytes of a state with its key.
        bytes_per_group: f64,
    },
}

/// A sub-plan as far as its cost goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// Scan, filter and projection: what the rung `Filter` runs. They read all rows of a slice.
    pub lower: Vec<Operator>,
    /// The operators above; they read the rows that `lower` gives. Empty where the sub-plan is no more than that:
    /// then `Full` is `Filter`.
    pub upper: Vec<Operator>,
    /// What leaves `lower`: always rows.
    pub filtered: Output,
    /// What leaves `upper`.
    pub result: Output,
}
