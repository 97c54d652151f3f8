//! Commands over namespaces.

use skytether_nvme_tcp::command::{Status, admin, fabrics, io};
use skytether_nvme_tcp::nqn_of;
use skytether_nvme_tcp::pdu::Digests;
use skytether_volume::device::COMPARE_MOST;

use crate::support::{DRIVE, Host, Server, Sqe};

const MIB: usize = 1 << 20;
const ALL: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

fn write(io: &mut Host, first: u64, data: &[u8]) {
    let command = Sqe::blocks(io::WRITE, first, (data.len() / 512) as u32);
    // What fits goes with the command.
    let command = if data.len() <= 8192 { command.in_capsule(data.len()) } else { command.transfer(data.len()) };
    io.command(command, data).unwrap();
}

fn read(io: &mut Host, first: u64, len: usize) -> Vec<u8> {
    io.command(Sqe::blocks(io::READ, first, (len / 512) as u32).transfer(len), &[]).unwrap().data
}

#[test]
fn blocks_are_read_as_written_with_any_digests() {
    for (header, data) in ALL {
        let digests = Digests { header, data };
        let server = Server::of(&[8 * MIB as u64]);
        let (_admin, mut io) = server.associate(digests);
        let (mut model, mut dice) = (vec![0; 8 * MIB], fastrand::Rng::with_seed(1));
        for _ in 0..100 {
            let len = 512 * if dice.bool() { dice.usize(1..=16) } else { dice.usize(1..=2048) };
            let first = dice.usize(..=(model.len() - len) / 512);
            match dice.u8(..4) {
                0 | 1 => {
                    let data: Vec<u8> = (0..len).map(|_| dice.u8(..)).collect();
                    model[first * 512..first * 512 + len].copy_from_slice(&data);
                    write(&mut io, first as u64, &data);
                }
                2 => {
                    model[first * 512..first * 512 + len].fill(0);
                    let how = u32::from(dice.bool()) << 25 | 1 << 30;
                    let command = Sqe::blocks(io::WRITE_ZEROES, first as u64, (len / 512) as u32);
                    io.command(command.word(12, (len / 512 - 1) as u32 | how), &[]).unwrap();
                }
                _ => assert!(read(&mut io, first as u64, len) == model[first * 512..first * 512 + len]),
            }
        }
        for place in 0..8 {
            assert!(read(&mut io, (place * MIB / 512) as u64, MIB) == model[place * MIB..(place + 1) * MIB]);
        }
    }
}

#[test]
fn commands_of_several_queues_run_at_once() {
    let server = Server::of(&[64 * MIB as u64]);
    let (_admin, number) = server.admin(Digests::default());
    std::thread::scope(|scope| {
        for queue in 1..=4_u16 {
            let mut io = server.open(Digests::default());
            io.connect(queue, number, &nqn_of(DRIVE), 63, 0).unwrap();
            scope.spawn(move || {
                let data = vec![queue as u8; 4096];
                let first = |n: u64| u64::from(queue) * 20_000 + 8 * n;
                for round in 0..20 {
                    // As many as the queue has entries, and only then their completions.
                    let ids: Vec<u16> = (0..60).map(|n| io.submit(Sqe::blocks(io::WRITE, first(60 * round + n), 8).in_capsule(4096), &data)).collect();
                    let mut answered: Vec<u16> =
                        ids.iter().map(|_| io.answer(&[], 1)).inspect(|answer| assert_eq!(answer.status, 0)).map(|answer| answer.id).collect();
                    answered.sort_unstable();
                    assert_eq!(answered, ids);
                }
                assert!((0..1200).all(|n| read(&mut io, first(n), 4096) == data));
            });
        }
    });
}

#[test]
fn completions_say_the_head_of_the_queue() {
    let server = Server::of(&[MIB as u64]);
    let (_admin, number) = server.admin(Digests::default());
    let mut io = server.open(Digests::default());
    io.connect(1, number, &nqn_of(DRIVE), 3, 0).unwrap();
    let heads: Vec<u16> = (0..6).map(|_| io.command(Sqe::new(io::FLUSH).namespace(1), &[]).unwrap().head).collect();
    assert_eq!(heads, [2, 3, 0, 1, 2, 3]);
}

