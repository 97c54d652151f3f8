//! Devices with objects on them, EXEC over them, and the system's tools.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use fastrand::Rng;
use skytether_common::Result;
use skytether_offload::codes::descriptor_flag::TO_OUTPUT;
use skytether_offload::{Descriptor, ExecResult, Extent, Item, Object, Offload, Options, operations};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, Durability, Exec};
use tokio_util::sync::CancellationToken;

pub(crate) const BLOCK: u64 = 512;

/// A device, and where its next free byte is.
pub(crate) struct Disk {
    pub(crate) device: Arc<MemoryDevice>,
    next: u64,
    size: u64,
}

pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap().block_on(future)
}

impl Disk {
    pub(crate) fn new(size: u64) -> Self {
        Self { device: Arc::new(MemoryDevice::new("disk", size)), next: 0, size }
    }

    fn take(&mut self, len: u64) -> Extent {
        let extent = Extent::new(self.next, len.next_multiple_of(BLOCK));
        self.next += extent.length;
        assert!(self.next <= self.size, "the disk is full");
        extent
    }

    async fn write(&self, at: u64, bytes: &[u8]) {
        let mut padded = bytes.to_vec();
        // What follows an object in its last block is not zero on a real disk.
        padded.resize(padded.len().next_multiple_of(BLOCK as usize), 0xa5);
        self.device.write(at, padded.into(), Durability::Cached).await.unwrap();
    }

    /// The bytes in one extent.
    pub(crate) async fn put(&mut self, bytes: &[u8]) -> Object {
        if bytes.is_empty() {
            return Object::default();
        }
        let extent = self.take(bytes.len() as u64);
        self.write(extent.place, bytes).await;
        Object::new(bytes.len() as u64, vec![extent])
    }

    /// The bytes in extents of random lengths and places. Blocks of zeros may be holes.
    pub(crate) async fn scatter(&mut self, bytes: &[u8], rng: &mut Rng) -> Object {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = (rng.usize(1..6) * BLOCK as usize).min(rest.len());
            let (piece, later) = rest.split_at(len);
            pieces.push(piece);
            rest = later;
        }
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        if rng.bool() {
            rng.shuffle(&mut order);
        }
        let mut extents = vec![Extent::hole(BLOCK); pieces.len()];
        for number in order {
            let piece = pieces[number];
            if piece.iter().all(|byte| *byte == 0) && rng.bool() {
                extents[number] = Extent::hole((piece.len() as u64).next_multiple_of(BLOCK));
                continue;
            }
            if rng.u8(0..4) == 0 {
                self.take(BLOCK);
            }
            extents[number] = self.take(piece.len() as u64);
            self.write(extents[number].place, piece).await;
        }
        Object::new(bytes.len() as u64, extents)
    }

    /// Room for an output of `len` bytes, in two extents.
    pub(crate) fn room(&mut self, len: u64) -> Object {
        let first = self.take((len / 2).max(1));
        self.take(BLOCK);
        let second = self.take(len.saturating_sub(first.length).max(1));
        Object::new(len, vec![first, second])
    }

    /// What lies in an object.
    pub(crate) async fn get(&self, object: &Object, len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for extent in &object.extents {
            if extent.is_hole() {
                bytes.resize(bytes.len() + extent.length as usize, 0);
            } else {
                bytes.extend_from_slice(&self.device.read(extent.place, extent.length as u32).await.unwrap());
            }
        }
        bytes.truncate(len as usize);
        bytes
    }

    pub(crate) async fn exec(&self, exec: &Offload, descriptor: &Descriptor) -> ExecResult {
        self.try_exec(exec, descriptor).await.unwrap()
    }

    pub(crate) async fn try_exec(&self, exec: &Offload, descriptor: &Descriptor) -> Result<ExecResult> {
        let descriptor = descriptor.encode()?;
        let result = exec.run(self.device.clone(), descriptor, CancellationToken::new()).await?;
        assert!(result.len() <= exec.limits().result as usize);
        ExecResult::decode(&result)
    }

    /// The items of a descriptor that succeeds.
    pub(crate) async fn items(&self, exec: &Offload, descriptor: &Descriptor) -> Vec<Item> {
        let result = self.exec(exec, descriptor).await;
        assert!(result.done().unwrap().iter().all(|item| item.done().unwrap().failure.is_none()));
        result.items
    }

    /// What an operation writes to an output object with room for `room` bytes.
    pub(crate) async fn output(&mut self, exec: &Offload, descriptor: Descriptor, room: u64) -> Vec<u8> {
        let room = self.room(room);
        let result = self.exec(exec, &descriptor.with(TO_OUTPUT).output(room.clone())).await;
        assert!(result.done().unwrap().iter().all(|item| item.done().unwrap().failure.is_none()));
        self.get(&room, result.outputs[0]).await
    }
}

pub(crate) fn exec_with(options: Options) -> Offload {
    Offload::new(operations::registry(None).unwrap(), options).unwrap()
}

/// Small blocks, so that objects of some kilobytes have several.
pub(crate) fn exec() -> Offload {
    exec_with(Options { block: 4096, ..Options::default() })
}

/// What a program prints for this input. `None` where it is not installed.
pub(crate) fn tool(command: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    tool_in(command, input, "C.UTF-8")
}

pub(crate) fn tool_in(command: &[&str], input: &[u8], locale: &str) -> Option<Vec<u8>> {
    let child = Command::new(command[0]).args(&command[1..]).env("LC_ALL", locale).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("{command:?}: {error}"),
    };
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    // The program may end before it has read all.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    Some(output.stdout)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Text of words, spaces, newlines, characters of several bytes, wrong bytes, zeros.
pub(crate) fn text(rng: &mut Rng, len: usize) -> Vec<u8> {
    const PARTS: &[&[u8]] = &[
        b"a",
        b"ab",
        b"abc",
        b"needle",
        b"Needle",
        b"foo bar",
        b" ",
        b"  ",
        b"\t",
        b"\n",
        b"\n",
        b"\n\n",
        b"\r\n",
        b"\x0b",
        b"\x00",
        b"\x01",
        b"\x7f",
        b"\xff",
        "é".as_bytes(),
        "€".as_bytes(),
        "😀".as_bytes(),
        "\u{a0}".as_bytes(),
        "\u{2003}".as_bytes(),
        "\u{3000}".as_bytes(),
        "\u{200b}".as_bytes(),
        b"\xe2\x80",
        b"\xf0\x9f",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xf5\x80\x80\x80",
        b"123",
        b"x=1;",
        b"aaaa",
        b"abab",
    ];
    let mut bytes = Vec::new();
    let plain = rng.bool();
    while bytes.len() < len {
        match rng.u8(0..20) {
            0 => bytes.extend(std::iter::repeat_n(b'w', rng.usize(1..200))),
            1 if !plain => bytes.extend(std::iter::repeat_n(0, rng.usize(1..3000))),
            2 => bytes.extend(std::iter::repeat_with(|| rng.u8(b'a'..=b'y')).take(80)),
            _ => bytes.extend_from_slice(PARTS[rng.usize(..if plain { 11 } else { PARTS.len() })]),
        }
    }
    bytes.truncate(len);
    bytes
}
