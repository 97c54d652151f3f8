//! Methods of foreign async traits that forward to inherent ones of the same name.
//!
//! `#[async_trait]` gives each method lifetime clauses, and under such clauses rustc does not cache its proofs that a
//! future is `Send`. A future that reaches the planner's types costs seconds for each method then. An inherent method
//! has no clauses (docs/decisions/0001-build-and-test-time.md).

/// For each method of a trait of tonic's or Arrow Flight's: its form in the trait, which calls the inherent method.
#[macro_export]
macro_rules! forward {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        fn $name<'life0, 'async_trait>(&'life0 self $(, $argument: $type)*) -> futures::future::BoxFuture<'async_trait, $answer>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Self::$name(self $(, $argument)*)
        }
    )*};
}
