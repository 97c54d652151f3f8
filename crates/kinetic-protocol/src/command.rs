//! A command: header, body and status, and the parts of bodies that are about keys and values.
//!
//! Every field is optional, as in protocol buffers 2. Byte fields of a decoded command are slices of the frame that it
//! came in: copy what is kept for longer than the command, or a key of ten bytes keeps a whole frame in memory.

use bytes::Bytes;

use crate::budget;
use crate::kinds::{Algorithm, MessageType, PinOpType, PowerLevel, SetupOpType, StatusCode, Synchronization};
use crate::log::GetLog;
use crate::program::ManageApplet;
use crate::security::Security;
use crate::status::{Refusal, Status};

/// What one side tells the other.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Command {
    /// Who the command is for, and which.
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    /// What it is about.
    #[prost(message, optional, tag = "2")]
    pub body: Option<Body>,
    /// How it ended, in responses.
    #[prost(message, optional, tag = "3")]
    pub status: Option<Status>,
}

impl Command {
    /// Decodes a command. Its byte fields share the memory of `bytes`.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if the bytes are no command, or one that would take more than
    /// [`budget::MAX_DECODED`] bytes of memory.
    pub fn parse(bytes: Bytes) -> Result<Command, Refusal> {
        budget::check(&bytes)?;
        prost::Message::decode(bytes).map_err(|e| Refusal::invalid(format!("the command is malformed: {e}")))
    }

    /// The command as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        prost::Message::encode_to_vec(self).into()
    }

    /// The header.
    ///
    /// # Errors
    /// [`StatusCode::HeaderRequired`] if there is none.
    pub fn require_header(&self) -> Result<&Header, Refusal> {
        self.header.as_ref().ok_or_else(|| Refusal::new(StatusCode::HeaderRequired, "the command has no header"))
    }

    /// The code of the status: [`StatusCode::Invalid`] if there is none, or an unknown one.
    #[must_use]
    pub fn status_code(&self) -> StatusCode {
        self.status.as_ref().map_or(StatusCode::Invalid, Status::code)
    }
}

/// Who a command is for, and which.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Header {
    /// The drive refuses commands with another cluster version than its own.
    #[prost(int64, optional, tag = "1")]
    pub cluster_version: Option<i64>,
    /// The number that the drive gave the connection when it was opened.
    #[prost(int64, optional, tag = "3")]
    pub connection_id: Option<i64>,
    /// In requests: grows with each request of a connection.
    #[prost(uint64, optional, tag = "4")]
    pub sequence: Option<u64>,
    /// In responses: the sequence of the request.
    #[prost(uint64, optional, tag = "6")]
    pub ack_sequence: Option<u64>,
    /// What the command is.
    #[prost(enumeration = "MessageType", optional, tag = "7")]
    pub message_type: Option<i32>,
    /// How long the request may take, in milliseconds; 0 is no limit.
    #[prost(uint64, optional, tag = "9")]
    pub timeout: Option<u64>,
    /// Whether a long scan may end early with what it has when its time is over.
    #[prost(bool, optional, tag = "10")]
    pub early_exit: Option<bool>,
    /// 1 to 9: see [`crate::kinds::Priority`].
    #[prost(int32, optional, tag = "12")]
    pub priority: Option<i32>,
    /// For how long the drive may work on this request before it looks at others, in milliseconds.
    #[prost(uint64, optional, tag = "13")]
    pub time_quanta: Option<u64>,
    /// The batch that the command belongs to.
    #[prost(uint32, optional, tag = "14")]
    pub batch_id: Option<u32>,
}

/// What a command is about: at most one of these, by its type.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Body {
    /// A key, without its value, which is outside of the message.
    #[prost(message, optional, tag = "1")]
    pub key_value: Option<KeyValue>,
    /// A range of keys.
    #[prost(message, optional, tag = "2")]
    pub range: Option<Range>,
    /// Cluster version or firmware.
    #[prost(message, optional, tag = "3")]
    pub setup: Option<Setup>,
    /// Copies to another drive.
    #[prost(message, optional, tag = "4")]
    pub p2p_operation: Option<P2pOperation>,
    /// Facts about the drive.
    #[prost(message, optional, tag = "6")]
    pub get_log: Option<GetLog>,
    /// Identities and PINs.
    #[prost(message, optional, tag = "7")]
    pub security: Option<Security>,
    /// Lock, unlock, erase.
    #[prost(message, optional, tag = "8")]
    pub pin_op: Option<PinOperation>,
    /// The end of a batch.
    #[prost(message, optional, tag = "9")]
    pub batch: Option<Batch>,
    /// Power level.
    #[prost(message, optional, tag = "10")]
    pub power: Option<PowerManagement>,
    /// Programs.
    #[prost(message, optional, tag = "11")]
    pub manage_applet: Option<ManageApplet>,
}

