//! The example of an operation that others add does what it says.

#[path = "../examples/thumbnail.rs"]
mod example;

#[test]
fn thumbnails_of_the_example_are_made() {
    example::main().unwrap();
}
