//! The limits of a plan of another producer.

/// How much a plan may hold. Messages may also be nested at most a hundred deep: the protobuf reader stops there.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of the plan.
    pub bytes: usize,
    /// Relations, those of a shared subtree once for each time it is used.
    pub relations: usize,
    /// Relations below one another.
    pub depth: usize,
    /// Expressions, counted the same way; those that are used twice where the plan has them once count twice.
    pub expressions: usize,
    /// Expressions within one another, added up along relations below one another: the optimiser may make
    /// one expression of them all.
    pub levels: usize,
}
