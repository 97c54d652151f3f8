//! Targets for NVMe/TCP: what a host sends on one connection.

use bytes::Bytes;
use skytether_nvme_tcp::command::{COMMAND, Command, ConnectData, Place, admin, fabrics, io, ranges};
use skytether_nvme_tcp::logs::Wanted;
use skytether_nvme_tcp::pdu::{CONNECTION, DataHeader, Digests, Fatal, Framing, H2C_DATA, HEAD, Head, IN_CAPSULE, Opening, flag, kind, terminate};

fn opening(digests: u8, alignment: u8) -> Vec<u8> {
    let mut bytes = vec![0; CONNECTION];
    (bytes[2], bytes[4], bytes[10], bytes[11]) = (128, 128, alignment, digests);
    bytes
}

fn command(opcode: u8, bytes: &[(usize, u8)]) -> [u8; COMMAND] {
    let mut command = [0; COMMAND];
    command[0] = opcode;
    bytes.iter().for_each(|(at, value)| command[*at] = *value);
    command
}

pub(crate) fn streams() -> Vec<Vec<u8>> {
    let mut connect = vec![7; 1024];
    connect[256..768].fill(0);
    connect[256..262].copy_from_slice(b"nqn.of");
    connect[512..518].copy_from_slice(b"nqn.of");
    let of = |digests: u8, alignment: u8| {
        let framing = Framing { digests: Digests { header: digests & 1 != 0, data: digests & 2 != 0 }, alignment: 4 * (usize::from(alignment) + 1) };
        let transfer = [&[1, 0, 1, 0][..], &[0; 4], &512_u32.to_le_bytes(), &[0; 4]].concat();
        let units = [
            framing.unit(kind::COMMAND, 0, &command(admin::FABRICS, &[(4, fabrics::CONNECT), (39, 1), (33, 4)]), connect.clone().into()),
            framing.unit(kind::COMMAND, 0, &command(io::DATASET_MANAGEMENT, &[(39, 1), (32, 32), (40, 1)]), vec![3; 32].into()),
            framing.unit(kind::COMMAND, 0, &command(io::WRITE, &[(39, 0x5a), (33, 2)]), Bytes::new()),
            framing.unit(kind::H2C_DATA, flag::LAST, &transfer, vec![5; 512].into()),
            framing.unit(kind::COMMAND, 0, &command(admin::GET_LOG_PAGE, &[(39, 0x5a), (40, 0x70), (42, 255)]), Bytes::new()),
        ];
        [opening(digests, alignment), units.concat().concat()].concat()
    };
    vec![of(0, 0), of(1, 0), of(2, 3), of(3, 31)]
}

/// A connection to its end. Whether it was opened, and all its units could be read.
pub(crate) fn units_read(data: &[u8]) -> bool {
    let Some((request, mut rest)) = data.split_first_chunk::<CONNECTION>() else { return false };
    let Ok(opening) = Opening::parse(request) else { return false };
    assert!(opening.answer().len() == CONNECTION && opening.alignment <= 128);
    while let Some((bytes, after)) = rest.split_first_chunk::<HEAD>() {
        let head = Head::parse(bytes);
        let layout = match head.layout(opening.digests) {
            Ok(layout) => layout,
            Err(why) => return refused(why, bytes),
        };
        let most = if head.kind == kind::COMMAND { IN_CAPSULE } else { H2C_DATA };
        assert!(layout.data <= most as usize && layout.padding <= 128 && layout.header <= COMMAND);
        let digest = if layout.header_digest { 4 } else { 0 };
        let Some((header, after)) = after.split_at_checked(layout.header + digest + layout.padding) else { return false };
        let Some((data, after)) = after.split_at_checked(layout.data) else { return false };
        let Some((_, after)) = after.split_at_checked(if layout.data_digest { 4 } else { 0 }) else { return false };
        rest = after;
        if let Some(header) = header.first_chunk::<COMMAND>() {
            read_command(&Command::new(*header), data);
        } else if let Some(header) = header.first_chunk::<16>() {
            let _ = DataHeader::parse(header);
        }
    }
    rest.is_empty()
}

fn refused(why: Fatal, bytes: &[u8]) -> bool {
    assert!((1..=6).contains(&why.status));
    assert!(terminate(why, bytes).len() <= 24 + CONNECTION);
    false
}

fn read_command(command: &Command, data: &[u8]) {
    assert!((1..=1 << 16).contains(&command.blocks()));
    if let Ok(place) = command.place() {
        let (Place::Capsule { len, .. } | Place::Transfer { len }) = place;
        assert_eq!(place.is_empty(), len == 0);
    }
    let page = Bytes::from_static(&[1; 512]);
    if let Ok(cut) = Wanted::of(command).cut(&page, 4096) {
        assert!(cut.len() <= 4096);
    }
    if let Some(data) = ConnectData::parse(data) {
        assert!(data.subsystem.len() <= 223 && data.host.len() <= 223);
    }
    let count = (command.word(10) & 0xff) as usize + 1;
    assert_eq!(ranges(data, count).is_some(), data.len() >= 16 * count);
}
