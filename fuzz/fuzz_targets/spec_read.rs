//! Any text as the spec of moments: an error, or a spec whose own text reads back as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skytether_expression::MomentsSpec;

fuzz_target!(|text: &str| {
    if let Ok(spec) = MomentsSpec::from_literal(text) {
        match spec.to_literal().and_then(|text| MomentsSpec::from_literal(&text)) {
            Ok(again) => assert_eq!(again, spec),
            Err(error) => panic!("{error}: {spec:?}"),
        }
    }
});