/// A key with its version and tag.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct KeyValue {
    /// The version that a put gives the key.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub new_version: Option<Bytes>,
    /// The key.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub key: Option<Bytes>,
    /// The version that is stored; in puts and deletes, the one that must be.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub db_version: Option<Bytes>,
    /// The client's checksum of the value.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub tag: Option<Bytes>,
    /// What the tag is computed with.
    #[prost(enumeration = "Algorithm", optional, tag = "6")]
    pub algorithm: Option<i32>,
    /// Whether a get leaves out the value.
    #[prost(bool, optional, tag = "7")]
    pub metadata_only: Option<bool>,
    /// Whether versions are not compared.
    #[prost(bool, optional, tag = "8")]
    pub force: Option<bool>,
    /// When the write is acknowledged.
    #[prost(enumeration = "Synchronization", optional, tag = "9")]
    pub synchronization: Option<i32>,
}

/// A range of keys, and in responses its keys. [`crate::range::KeyRange`] gives it its meaning.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Range {
    /// The first key.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub start_key: Option<Bytes>,
    /// The last key; empty: there is no upper end.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub end_key: Option<Bytes>,
    /// Whether the first key itself belongs to the range.
    #[prost(bool, optional, tag = "3")]
    pub start_key_inclusive: Option<bool>,
    /// Whether the last key itself belongs to the range.
    #[prost(bool, optional, tag = "4")]
    pub end_key_inclusive: Option<bool>,
    /// How many keys the response may have.
    #[prost(uint32, optional, tag = "5")]
    pub max_returned: Option<u32>,
    /// Whether keys come from the end of the range, in falling order.
    #[prost(bool, optional, tag = "6")]
    pub reverse: Option<bool>,
    /// In responses: the keys.
    #[prost(bytes = "bytes", repeated, tag = "8")]
    pub keys: Vec<Bytes>,
}

/// Sets the cluster version, or loads firmware.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Setup {
    /// The new cluster version.
    #[prost(int64, optional, tag = "1")]
    pub new_cluster_version: Option<i64>,
    /// Protocol 3.0.6: whether the frame's value is firmware. Since 4.0 `setup_op_type` says so.
    #[prost(bool, optional, tag = "5")]
    pub firmware_download: Option<bool>,
    /// Since protocol 4.0: which of the two it is.
    #[prost(enumeration = "SetupOpType", optional, tag = "6")]
    pub setup_op_type: Option<i32>,
}

impl Setup {
    /// Whether the frame's value is firmware, in either version of the protocol.
    #[must_use]
    pub fn is_firmware(&self) -> bool {
        self.firmware_download() || self.setup_op_type() == SetupOpType::Firmware
    }
}

/// Copies of keys to another drive.
#[derive(Clone, PartialEq, prost::Message)]
pub struct P2pOperation {
    /// The other drive.
    #[prost(message, optional, tag = "1")]
    pub peer: Option<Peer>,
    /// One for each key.
    #[prost(message, repeated, tag = "2")]
    pub operation: Vec<Operation>,
    /// In responses: whether every operation succeeded, and all within them.
    #[prost(bool, optional, tag = "3")]
    pub all_child_operations_succeeded: Option<bool>,
}

/// Where another drive listens.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Peer {
    /// Its name or address.
    #[prost(string, optional, tag = "1")]
    pub hostname: Option<String>,
    /// Its port.
    #[prost(uint32, optional, tag = "2")]
    pub port: Option<u32>,
    /// Whether that port speaks TLS.
    #[prost(bool, optional, tag = "3")]
    pub tls: Option<bool>,
}

/// The copy of one key.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Operation {
    /// The key here.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub key: Option<Bytes>,
    /// The version that the other drive must have, unless `force` is set.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub version: Option<Bytes>,
    /// The key there, if it is another one.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub new_key: Option<Bytes>,
    /// Whether versions are not compared.
    #[prost(bool, optional, tag = "6")]
    pub force: Option<bool>,
    /// In responses: how the copy ended.
    #[prost(message, optional, tag = "7")]
    pub status: Option<Status>,
    /// What the other drive copies on, when it has the key.
    #[prost(message, optional, tag = "8")]
    pub p2pop: Option<P2pOperation>,
}

/// Lock, unlock, erase.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct PinOperation {
    /// Which of them.
    #[prost(enumeration = "PinOpType", optional, tag = "1")]
    pub pin_op_type: Option<i32>,
}

/// The end of a batch.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Batch {
    /// In the request: how many puts and deletes the batch has.
    #[prost(uint32, optional, tag = "1")]
    pub count: Option<u32>,
    /// In the response: the sequences of all of them.
    #[prost(uint64, repeated, packed = "true", tag = "2")]
    pub sequence: Vec<u64>,
    /// In the response: the sequence of the first that failed.
    #[prost(uint64, optional, tag = "3")]
    pub failed_sequence: Option<u64>,
}

