//! Random changes of modules: each is refused or ends within its limits.

use skytether_common::Kind;
use skytether_wasm::{Cause, load};

use crate::drive::{Values, run};

#[test]
fn changed_modules_are_refused_or_end_within_limits() {
    let mixed = wat::parse_str(include_str!("modules/mixed.wat")).unwrap();
    // The fuzz target has no compiler of texts.
    assert_eq!(mixed, include_bytes!("modules/mixed.wasm"));
    let seeds = [mixed, include_bytes!("modules/words.wasm").to_vec(), include_bytes!("modules/filter.wasm").to_vec()];
    let mut random = fastrand::Rng::with_seed(26);
    let (mut loaded, mut returned) = (0, 0);
    for _ in 0..6000 {
        let mut bytes = seeds[random.usize(..seeds.len())].clone();
        for _ in 0..random.usize(1..3) {
            let at = random.usize(8..bytes.len());
            match random.u8(0..4) {
                0 => bytes[at] ^= 1 << random.u8(0..8),
                1 => bytes[at] = random.u8(..),
                2 => bytes.insert(at, random.u8(..)),
                _ => drop(bytes.remove(at)),
            }
        }
        match load(&bytes) {
            Ok(program) => {
                loaded += 1;
                let mut host = Values::with(&[("key", b"to be or not to be")]);
                match run(&program, &[b"key", &[0; 8]], &mut host) {
                    Ok(outcome) => {
                        returned += 1;
                        assert!(outcome.output.len() <= 1000 && outcome.stdout.len() <= 100 && outcome.fuel <= 2_000_000);
                    }
                    Err(found) => assert!(!matches!(found.cause, Cause::Internal(_)), "{found} of {bytes:?}"),
                }
            }
            Err(error) => assert!(matches!(error.kind(), Kind::Invalid | Kind::Unsupported), "{error} of {bytes:?}"),
        }
    }
    // Enough of them are programs for this to be a test.
    assert!(loaded > 300 && returned > 200, "{loaded} loaded, {returned} returned");
}
