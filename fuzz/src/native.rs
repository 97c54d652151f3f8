//! Native programs: which files are taken. The kernel loads them, in a process that is contained.

use skytether_common::Kind;
use skytether_native::check;

/// Files of one segment: a program with fixed addresses, one with any, one that needs a linker at run time.
pub(crate) fn programs() -> Vec<Vec<u8>> {
    let file = |kind: u16, segment: u32| {
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        [kind, 62, 1, 0].iter().for_each(|half| file.extend(half.to_le_bytes()));
        [0x40_0078_u64, 64, 0].iter().for_each(|word| file.extend(word.to_le_bytes()));
        [0_u16, 0, 64, 56, 1, 0, 0, 0].iter().for_each(|half| file.extend(half.to_le_bytes()));
        [segment, 5].iter().for_each(|word| file.extend(word.to_le_bytes()));
        [0_u64, 0x40_0000, 0x40_0000, 121, 121, 0x1000].iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.push(0xc3);
        file
    };
    vec![file(2, 1), file(3, 1), file(3, 3)]
}

pub(crate) fn program_check(data: &[u8]) -> bool {
    match check(data) {
        Ok(()) => {
            // All of its program headers lie in it.
            assert!(data.len() >= 64 + 56, "a program of {} bytes was taken", data.len());
            true
        }
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Invalid | Kind::Unsupported), "{error}");
            false
        }
    }
}
