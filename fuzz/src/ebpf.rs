//! eBPF programs of strangers: object files and bare instructions. What is loaded runs, in both engines alike.

use bytes::Bytes;
use skytether_common::{Error, Kind, Result};
use skytether_ebpf::{Cause, Engine, Host, Limits, Program, load, run_on};

/// One value; a second key is refused.
pub(crate) struct Values;

impl Host for Values {
    fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>> {
        if key.starts_with(b"secret") { Err(Error::invalid("refused")) } else { Ok(Some(Bytes::from_static(&[7; 4800]))) }
    }

    fn next(&mut self, after: &[u8]) -> Result<Option<Bytes>> {
        Ok(after.is_empty().then(|| Bytes::from_static(b"key")))
    }

    fn put(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// Loads a program and runs it within small limits. Whether it could be loaded.
fn run(loaded: Result<Program>) -> bool {
    let program = match loaded {
        Ok(program) => program,
        Err(error) => {
            assert!(matches!(error.kind(), Kind::Invalid | Kind::Unsupported), "{error}");
            return false;
        }
    };
    let limits = Limits { instructions: 20_000, output_bytes: 1000, stdout_bytes: 100, scratch_bytes: 1 << 20, ..Limits::default() };
    let arguments = [Bytes::from_static(b"key"), Bytes::from_static(&[0; 8])];
    let [one, other] = [Engine::Interpreted, Engine::Compiled].map(|engine| run_on(engine, &program, &arguments, &mut Values, &limits));
    match (one, other) {
        (Ok(one), Ok(other)) => {
            assert_eq!(one, other);
            assert!(one.output.len() <= 1000 && one.stdout.len() <= 100 && one.instructions <= 20_000);
        }
        (Err(one), Err(other)) => {
            assert_eq!(one.to_string(), other.to_string());
            assert!(!matches!(one.cause, Cause::Internal(_)), "{one}");
        }
        (one, other) => assert_eq!(one.is_ok(), other.is_ok(), "{one:?}, {other:?}"),
    }
    true
}

pub(crate) fn objects() -> Vec<Vec<u8>> {
    let objects: [&[u8]; 4] = [
        include_bytes!("../../crates/ebpf/tests/objects/filter.o"),
        include_bytes!("../../crates/ebpf/tests/objects/aggregate.o"),
        include_bytes!("../../crates/ebpf/tests/objects/words.o"),
        include_bytes!("../../crates/ebpf/tests/objects/arithmetic.o"),
    ];
    objects.map(<[u8]>::to_vec).to_vec()
}

pub(crate) fn object_load(data: &[u8]) -> bool {
    run(load(data))
}

pub(crate) fn instructions() -> Vec<Vec<u8>> {
    // A loop, a call of a function, a call of a helper, a load of 64 bits with a store to the stack.
    let programs: [&[u64]; 4] = [
        &[0x0000_000a_0000_01b7, 0xffff_ffff_0000_0107, 0x0000_0000_fffe_0155, 0x95],
        &[0x0000_0001_0000_1085, 0x95, 0x0000_0003_0000_00b7, 0x95],
        &[0x0000_0040_0000_01b7, 0x0000_0008_0000_0085, 0x95],
        &[0x0000_0007_0000_0118, 0x0000_0005_0000_0000, 0x0000_0000_fff8_1a7b, 0x0000_0000_fff8_a079, 0x95],
    ];
    programs.map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect()).to_vec()
}

pub(crate) fn instructions_load(data: &[u8]) -> bool {
    run(Program::from_instructions(data))
}
