//! What a drive says about itself: the messages of `GETLOG`, and of the status with which it greets a client.

use bytes::Bytes;

use crate::kinds::{LogType, MessageType, PowerLevel};

/// In requests the types that are asked for, in responses their content.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetLog {
    /// What is asked for, or told.
    #[prost(enumeration = "LogType", repeated, packed = "false", tag = "1")]
    pub types: Vec<i32>,
    /// How busy the parts of the drive are.
    #[prost(message, repeated, tag = "2")]
    pub utilizations: Vec<Utilization>,
    /// How warm they are.
    #[prost(message, repeated, tag = "3")]
    pub temperatures: Vec<Temperature>,
    /// How large and how full the drive is.
    #[prost(message, optional, tag = "4")]
    pub capacity: Option<Capacity>,
    /// Who made the drive, and where it listens.
    #[prost(message, optional, tag = "5")]
    pub configuration: Option<Configuration>,
    /// How many commands of each type it served.
    #[prost(message, repeated, tag = "6")]
    pub statistics: Vec<Statistics>,
    /// The drive's own log; clients expect it to have at least one byte.
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub messages: Option<Bytes>,
    /// What the drive accepts.
    #[prost(message, optional, tag = "8")]
    pub limits: Option<Limits>,
    /// The name of a log of the vendor's; its content is the frame's value.
    #[prost(message, optional, tag = "9")]
    pub device: Option<Device>,
}

/// How busy a part of the drive is.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Utilization {
    /// The part: `HDA`, `EN0`, ...
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// From 0 to 1.
    #[prost(float, optional, tag = "2")]
    pub value: Option<f32>,
}

/// How warm a part of the drive is, in degrees Celsius.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Temperature {
    /// The part: `HDA`, `CPU`, ...
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Now.
    #[prost(float, optional, tag = "2")]
    pub current: Option<f32>,
    /// The lowest that was measured.
    #[prost(float, optional, tag = "3")]
    pub minimum: Option<f32>,
    /// The highest that was measured.
    #[prost(float, optional, tag = "4")]
    pub maximum: Option<f32>,
    /// Where it should be.
    #[prost(float, optional, tag = "5")]
    pub target: Option<f32>,
}

/// How large and how full the drive is.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Capacity {
    /// Its size, in bytes.
    #[prost(uint64, optional, tag = "4")]
    pub nominal_capacity_in_bytes: Option<u64>,
    /// From 0 to 1.
    #[prost(float, optional, tag = "5")]
    pub portion_full: Option<f32>,
}

/// Who made the drive, and where it listens.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Configuration {
    /// The vendor.
    #[prost(string, optional, tag = "5")]
    pub vendor: Option<String>,
    /// The model.
    #[prost(string, optional, tag = "6")]
    pub model: Option<String>,
    /// The serial number.
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub serial_number: Option<Bytes>,
    /// The version of the drive's software.
    #[prost(string, optional, tag = "8")]
    pub version: Option<String>,
    /// Where it listens.
    #[prost(message, repeated, tag = "9")]
    pub interface: Vec<Interface>,
    /// The port without TLS.
    #[prost(uint32, optional, tag = "10")]
    pub port: Option<u32>,
    /// The port with TLS.
    #[prost(uint32, optional, tag = "11")]
    pub tls_port: Option<u32>,
    /// When the software was compiled.
    #[prost(string, optional, tag = "12")]
    pub compilation_date: Option<String>,
    /// From which sources.
    #[prost(string, optional, tag = "13")]
    pub source_hash: Option<String>,
    /// A number that no other drive has.
    #[prost(bytes = "bytes", optional, tag = "14")]
    pub world_wide_name: Option<Bytes>,
    /// The version of the protocol.
    #[prost(string, optional, tag = "15")]
    pub protocol_version: Option<String>,
    /// When the description of the protocol was compiled.
    #[prost(string, optional, tag = "16")]
    pub protocol_compilation_date: Option<String>,
    /// From which sources.
    #[prost(string, optional, tag = "17")]
    pub protocol_source_hash: Option<String>,
    /// Whether the drive works or sleeps; since protocol 4.0.
    #[prost(enumeration = "PowerLevel", optional, tag = "18")]
    pub current_power_level: Option<i32>,
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Interface {
    /// Its name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Its hardware address, as text.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub mac: Option<Bytes>,
    /// Its IPv4 address, as text.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub ipv4_address: Option<Bytes>,
    /// Its IPv6 address, as text.
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub ipv6_address: Option<Bytes>,
}

/// How many commands of a type the drive served.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Statistics {
    /// The type.
    #[prost(enumeration = "MessageType", optional, tag = "1")]
    pub message_type: Option<i32>,
    /// How many.
    #[prost(uint64, optional, tag = "4")]
    pub count: Option<u64>,
    /// The bytes of their values.
    #[prost(uint64, optional, tag = "5")]
    pub bytes: Option<u64>,
    /// The longest that one took, in microseconds; since protocol 4.0.1.
    #[prost(uint64, optional, tag = "6")]
    pub max_latency: Option<u64>,
}

