//! The limits of a plan of another producer.

/// How much a plan may hold. Messages may also be nested at most a hundred deep: the protobuf reader stops there.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of the plan.
    pub bytes: usize,
    /// Relations; a shared subtree counts once for each use.
    pub relations: usize,
    /// Relations below one another.
    pub depth: usize,
    /// Expressions, counted the same way. An expression that is used twice counts twice, although the plan has it once.
    pub expressions: usize,
    /// Expressions within one another, added up along relations below one another: the optimiser may make
    /// one expression of them all.
    pub levels: usize,
}
