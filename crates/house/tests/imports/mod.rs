//! Which file of a crate imports which, read from its sources.
//!
//! A path counts as an import of the file that defines its longest prefix of modules. So `crate::Item` counts as an
//! import of `lib.rs`, also where `lib.rs` only re-exports the item. `mod x;` counts as none, and neither does test
//! code.
//! See [`tokens`] for what is read of a source, [`modules`] for how paths are resolved.

mod modules;
pub(crate) mod tokens;

pub(crate) use modules::{Imports, Site, Sources, imports, undeclared};
