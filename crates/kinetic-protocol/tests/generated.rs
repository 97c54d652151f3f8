//! Properties of generated messages, frames and bytes.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use skytether_kinetic_protocol::access::{Target, check_identities, permits};
use skytether_kinetic_protocol::budget::MAX_DECODED;
use skytether_kinetic_protocol::command::{Batch, Body, Header, KeyValue, Operation, P2pOperation, Peer, PinOperation, Range, Setup};
use skytether_kinetic_protocol::decoder::BLOCK;
use skytether_kinetic_protocol::frame::encode_into;
use skytether_kinetic_protocol::log::{Capacity, Configuration, GetLog, Interface, Statistics, Temperature, Utilization};
use skytether_kinetic_protocol::program::{ManageApplet, Notification, ProcessStatus, ProgramResult, WatchScope};
use skytether_kinetic_protocol::range::KeyRange;
use skytether_kinetic_protocol::response::{Greeting, check_response, respond};
use skytether_kinetic_protocol::security::{Acl, Scope, Security};
use skytether_kinetic_protocol::{Command, Frame, FrameDecoder, FrameError, FrameLimits, HmacKey, Limits, Message, Permission, Status};

use crate::memory::peak;

fn bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..20).prop_map(Bytes::from)
}

fn float() -> impl Strategy<Value = Option<f32>> {
    of(-1e9f32..1e9)
}

fn header() -> impl Strategy<Value = Header> {
    let numbers = (of(any::<i64>()), of(any::<i64>()), of(any::<u64>()), of(any::<u64>()), of(any::<i32>()));
    (numbers, of(any::<u64>()), of(any::<bool>()), of(any::<i32>()), of(any::<u64>()), of(any::<u32>())).prop_map(
        |((cluster_version, connection_id, sequence, ack_sequence, message_type), timeout, early_exit, priority, time_quanta, batch_id)| Header {
            cluster_version,
            connection_id,
            sequence,
            ack_sequence,
            message_type,
            timeout,
            early_exit,
            priority,
            time_quanta,
            batch_id,
        },
    )
}

fn status() -> impl Strategy<Value = Status> {
    (of(any::<i32>()), of(bytes()), of(bytes())).prop_map(|(code, status_message, detailed_message)| Status { code, status_message, detailed_message })
}

fn key_value() -> impl Strategy<Value = KeyValue> {
    (of(bytes()), of(bytes()), of(bytes()), of(bytes()), of(any::<i32>()), of(any::<bool>()), of(any::<bool>()), of(any::<i32>())).prop_map(
        |(new_version, key, db_version, tag, algorithm, metadata_only, force, synchronization)| KeyValue {
            new_version,
            key,
            db_version,
            tag,
            algorithm,
            metadata_only,
            force,
            synchronization,
        },
    )
}

fn range() -> impl Strategy<Value = Range> {
    (of(bytes()), of(bytes()), of(any::<bool>()), of(any::<bool>()), of(any::<u32>()), of(any::<bool>()), vec(bytes(), 0..4)).prop_map(
        |(start_key, end_key, start_key_inclusive, end_key_inclusive, max_returned, reverse, keys)| Range {
            start_key,
            end_key,
            start_key_inclusive,
            end_key_inclusive,
            max_returned,
            reverse,
            keys,
        },
    )
}

