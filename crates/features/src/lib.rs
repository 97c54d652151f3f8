//! Nothing but dependencies: `Cargo.toml` pins the features of those that several crates share.
//!
//! Every crate with large dependencies depends on this one, so that `cargo build -p X` and `cargo build --workspace`
//! build them once, with the same features. It has no code and no interface. See also CONTRIBUTING.md, "Builds".