#[test]
fn reads_without_flow_control_need_no_completion() {
    let server = Server::of(&[MIB as u64]);
    let (_admin, number) = server.admin(Digests::default());
    let mut io = server.open(Digests::default());
    let mut data = vec![0; 1024];
    data[..16].copy_from_slice(&[9; 16]);
    data[16..18].copy_from_slice(&number.to_le_bytes());
    data[256..256 + nqn_of(DRIVE).len()].copy_from_slice(nqn_of(DRIVE).as_bytes());
    data[512..524].copy_from_slice(b"nqn.of.a.hst");
    let mut command = Sqe::new(admin::FABRICS).word(10, 1 << 16).word(11, 31 | 4 << 16).in_capsule(1024);
    command.0[4] = fabrics::CONNECT;
    io.command(command, &data).unwrap();
    io.command(Sqe::blocks(io::WRITE, 0, 1).in_capsule(512), &[5; 512]).unwrap();
    let answer = io.command(Sqe::blocks(io::READ, 0, 1).transfer(512), &[]).unwrap();
    assert_eq!((answer.head, answer.data), (0xffff, vec![5; 512]));
}

#[test]
fn compare_finds_the_difference() {
    let server = Server::of(&[MIB as u64]);
    let (_admin, mut io) = server.associate(Digests::default());
    write(&mut io, 8, &[3; 16384]);
    io.command(Sqe::blocks(io::COMPARE, 8, 32).transfer(16384), &[3; 16384]).unwrap();
    let mut other = vec![3; 16384];
    other[16383] = 4;
    io.fails(Sqe::blocks(io::COMPARE, 8, 32).transfer(16384), &other, Status::COMPARE_FAILURE);
    io.command(Sqe::blocks(io::VERIFY, 0, 2048), &[]).unwrap();
    io.fails(Sqe::blocks(io::VERIFY, 0, 2049), &[], Status::OUT_OF_RANGE);
}

#[test]
fn fused_compare_and_write_is_one_step() {
    let server = Server::of(&[MIB as u64]);
    let (_admin, mut io) = server.associate(Digests::default());
    let mut swap = |expected: u8, new: u8| {
        let pair = [(io::COMPARE, 1, expected), (io::WRITE, 2, new)];
        for (opcode, which, value) in pair {
            io.submit(Sqe::blocks(opcode, 4, 1).fuse(which).in_capsule(512), &[value; 512]);
        }
        let mut answers = [io.answer(&[], 1), io.answer(&[], 1)];
        answers.sort_by_key(|answer| answer.id);
        answers.map(|answer| answer.status)
    };
    assert_eq!(swap(0, 7), [0, 0]);
    assert_eq!(swap(0, 8), [Status::COMPARE_FAILURE.field(), Status::FAILED_FUSED.field()]);
    assert_eq!(swap(7, 9), [0, 0]);
    assert_eq!(read(&mut io, 4, 512), [9; 512]);

    io.fails(Sqe::blocks(io::WRITE, 4, 1).fuse(2).in_capsule(512), &[1; 512], Status::MISSING_FUSED);
    // The first without its second fails when another command comes.
    let first = io.submit(Sqe::blocks(io::COMPARE, 4, 1).fuse(1).in_capsule(512), &[9; 512]);
    let other = io.submit(Sqe::new(io::FLUSH).namespace(1), &[]);
    let mut answers = [io.answer(&[], 1), io.answer(&[], 1)];
    answers.sort_by_key(|answer| answer.id);
    assert_eq!(answers.map(|answer| (answer.id, answer.status)), [(first, Status::MISSING_FUSED.field()), (other, 0)]);
}

/// The device refuses more than COMPARE_MOST, as volumes do.
#[test]
fn compare_and_write_takes_what_namespaces_promise() {
    let server = Server::of(&[4 * MIB as u64]);
    let (mut admin, mut io) = server.associate(Digests::default());
    let mut identify = |what: u32, at: usize| {
        let page = admin.command(Sqe::new(admin::IDENTIFY).namespace(what ^ 1).word(10, what).transfer(4096), &[]).unwrap().data;
        u32::from(u16::from_le_bytes([page[at], page[at + 1]])) + 1
    };
    // NACWU and ACWU.
    let most = identify(0, 38);
    assert_eq!((identify(1, 532), most), (most, COMPARE_MOST / 512));
    let mut swap = |blocks: u32| {
        let data = vec![0; blocks as usize * 512];
        for (opcode, which) in [(io::COMPARE, 1), (io::WRITE, 2)] {
            io.submit(Sqe::blocks(opcode, 1, blocks).fuse(which).transfer(data.len()), &[]);
        }
        let mut answers = [io.answer(&data, data.len()), io.answer(&data, data.len())];
        answers.sort_by_key(|answer| answer.id);
        answers.map(|answer| answer.status)
    };
    assert_eq!(swap(most), [0, 0]);
    assert_eq!(swap(most + 1), [Status::ATOMIC_EXCEEDED.field(), Status::FAILED_FUSED.field()]);
}