fn push() -> impl Strategy<Value = P2pOperation> {
    let peer = || of((of(any::<String>()), of(any::<u32>()), of(any::<bool>())).prop_map(|(hostname, port, tls)| Peer { hostname, port, tls }));
    let leaf = (peer(), of(any::<bool>())).prop_map(|(peer, succeeded)| P2pOperation { peer, operation: vec![], all_child_operations_succeeded: succeeded });
    leaf.prop_recursive(3, 8, 3, move |inner| {
        let operation = (of(bytes()), of(bytes()), of(bytes()), of(any::<bool>()), of(status()), of(inner))
            .prop_map(|(key, version, new_key, force, status, p2pop)| Operation { key, version, new_key, force, status, p2pop });
        (peer(), vec(operation, 0..3), of(any::<bool>())).prop_map(|(peer, operation, succeeded)| P2pOperation {
            peer,
            operation,
            all_child_operations_succeeded: succeeded,
        })
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    vec(of(any::<u32>()), 15).prop_map(|limits| Limits {
        max_key_size: limits[0],
        max_value_size: limits[1],
        max_version_size: limits[2],
        max_tag_size: limits[3],
        max_connections: limits[4],
        max_outstanding_read_requests: limits[5],
        max_outstanding_write_requests: limits[6],
        max_message_size: limits[7],
        max_key_range_count: limits[8],
        max_identity_count: limits[9],
        max_pin_size: limits[10],
        max_operation_count_per_batch: limits[11],
        max_batch_count_per_device: limits[12],
        max_batch_size: limits[13],
        max_deletes_per_batch: limits[14],
    })
}

fn configuration() -> impl Strategy<Value = Configuration> {
    let interface = (of(any::<String>()), of(bytes()), of(bytes()), of(bytes())).prop_map(|(name, mac, ipv4_address, ipv6_address)| Interface {
        name,
        mac,
        ipv4_address,
        ipv6_address,
    });
    let ports = (of(any::<u32>()), of(any::<u32>()), of(any::<i32>()));
    (vec(of(any::<String>()), 8), of(bytes()), of(bytes()), vec(interface, 0..3), ports).prop_map(
        |(mut texts, serial_number, world_wide_name, interface, (port, tls_port, current_power_level))| Configuration {
            vendor: texts.remove(0),
            model: texts.remove(0),
            serial_number,
            version: texts.remove(0),
            interface,
            port,
            tls_port,
            compilation_date: texts.remove(0),
            source_hash: texts.remove(0),
            world_wide_name,
            protocol_version: texts.remove(0),
            protocol_compilation_date: texts.remove(0),
            protocol_source_hash: texts.remove(0),
            current_power_level,
        },
    )
}

fn log() -> impl Strategy<Value = GetLog> {
    let utilization = (of(any::<String>()), float()).prop_map(|(name, value)| Utilization { name, value });
    let temperature = (of(any::<String>()), float(), float(), float(), float()).prop_map(|(name, current, minimum, maximum, target)| Temperature {
        name,
        current,
        minimum,
        maximum,
        target,
    });
    let capacity = (of(any::<u64>()), float()).prop_map(|(nominal_capacity_in_bytes, portion_full)| Capacity { nominal_capacity_in_bytes, portion_full });
    let statistics = (of(any::<i32>()), of(any::<u64>()), of(any::<u64>()), of(any::<u64>()))
        .prop_map(|(message_type, count, bytes, max_latency)| Statistics { message_type, count, bytes, max_latency });
    let device = of(bytes()).prop_map(|name| skytether_kinetic_protocol::log::Device { name });
    let lists = (vec(any::<i32>(), 0..5), vec(utilization, 0..3), vec(temperature, 0..3), vec(statistics, 0..3));
    (lists, of(capacity), of(configuration()), of(bytes()), of(limits()), of(device)).prop_map(
        |((types, utilizations, temperatures, statistics), capacity, configuration, messages, limits, device)| GetLog {
            types,
            utilizations,
            temperatures,
            capacity,
            configuration,
            statistics,
            messages,
            limits,
            device,
        },
    )
}

fn acl() -> impl Strategy<Value = Acl> {
    let scope = (of(any::<i64>()), of(bytes()), vec(-2..12, 0..4), of(any::<bool>())).prop_map(|(offset, value, permission, tls_required)| Scope {
        offset,
        value,
        permission,
        tls_required,
    });
    (of(any::<i64>()), of(bytes()), of(-1..3), vec(scope, 0..3), of(any::<i32>())).prop_map(|(identity, key, hmac_algorithm, scope, max_priority)| Acl {
        identity,
        key,
        hmac_algorithm,
        scope,
        max_priority,
    })
}

fn security() -> impl Strategy<Value = Security> {
    (vec(acl(), 0..3), of(bytes()), of(bytes()), of(bytes()), of(bytes()), of(any::<i32>())).prop_map(
        |(acl, old_lock_pin, new_lock_pin, old_erase_pin, new_erase_pin, security_op_type)| Security {
            acl,
            old_lock_pin,
            new_lock_pin,
            old_erase_pin,
            new_erase_pin,
            security_op_type,
        },
    )
}

fn applet() -> impl Strategy<Value = ManageApplet> {
    let process = (vec(bytes(), 0..3), of(any::<i32>())).prop_map(|(program_key, time_to_expiration)| ProcessStatus { program_key, time_to_expiration });
    let watch = (of(bytes()), of(bytes()), vec(any::<i32>(), 0..3)).prop_map(|(start_key, end_key, mtype)| WatchScope { start_key, end_key, mtype });
    let notification = (of(bytes()), of(any::<i32>())).prop_map(|(key, mtype)| Notification { key, mtype });
    let kinds = (of(any::<i32>()), of(any::<i32>()), of(any::<i32>()), of(any::<i32>()));
    (kinds, vec(bytes(), 0..3), vec(process, 0..3), of(watch), vec(bytes(), 0..3), of(notification), of(any::<bool>()), of(bytes()), of(any::<bool>()))
        .prop_map(|(kinds, program_key, process_status, watch_scope, program_param, notification, notify_on_completion, output_key, in_response)| {
            let (manage_applet_type, lang, max_run_time, acknowledge_mode) = kinds;
            ManageApplet {
                manage_applet_type,
                lang,
                program_key,
                max_run_time,
                process_status,
                watch_scope,
                program_param,
                acknowledge_mode,
                notification,
                notify_on_completion,
                output_key,
                set_value_in_response: in_response,
            }
        })
}

fn body() -> impl Strategy<Value = Body> {
    let setup = (of(any::<i64>()), of(any::<bool>()), of(any::<i32>())).prop_map(|(new_cluster_version, firmware_download, setup_op_type)| Setup {
        new_cluster_version,
        firmware_download,
        setup_op_type,
    });
    let batch =
        (of(any::<u32>()), vec(any::<u64>(), 0..5), of(any::<u64>())).prop_map(|(count, sequence, failed_sequence)| Batch { count, sequence, failed_sequence });
    let pin = of(any::<i32>()).prop_map(|pin_op_type| PinOperation { pin_op_type });
    let power = of(any::<i32>()).prop_map(|level| skytether_kinetic_protocol::command::PowerManagement { level });
    let large = (of(push()), of(log()), of(security()), of(applet()));
    (of(key_value()), of(range()), of(setup), of(pin), of(batch), of(power), large).prop_map(
        |(key_value, range, setup, pin_op, batch, power, (p2p_operation, get_log, security, manage_applet))| Body {
            key_value,
            range,
            setup,
            p2p_operation,
            get_log,
            security,
            pin_op,
            batch,
            power,
            manage_applet,
        },
    )
}

fn command() -> impl Strategy<Value = Command> {
    (of(header()), of(body()), of(status())).prop_map(|(header, body, status)| Command { header, body, status })
}

fn message() -> impl Strategy<Value = Message> {
    (command(), any::<i64>(), bytes(), 0..4).prop_map(|(command, identity, secret, kind)| match kind {
        0 => Message::signed(identity, &HmacKey::new(&secret), &command),
        1 => Message::with_pin(secret, &command),
        2 => Message::pin_response(&command),
        _ => Message::unsolicited(&command),
    })
}

/// Everything that code does with a command from outside: nothing of it may panic.
fn use_command(command: &Command) {
    let header = command.header.clone().unwrap_or_default();
    let _ = (command.status_code(), check_response(&header, command), respond(&header, Status::default()), format!("{command:?}"));
    let Some(body) = &command.body else { return };
    if let Some(range) = &body.range {
        let range = KeyRange::of(range, &Limits::DRIVE).unwrap_or_else(|_| KeyRange::unlimited(range));
        if let Some(bounds) = range.bounds() {
            let keys = std::collections::BTreeSet::from([b"a".to_vec()]);
            assert_eq!(keys.range::<[u8], _>(bounds).count() == 1, range.contains(b"a"));
        }
    }
    if let Some(security) = &body.security {
        let _ = (security.change(), check_identities(&security.acl, &Limits::DRIVE));
        for acl in &security.acl {
            let _ = permits(acl, Permission::Read, Target::Key(b"key"), true) || permits(acl, Permission::Range, Target::Keys(b"a", b""), false);
        }
    }
}

/// Gives a decoder the bytes in pieces of these lengths, again and again.
fn decode(decoder: &mut FrameDecoder, mut bytes: &[u8], pieces: &[usize]) -> Result<Vec<Frame>, FrameError> {
    let mut frames = Vec::new();
    for length in pieces.iter().cycle() {
        let (mut piece, rest) = bytes.split_at((*length).min(bytes.len()));
        while !piece.is_empty() {
            let fed = decoder.feed(piece);
            assert!(fed > 0, "the decoder takes nothing");
            piece = &piece[fed..];
            while let Some(frame) = decoder.next_frame()? {
                frames.push(frame);
            }
        }
        bytes = rest;
        if bytes.is_empty() {
            break;
        }
    }
    Ok(frames)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn commands_come_back_as_they_were(command in command()) {
        prop_assert_eq!(Command::parse(command.to_bytes()).unwrap(), command.clone());
        use_command(&command);
    }

    #[test]
    fn frames_come_back_through_any_pieces(
        messages in vec((message(), vec(any::<u8>(), 0..3000)), 0..6),
        pieces in vec(1usize..4000, 1..8),
    ) {
        let mut stream = BytesMut::new();
        for (message, value) in &messages {
            encode_into(message, value, &mut stream).unwrap();
        }
        let mut decoder = FrameDecoder::new(FrameLimits::of(&Limits::DRIVE));
        let frames = decode(&mut decoder, &stream, &pieces).unwrap();
        prop_assert_eq!(decoder.finish(), Ok(()));
        prop_assert_eq!(frames.len(), messages.len());
        for (frame, (message, value)) in frames.iter().zip(&messages) {
            prop_assert_eq!(&frame.value[..], &value[..]);
            prop_assert_eq!(&Message::parse(frame.message.clone()).unwrap(), message);
        }
    }

    /// Small limits, and headers that begin well, so that all errors occur.
    #[test]
    fn any_bytes_give_frames_or_an_error(
        parts in vec((0u32..40, 0u32..70, vec(any::<u8>(), 0..100)), 0..20),
        pieces in vec(1usize..50, 1..8),
        dropped_value in 0u32..60,
    ) {
        let limits = FrameLimits { message: 32, value: 48, dropped_value };
        let stream: Vec<u8> = parts.iter().flat_map(|(message, value, rest)| {
            [&b"F"[..], &message.to_be_bytes(), &value.to_be_bytes(), rest].concat()
        }).collect();
        let (result, most) = peak(|| {
            let mut decoder = FrameDecoder::new(limits);
            let mut most = 0;
            let result = stream.chunks(pieces[0]).try_for_each(|piece| {
                let frames = decode(&mut decoder, piece, &pieces);
                most = most.max(decoder.memory());
                frames.map(|frames| frames.iter().for_each(|frame| {
                    assert!(frame.message.len() <= 32 && frame.value.len() <= 48);
                    assert!(frame.dropped.is_none_or(|length| frame.value.is_empty() && length > 48 && length <= dropped_value));
                }))
            });
            assert_eq!(decoder.next_frame().err(), result.err());
            most
        });
        prop_assert!(result <= limits.frame() + limits.message as usize, "{}", result);
        prop_assert!(most < 64 << 10, "{}", most);
    }

    #[test]
    fn any_bytes_are_a_command_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        let (result, most) = peak(|| Command::parse(bytes.into()).map(drop));
        prop_assert!(most <= 3 * MAX_DECODED);
        drop(result);
    }

    /// A byte of a real command changes: it is refused, or a command that can be used.
    #[test]
    fn changed_commands_are_refused_or_used(command in command(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = command.to_bytes().to_vec();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(command) = Command::parse(bytes.into()) {
            use_command(&command);
            prop_assert_eq!(Command::parse(command.to_bytes()).unwrap(), command);
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        if let Ok(message) = Message::parse(bytes.into()) {
            let _ = (message.authentication().is_ok(), message.is_signed_by(&HmacKey::new(b"asdfasdf")), Greeting::read(&message).is_ok());
        }
    }

    #[test]
    fn program_results_come_back(exit_code in any::<i32>(), signal in any::<i32>(), message in "[^:\0]{0,20}", output in bytes()) {
        let result = ProgramResult { exit_code, signal, message, output };
        prop_assert_eq!(ProgramResult::parse(&result.to_bytes()).unwrap(), result);
    }

    #[test]
    fn any_bytes_are_a_program_result_or_corrupt(bytes in bytes()) {
        if let Ok(result) = ProgramResult::parse(&bytes) {
            prop_assert!(result.output.len() < bytes.len());
        }
    }
}

/// A mebibyte, piece by piece: what a decoder holds grows with what came.
#[test]
fn memory_grows_with_the_bytes_that_came() {
    let limits = FrameLimits { message: 1 << 20, value: 64 << 20, dropped_value: 0 };
    let mut decoder = FrameDecoder::new(limits);
    decoder.feed(b"F\0\0\0\0\x04\0\0\0");
    for came in 1..300 {
        assert_eq!(decode(&mut decoder, &[1; 8192], &[8192]), Ok(vec![]));
        assert!(decoder.memory() <= BLOCK.max(32 * (came * 8192 + 9)), "{} after {came}", decoder.memory());
    }
}
