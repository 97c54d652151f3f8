//! Hostile bytes take no more memory than the limits permit. The test program counts what each thread allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::Bytes;
use skytether_kinetic_protocol::budget::MAX_DECODED;
use skytether_kinetic_protocol::decoder::BLOCK;
use skytether_kinetic_protocol::{Command, FrameDecoder, FrameLimits, Limits};

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: isize) {
    // A thread that ends has no counter any more.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory that `run` had at once, in bytes, in addition to what was there before.
pub(crate) fn peak<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = run();
    (result, (PEAK.get() - before).max(0) as usize)
}

#[test]
fn frame_of_a_mebibyte_takes_one_and_a_block() {
    let limits = FrameLimits::of(&Limits::DRIVE);
    let frame = [&b"F\0\0\0\x02\0\x10\0\0\x20\x01"[..], &[7; 1 << 20]].concat();
    let (frames, peak) = peak(|| {
        let mut decoder = FrameDecoder::new(limits);
        let mut frames = 0;
        for piece in frame.repeat(8).chunks(1500) {
            let mut rest = piece;
            while !rest.is_empty() {
                rest = &rest[decoder.feed(rest)..];
                while decoder.next_frame().unwrap().is_some() {
                    frames += 1;
                }
            }
        }
        frames
    });
    // The stream itself was made within, too.
    let stream = 8 * frame.len();
    assert_eq!(frames, 8);
    assert!(peak <= stream + limits.frame() + 2 * BLOCK, "{} bytes more than the stream", peak - stream);
}

#[test]
fn announced_lengths_take_a_block_at_most() {
    let limits = FrameLimits { message: u32::MAX, value: u32::MAX, dropped_value: u32::MAX };
    let ((), peak) = peak(|| {
        let mut decoder = FrameDecoder::new(limits);
        decoder.feed(b"F\xff\xff\xff\xff\xff\xff\xff\xff");
        decoder.feed(&[0; 1000]);
        assert_eq!(decoder.next_frame(), Ok(None));
    });
    assert!((BLOCK..BLOCK + 4096).contains(&peak), "{peak}");
}

/// The message is in the first block, and the value passes through another.
#[test]
fn dropped_value_takes_two_blocks_at_most() {
    let limits = FrameLimits::of(&Limits::DRIVE).dropping_values(u32::MAX);
    let (frame, peak) = peak(|| {
        let mut decoder = FrameDecoder::new(limits);
        assert_eq!(decoder.feed(b"F\0\0\0\0\x10\0\0\0"), 9);
        let (mut left, zeros) = (1usize << 28, [0; 8192]);
        loop {
            if let Some(frame) = decoder.next_frame().unwrap() {
                return frame;
            }
            left -= decoder.feed(&zeros[..left.min(8192)]);
        }
    });
    assert_eq!(frame.dropped, Some(1 << 28));
    assert!(peak < 2 * BLOCK + 4096, "{peak}");
}

/// A push of 500,000 empty operations has one mebibyte, and would take 120 when decoded.
#[test]
fn command_of_many_elements_is_refused_before_it_grows() {
    let list = [0x12, 0x00].repeat(524_000);
    let length = |of: usize| [0x80 | (of & 0x7f) as u8, 0x80 | (of >> 7 & 0x7f) as u8, (of >> 14) as u8];
    let push = [&[0x22][..], &length(list.len()), &list].concat();
    let command = Bytes::from([&[0x12][..], &length(push.len()), &push].concat());
    let (result, peak) = peak(|| Command::parse(command));
    assert!(result.unwrap_err().text.contains("send fewer elements"));
    assert!(peak < 4096, "{peak}");
}

/// The largest lists that pass take what the budget says, and what growing lists leave behind.
#[test]
fn decoded_command_keeps_its_budget() {
    for (field, list) in [(0x22, 0x12), (0x3a, 0x12), (0x5a, 0x1a), (0x5a, 0x2a), (0x4a, 0x10)] {
        let length = |of: usize| [0x80 | (of & 0x7f) as u8, 0x80 | (of >> 7 & 0x7f) as u8, (of >> 14) as u8];
        let build = |elements: usize| {
            let list = [list, 0x00].repeat(elements);
            let inner = [&[field][..], &length(list.len()), &list].concat();
            Bytes::from([&[0x12][..], &length(inner.len()), &inner].concat())
        };
        let (mut fits, mut too_many) = (1, 600_000);
        while too_many - fits > 1 {
            let middle = usize::midpoint(fits, too_many);
            *if Command::parse(build(middle)).is_ok() { &mut fits } else { &mut too_many } = middle;
        }
        let command = build(fits);
        let (result, peak) = peak(|| Command::parse(command));
        assert!(result.is_ok() && fits > 10_000, "{field}, {list}: {fits}");
        assert!(peak <= 3 * MAX_DECODED, "{field}, {list}: {peak} for {fits}");
    }
}
