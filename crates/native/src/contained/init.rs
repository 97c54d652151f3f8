//! The first process of the name spaces.
//!
//! The kernel treats the first process of a process name space in its own way: signals that it sends itself have no
//! effect, so it could not abort itself. Programs are the second process. The first one waits for them, tells how they
//! ended, and ends, with which the kernel ends all that may be left in the name spaces. It must not be a copy of the
//! drive, which would keep the drive's memory.

/// Waits for the program, and writes its status (4 bytes, as `wait4` gives it) to file descriptor 3.
#[rustfmt::skip]
const WAIT: &[u8] = &[
    0x48, 0x83, 0xec, 0x10,                     // sub rsp, 16
    0xb8, 0x3d, 0x00, 0x00, 0x00,               // mov eax, 61 (wait4)
    0x48, 0xc7, 0xc7, 0xff, 0xff, 0xff, 0xff,   // mov rdi, -1
    0x48, 0x89, 0xe6,                           // mov rsi, rsp
    0x31, 0xd2,                                 // xor edx, edx
    0x45, 0x31, 0xd2,                           // xor r10d, r10d
    0x0f, 0x05,                                 // syscall
    0xb8, 0x01, 0x00, 0x00, 0x00,               // mov eax, 1 (write)
    0xbf, 0x03, 0x00, 0x00, 0x00,               // mov edi, 3
    0x48, 0x89, 0xe6,                           // mov rsi, rsp
    0xba, 0x04, 0x00, 0x00, 0x00,               // mov edx, 4
    0x0f, 0x05,                                 // syscall
    0xb8, 0xe7, 0x00, 0x00, 0x00,               // mov eax, 231 (exit_group)
    0x31, 0xff,                                 // xor edi, edi
    0x0f, 0x05,                                 // syscall
];

/// Returns 0.
#[rustfmt::skip]
const RETURN: &[u8] = &[
    0xb8, 0xe7, 0x00, 0x00, 0x00,               // mov eax, 231 (exit_group)
    0x31, 0xff,                                 // xor edi, edi
    0x0f, 0x05,                                 // syscall
];

/// Where the file is loaded.
const BASE: u64 = 0x40_0000;

/// The lengths of the two headers, in bytes.
const HEADER: u16 = 64;
const PROGRAM_HEADER: u16 = 56;

/// The first process as an ELF file.
pub(super) fn wait() -> Vec<u8> {
    file(WAIT)
}

/// A program that does nothing.
pub(crate) fn nothing() -> Vec<u8> {
    file(RETURN)
}

/// An ELF file of one segment, which has `code`.
fn file(code: &[u8]) -> Vec<u8> {
    let before = u64::from(HEADER + PROGRAM_HEADER);
    let length = before + code.len() as u64;
    // 64 bits, lowest byte first, version 1.
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // A program with fixed addresses, x86-64.
    [2_u16, 62].iter().for_each(|half| file.extend(half.to_le_bytes()));
    file.extend(1_u32.to_le_bytes());
    // Its first instruction, where the program headers are, and that there are no section headers.
    [BASE + before, u64::from(HEADER), 0].iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend(0_u32.to_le_bytes());
    [HEADER, PROGRAM_HEADER, 1, 0, 0, 0].iter().for_each(|half| file.extend(half.to_le_bytes()));
    // One segment to load, to be read and executed.
    [1_u32, 5].iter().for_each(|word| file.extend(word.to_le_bytes()));
    [0, BASE, BASE, length, length, 0x1000].iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend(code);
    file
}

#[cfg(test)]
mod tests {
    #[test]
    fn files_are_programs_of_this_machine() {
        for file in [super::wait(), super::nothing()] {
            crate::check(&file).unwrap();
        }
    }
}