#[test]
fn ranges_are_deallocated() {
    let server = Server::of(&[MIB as u64]);
    let (_admin, mut io) = server.associate(Digests::default());
    write(&mut io, 0, &[1; 65536]);
    let range = |first: u64, blocks: u32| [&[0; 4][..], &blocks.to_le_bytes(), &first.to_le_bytes()].concat();
    let mut ranges = [range(8, 8), range(32, 16), range(0, 0)].concat();
    let manage = |count: u32, attributes: u32| Sqe::new(io::DATASET_MANAGEMENT).namespace(1).word(10, count - 1).word(11, attributes);
    io.command(manage(3, 1).in_capsule(48), &ranges).unwrap();
    assert_eq!(read(&mut io, 0, 65536), [1; 65536]);
    // Linux always sends room for 256 ranges.
    ranges.resize(4096, 0xff);
    io.command(manage(3, 4).in_capsule(4096), &ranges).unwrap();
    let mut expected = vec![1; 65536];
    expected[4096..8192].fill(0);
    expected[16384..24576].fill(0);
    assert_eq!(read(&mut io, 0, 65536), expected);
    io.fails(manage(1, 4).in_capsule(16), &range(2040, 9), Status::OUT_OF_RANGE);
    io.fails(manage(2, 4).in_capsule(16), &range(0, 1), Status::DATA_LENGTH);
}

#[test]
fn commands_that_are_wrong_fail_and_the_next_works() {
    let server = Server::of(&[MIB as u64]);
    let (_admin, mut io) = server.associate(Digests::default());
    let (read_one, write_one) = (Sqe::blocks(io::READ, 0, 1), Sqe::blocks(io::WRITE, 0, 1));
    for (command, status) in [
        (read_one.transfer(1024), Status::DATA_LENGTH),
        (read_one, Status::SGL_TYPE),
        (read_one.in_capsule(512), Status::SGL_TYPE),
        (read_one.transfer(512).namespace(2), Status::INVALID_NAMESPACE),
        (read_one.transfer(512).namespace(0), Status::INVALID_NAMESPACE),
        (read_one.transfer(512).word(12, 1 << 29), Status::INVALID_FIELD),
        (Sqe::blocks(io::READ, u64::MAX, 1).transfer(512), Status::OUT_OF_RANGE),
        (Sqe::blocks(io::READ, 0, 4096).transfer(2 * MIB), Status::INVALID_FIELD),
        (write_one.in_capsule(1024), Status::DATA_LENGTH),
        (Sqe::blocks(io::WRITE_ZEROES, 2048, 1), Status::OUT_OF_RANGE),
        (Sqe::new(0x04).namespace(1), Status::INVALID_OPCODE),
        (Sqe::new(0xff).namespace(1), Status::INVALID_OPCODE),
        (Sqe::new(io::FLUSH).namespace(3), Status::INVALID_NAMESPACE),
    ] {
        io.fails(command, &[0; 512], status);
    }
    let mut beyond = write_one.in_capsule(512);
    beyond.0[24] = 1;
    io.fails(beyond, &[0; 512], Status::SGL_OFFSET);
    io.command(Sqe::new(io::FLUSH).namespace(u32::MAX), &[]).unwrap();
    write(&mut io, 0, &[1; 512]);
}

#[test]
fn damaged_data_fails_its_command_alone() {
    let server = Server::of(&[MIB as u64]);
    let (_admin, mut io) = server.associate(Digests { header: true, data: true });
    let command = Sqe::blocks(io::WRITE, 0, 1).in_capsule(512).id(100);
    let mut unit = io.framing.unit(0x04, 0, &command.0, vec![1; 512].into()).concat();
    let last = unit.len() - 10;
    unit[last] ^= 1;
    io.send(&unit);
    assert_eq!(io.answer(&[], 1).status, Status::TRANSIENT_TRANSPORT.field());
    write(&mut io, 0, &[2; 512]);
    assert_eq!(read(&mut io, 0, 512), [2; 512]);
}

#[test]
fn disconnect_ends_an_io_queue() {
    let server = Server::of(&[MIB as u64]);
    let (mut admin, mut io) = server.associate(Digests::default());
    let mut command = Sqe::new(admin::FABRICS);
    command.0[4] = fabrics::DISCONNECT;
    io.command(command, &[]).unwrap();
    assert!(io.is_closed());
    admin.command(Sqe::new(admin::KEEP_ALIVE), &[]).unwrap();
}
