//! What a logical unit is known by: the designators of the identification page, which EXTENDED COPY looks for.

use uuid::Uuid;

use crate::options::Options;

/// A designator of a logical unit (SPC-4, 7.8.6.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Designator {
    /// 1 is binary, 2 ASCII.
    pub(crate) code_set: u8,
    /// 1 is T10 vendor ID, 2 EUI-64, 3 NAA, 10 UUID.
    pub(crate) kind: u8,
    pub(crate) bytes: Vec<u8>,
}

/// Those of the volume `id`.
pub(crate) fn designators(options: &Options, id: Uuid) -> Vec<Designator> {
    let of = |code_set, kind, bytes| Designator { code_set, kind, bytes };
    let (first, second) = id.as_u64_pair();
    // NAA 3, locally assigned: 60 bits of the whole id, as we have no number of a company.
    let mut naa = (first ^ second).to_be_bytes().to_vec();
    naa[0] = 0x30 | naa[0] & 0x0F;
    // EUI-64, marked as administered locally and of one device.
    let mut eui = second.to_be_bytes().to_vec();
    eui[0] = (eui[0] | 0x02) & 0xFE;
    let mut t10 = ascii::<8>(&options.vendor).to_vec();
    t10.extend_from_slice(id.simple().to_string().as_bytes());
    // UUID (SPC-5, 7.7.6.12): the type 1 and the id, whole.
    let mut uuid = vec![0x10, 0];
    uuid.extend_from_slice(id.as_bytes());
    vec![of(1, 3, naa), of(1, 2, eui), of(2, 1, t10), of(1, 10, uuid)]
}

/// `text` with spaces behind it; what is not printable becomes a space (SPC-4, 4.3.1).
pub(crate) fn ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [b' '; N];
    for (to, from) in out.iter_mut().zip(text.bytes()) {
        *to = if (0x20..0x7F).contains(&from) { from } else { b' ' };
    }
    out
}