/// What a drive accepts, as it announces it. An absent limit is not told, nor is one of 0 or -1.
///
/// `crate::limits` has the two profiles, and a check for each limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Limits {
    /// The longest key, in bytes.
    #[prost(uint32, optional, tag = "1")]
    pub max_key_size: Option<u32>,
    /// The longest value, in bytes.
    #[prost(uint32, optional, tag = "2")]
    pub max_value_size: Option<u32>,
    /// The longest version, in bytes.
    #[prost(uint32, optional, tag = "3")]
    pub max_version_size: Option<u32>,
    /// The longest tag, in bytes.
    #[prost(uint32, optional, tag = "4")]
    pub max_tag_size: Option<u32>,
    /// How many connections.
    #[prost(uint32, optional, tag = "5")]
    pub max_connections: Option<u32>,
    /// How many reads of a connection may wait.
    #[prost(uint32, optional, tag = "6")]
    pub max_outstanding_read_requests: Option<u32>,
    /// How many writes of a connection may wait.
    #[prost(uint32, optional, tag = "7")]
    pub max_outstanding_write_requests: Option<u32>,
    /// The longest message, without its value, in bytes.
    #[prost(uint32, optional, tag = "8")]
    pub max_message_size: Option<u32>,
    /// How many keys a range may return.
    #[prost(uint32, optional, tag = "9")]
    pub max_key_range_count: Option<u32>,
    /// How many identities.
    #[prost(uint32, optional, tag = "10")]
    pub max_identity_count: Option<u32>,
    /// The longest PIN, in bytes.
    #[prost(uint32, optional, tag = "11")]
    pub max_pin_size: Option<u32>,
    /// How many puts and deletes a batch may have.
    #[prost(uint32, optional, tag = "12")]
    pub max_operation_count_per_batch: Option<u32>,
    /// How many batches may be open at once.
    #[prost(uint32, optional, tag = "13")]
    pub max_batch_count_per_device: Option<u32>,
    /// How many bytes a batch may have.
    #[prost(uint32, optional, tag = "14")]
    pub max_batch_size: Option<u32>,
    /// How many deletes a batch may have.
    #[prost(uint32, optional, tag = "15")]
    pub max_deletes_per_batch: Option<u32>,
}

/// A log of the vendor's.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Device {
    /// Its name.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub name: Option<Bytes>,
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// By hand: types 3 and 6 one by one, configuration {port 8123, TLS port 8443, protocol version "4.0.1"}, limits
    /// {key 1024, value 1048576}.
    const ANSWER: &[u8] = &[
        0x08, 0x03, 0x08, 0x06, // types
        0x2a, 0x0d, 0x50, 0xbb, 0x3f, 0x58, 0xfb, 0x41, 0x7a, 0x05, b'4', b'.', b'0', b'.', b'1', // configuration
        0x42, 0x07, 0x08, 0x80, 0x08, 0x10, 0x80, 0x80, 0x40, // limits
    ];

    #[test]
    fn log_has_types_configuration_and_limits() {
        let log = GetLog::decode(ANSWER).unwrap();
        assert_eq!(log.types().collect::<Vec<_>>(), [LogType::Configuration, LogType::Limits]);
        let configuration = log.configuration.as_ref().unwrap();
        assert_eq!((configuration.port(), configuration.tls_port(), configuration.protocol_version()), (8123, 8443, "4.0.1"));
        let limits = log.limits.unwrap();
        assert_eq!((limits.max_key_size, limits.max_value_size, limits.max_tag_size), (Some(1024), Some(1 << 20), None));
        assert_eq!(log.encode_to_vec(), ANSWER);
    }

    /// Type 0 is a type and not the absence of one: {types [0], utilizations [{name "CPU", value 0.5}], capacity {size
    /// 2^40, full 0.25}}.
    #[test]
    fn utilization_and_capacity_have_floats() {
        let bytes: &[u8] = &[
            0x08, 0x00, // types
            0x12, 0x0a, 0x0a, 0x03, b'C', b'P', b'U', 0x15, 0x00, 0x00, 0x00, 0x3f, // utilizations
            0x22, 0x0c, 0x20, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 0x2d, 0x00, 0x00, 0x80, 0x3e, // capacity
        ];
        let log = GetLog::decode(bytes).unwrap();
        assert_eq!(log.types, [0]);
        assert_eq!((log.utilizations[0].name(), log.utilizations[0].value()), ("CPU", 0.5));
        let capacity = log.capacity.unwrap();
        assert_eq!((capacity.nominal_capacity_in_bytes(), capacity.portion_full()), (1 << 40, 0.25));
        assert_eq!(log.encode_to_vec(), bytes);
    }
}