/// Power level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct PowerManagement {
    /// The new level.
    #[prost(enumeration = "PowerLevel", optional, tag = "1")]
    pub level: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field by field, by hand: header {cluster version 7, connection 1, sequence 9, type 22}, body {setup {new cluster
    /// version 8, firmware download true}}, as a client of protocol 3.0.6 sends it.
    const SETUP_306: &[u8] = &[
        0x0a, 0x08, 0x08, 0x07, 0x18, 0x01, 0x20, 0x09, 0x38, 0x16, // header
        0x12, 0x06, 0x1a, 0x04, 0x08, 0x08, 0x28, 0x01, // body, setup
    ];

    #[test]
    fn setup_of_3_0_6_has_its_firmware_flag() {
        let command = Command::parse(Bytes::from_static(SETUP_306)).unwrap();
        let header = command.require_header().unwrap();
        assert_eq!((header.cluster_version, header.connection_id, header.sequence), (Some(7), Some(1), Some(9)));
        assert_eq!(header.message_type(), MessageType::Setup);
        let setup = command.body.as_ref().unwrap().setup.as_ref().unwrap();
        assert_eq!((setup.new_cluster_version, setup.setup_op_type), (Some(8), None));
        assert!(setup.is_firmware());
        assert_eq!(&command.to_bytes()[..], SETUP_306);
    }

    #[test]
    fn firmware_flag_of_4_0_is_the_operation_type() {
        assert!(Setup { setup_op_type: Some(SetupOpType::Firmware.into()), ..Setup::default() }.is_firmware());
        assert!(!Setup { setup_op_type: Some(SetupOpType::ClusterVersion.into()), ..Setup::default() }.is_firmware());
        assert!(!Setup::default().is_firmware());
    }

    /// A header with priority 12 and message type 98, and a status with code 77: none of them exists.
    #[test]
    fn unknown_enumeration_values_survive() {
        let bytes: &[u8] = &[0x0a, 0x04, 0x38, 0x62, 0x60, 0x0c, 0x1a, 0x02, 0x08, 0x4d];
        let command = Command::parse(Bytes::from_static(bytes)).unwrap();
        let header = command.require_header().unwrap();
        assert_eq!((header.message_type, header.priority), (Some(98), Some(12)));
        assert_eq!((header.message_type(), command.status_code()), (MessageType::Invalid, StatusCode::Invalid));
        assert_eq!(&command.to_bytes()[..], bytes);
    }

    /// A header with fields 2, 63 and 100 of three wire types between known ones, and field 9 of the command itself.
    #[test]
    fn unknown_fields_are_skipped() {
        let bytes: &[u8] = &[
            0x0a, 0x1c, 0x20, 0x05, // header of 28 bytes, sequence 5
            0x10, 0x96, 0x01, // field 2: 150
            0xfd, 0x03, 1, 2, 3, 4, // field 63: four bytes
            0xa2, 0x06, 0x02, b'x', b'y', // field 100: two bytes
            0xa1, 0x06, 8, 7, 6, 5, 4, 3, 2, 1, // field 100 again: eight bytes
            0x38, 0x04, // type 4
            0x4a, 0x01, 0x00, // field 9 of the command
        ];
        let command = Command::parse(Bytes::from_static(bytes)).unwrap();
        let header = command.require_header().unwrap();
        assert_eq!((header.sequence, header.message_type()), (Some(5), MessageType::Put));
    }

    #[test]
    fn negative_invalid_values_take_ten_bytes() {
        let command = Command { status: Some(Status::of(StatusCode::Invalid)), ..Command::default() };
        let bytes = command.to_bytes();
        assert_eq!(&bytes[..], [0x1a, 0x0b, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
        assert_eq!(Command::parse(bytes).unwrap(), command);
    }

    #[test]
    fn header_is_required() {
        assert_eq!(Command::default().require_header().unwrap_err().code, StatusCode::HeaderRequired);
        assert_eq!(Command::default().status_code(), StatusCode::Invalid);
    }

    /// Protocol 4.0.1 packs the sequences of a batch. Writers of either form exist.
    #[test]
    fn batch_sequences_are_read_packed_or_not() {
        let packed: &[u8] = &[0x12, 0x06, 0x4a, 0x04, 0x12, 0x02, 0x03, 0x05];
        let single: &[u8] = &[0x12, 0x06, 0x4a, 0x04, 0x10, 0x03, 0x10, 0x05];
        let sequences = |bytes| Command::parse(Bytes::from_static(bytes)).unwrap().body.unwrap().batch.unwrap().sequence;
        assert_eq!((sequences(packed), sequences(single)), (vec![3, 5], vec![3, 5]));
        let batch = Batch { sequence: vec![3, 5], ..Batch::default() };
        let command = Command { body: Some(Body { batch: Some(batch), ..Body::default() }), ..Command::default() };
        assert_eq!(&command.to_bytes()[..], packed);
    }
}
