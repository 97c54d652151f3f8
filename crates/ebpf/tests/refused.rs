//! What is refused when a program is loaded, by name.

use skytether_common::{Error, Kind};
use skytether_ebpf::{Program, load, load_entry};

use crate::drive::instructions;

fn refusal(words: &[u64]) -> Error {
    let exit = 0x95;
    let text: Vec<u8> = words.iter().chain([&exit]).flat_map(|word| word.to_le_bytes()).collect();
    Program::from_instructions(&text).unwrap_err()
}

#[test]
fn instructions_of_kernels_are_refused_by_name() {
    for (word, kind, name) in [
        (0xffff_ffff_0000_0085, Kind::Unsupported, "unknown helper -1"),
        (0x0000_03e7_0000_0085, Kind::Unsupported, "unknown helper 999"),
        (0x0000_0000_0000_2085, Kind::Unsupported, "call of kind 2"),
        (0x0000_0000_0000_1018, Kind::Unsupported, "map"),
        (0x0000_0000_0000_21db, Kind::Unsupported, "atomic"),
        (0x0000_0000_0000_21c3, Kind::Unsupported, "atomic"),
        (0x0000_0000_0000_018d, Kind::Unsupported, "by its address"),
        (0x0000_0000_0000_0020, Kind::Unsupported, "packet"),
        (0x0000_0000_0000_1281, Kind::Unsupported, "sign extension"),
        (0x0000_0000_0008_12bf, Kind::Unsupported, "later instruction set"),
        (0x0000_0000_0000_00ff, Kind::Invalid, "unknown eBPF opcode"),
        (0x0000_0000_0000_0bbf, Kind::Invalid, "destination register"),
        (0x0000_0000_0000_0ab7, Kind::Invalid, "r10"),
        (0x0000_0000_0000_0037, Kind::Invalid, "division by 0"),
        (0x0000_0000_0005_0005, Kind::Invalid, "jumps to instruction 6, out of the program"),
        (0x0000_0000_fff0_0005, Kind::Invalid, "jumps to instruction -15, out of the program"),
        (0x0000_0064_0000_1085, Kind::Invalid, "calls instruction 101, out of the program"),
        (0x0000_0000_0000_0018, Kind::Invalid, "second half"),
    ] {
        let error = refusal(&[word]);
        assert_eq!((error.kind(), error.to_string().contains(name)), (kind, true), "{word:#x}: {error}");
    }
}

#[test]
fn jump_into_the_middle_of_an_instruction_is_refused() {
    let error = refusal(&[0x0000_0000_0001_0005, 0x18, 0]);
    assert!(error.to_string().contains("out of the program"), "{error}");
}

#[test]
fn code_of_no_length_or_an_odd_one_is_refused() {
    for text in [&[][..], &[0; 7], &[0x95; 9]] {
        assert_eq!(Program::from_instructions(text).unwrap_err().kind(), Kind::Invalid);
    }
    let long = instructions("exit").repeat(65_537);
    assert_eq!(Program::from_instructions(&long).unwrap_err().kind(), Kind::Unsupported);
    assert!(Program::from_instructions(long.get(8..).unwrap()).is_ok());
}

#[test]
fn objects_that_need_a_kernel_or_a_linker_are_refused() {
    for (object, kind, name) in [
        (&include_bytes!("objects/refused_maps.o")[..], Kind::Unsupported, "it defines maps"),
        (include_bytes!("objects/refused_core.o"), Kind::Unsupported, "CO-RE"),
        (include_bytes!("objects/refused_undefined.o"), Kind::Unsupported, "elsewhere is called and not defined"),
        (include_bytes!("objects/refused_variable.o"), Kind::Unsupported, "elsewhere is not defined"),
        (include_bytes!("objects/refused_section.o"), Kind::Unsupported, "section program has code"),
        (include_bytes!("objects/refused_pointer.o"), Kind::Unsupported, "address of a function"),
        (include_bytes!("objects/refused_atomic.o"), Kind::Unsupported, "atomic"),
        (include_bytes!("objects/refused_large.o"), Kind::Unsupported, "section .bss has 1073741824 bytes"),
        (include_bytes!("objects/refused_entries.o"), Kind::Invalid, "several global functions and none is main: one, two"),
    ] {
        let error = load(object).unwrap_err();
        assert_eq!((error.kind(), error.to_string().contains(name)), (kind, true), "{name}: {error}");
    }
    assert_eq!(load(b"\x7fELF").unwrap_err().kind(), Kind::Invalid);
    let mut other = include_bytes!("objects/filter.o").to_vec();
    // The machine: x86-64.
    other.splice(18..20, [62, 0]);
    assert!(load(&other).unwrap_err().to_string().contains("no relocatable object for eBPF"));
}

#[test]
fn entry_is_chosen_by_name() {
    let object = include_bytes!("objects/refused_entries.o");
    for (name, found) in [("one", Ok(1)), ("two", Ok(2)), ("three", Err(Kind::NotFound))] {
        let program = load_entry(object, Some(name)).map_err(|error| error.kind());
        let code = program.map(|program| crate::drive::both(&program, &[], &crate::drive::Values::default(), &crate::drive::small()).0.unwrap().exit_code);
        assert_eq!(code, found, "{name}");
    }
}
