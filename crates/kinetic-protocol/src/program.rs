//! Programs inside a drive: the messages of `MANAGE_APPLET`, and the text in which a program's result travels.

use bytes::{BufMut, Bytes, BytesMut};
use skytether_common::{Error, Result};

use crate::kinds::{AcknowledgeMode, AppletType, Language, MessageType};

/// Runs or manages a program.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ManageApplet {
    /// What the command does.
    #[prost(enumeration = "AppletType", optional, tag = "1")]
    pub manage_applet_type: Option<i32>,
    /// What the program is written for.
    #[prost(enumeration = "Language", optional, tag = "2")]
    pub lang: Option<i32>,
    /// The keys whose values, one after the other, are the program.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub program_key: Vec<Bytes>,
    /// How long the program may run, in milliseconds.
    #[prost(int32, optional, tag = "4")]
    pub max_run_time: Option<i32>,
    /// In responses: the programs that run.
    #[prost(message, repeated, tag = "5")]
    pub process_status: Vec<ProcessStatus>,
    /// Which changes start the program.
    #[prost(message, optional, tag = "6")]
    pub watch_scope: Option<WatchScope>,
    /// The program's arguments, as bytes: a command line need not be UTF-8.
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub program_param: Vec<Bytes>,
    /// When the execution is answered.
    #[prost(enumeration = "AcknowledgeMode", optional, tag = "8")]
    pub acknowledge_mode: Option<i32>,
    /// In messages that the drive sends by itself: which change started the program.
    #[prost(message, optional, tag = "9")]
    pub notification: Option<Notification>,
    /// Whether the drive sends a message by itself when the program ends.
    #[prost(bool, optional, tag = "10")]
    pub notify_on_completion: Option<bool>,
    /// Where the program writes its output.
    #[prost(bytes = "bytes", optional, tag = "11")]
    pub output_key: Option<Bytes>,
    /// Whether the value of that key is the value of the response.
    #[prost(bool, optional, tag = "12")]
    pub set_value_in_response: Option<bool>,
}

/// A program that runs.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct ProcessStatus {
    /// Its keys.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub program_key: Vec<Bytes>,
    /// How long it may still run, in milliseconds.
    #[prost(int32, optional, tag = "2")]
    pub time_to_expiration: Option<i32>,
}

/// Changes that start a program.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct WatchScope {
    /// The first key.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub start_key: Option<Bytes>,
    /// The last key.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub end_key: Option<Bytes>,
    /// The requests that count.
    #[prost(enumeration = "MessageType", repeated, packed = "false", tag = "3")]
    pub mtype: Vec<i32>,
}

/// The change that started a program.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Notification {
    /// Its key.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub key: Option<Bytes>,
    /// Its request.
    #[prost(enumeration = "MessageType", optional, tag = "3")]
    pub mtype: Option<i32>,
}

/// How a program ended. It travels in [`crate::status::Status::detailed_message`], as
/// `<exit code>:<signal>:<message>:<output>` and a byte of 0, which the client `kctl` expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramResult {
    /// What the program returned.
    pub exit_code: i32,
    /// The signal that ended it; 0: none.
    pub signal: i32,
    /// A sentence about it.
    pub message: String,
    /// What it printed.
    pub output: Bytes,
}

impl ProgramResult {
    /// The result as bytes.
    ///
    /// A colon in the message becomes a semicolon, because colons separate the fields; a byte of 0 becomes a space.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let message = self.message.replace(':', ";").replace('\0', " ");
        let head = format!("{}:{}:{message}:", self.exit_code, self.signal);
        let mut bytes = BytesMut::with_capacity(head.len() + self.output.len() + 1);
        bytes.put_slice(head.as_bytes());
        bytes.put_slice(&self.output);
        bytes.put_u8(0);
        bytes.freeze()
    }

    /// The result of these bytes, with or without the 0 at the end.
    ///
    /// # Errors
    /// `Corrupt` if they do not have three colons, or if exit code or signal is no number.
    pub fn parse(bytes: &Bytes) -> Result<ProgramResult> {
        let mut fields = bytes.splitn(4, |byte| *byte == b':');
        let mut field = || fields.next().ok_or_else(|| malformed(bytes));
        let (exit_code, signal, message) = (field()?, field()?, field()?);
        let output = field()?;
        let output = output.strip_suffix(b"\0").unwrap_or(output);
        Ok(ProgramResult {
            exit_code: number(exit_code).ok_or_else(|| malformed(bytes))?,
            signal: number(signal).ok_or_else(|| malformed(bytes))?,
            message: String::from_utf8_lossy(message).into_owned(),
            output: bytes.slice_ref(output),
        })
    }
}

fn number(text: &[u8]) -> Option<i32> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

fn malformed(bytes: &[u8]) -> Error {
    let start = String::from_utf8_lossy(bytes.get(..bytes.len().min(80)).unwrap_or_default()).into_owned();
    Error::corrupt(format!("the drive's result of a program is {start:?}, not <exit code>:<signal>:<message>:<output>"))
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use skytether_common::Kind;

    use super::*;

    /// As `kctl exec -t ebpf -n 2 -g out prog x` sends it, by hand.
    const EXECUTE: &[u8] = &[
        0x08, 0x01, 0x10, 0x04, // EXECUTE, EBPF
        0x1a, 0x09, b'p', b'r', b'o', b'g', b'.', b'0', b'0', b'0', b'0', // its keys
        0x1a, 0x09, b'p', b'r', b'o', b'g', b'.', b'0', b'0', b'0', b'1', //
        0x3a, 0x01, b'x', // argument
        0x40, 0x02, // ON_COMPLETION
        0x5a, 0x03, b'o', b'u', b't', 0x60, 0x01, // output key, in the response
    ];

    #[test]
    fn execute_has_keys_arguments_and_output_key() {
        let applet = ManageApplet::decode(EXECUTE).unwrap();
        assert_eq!((applet.manage_applet_type(), applet.lang()), (AppletType::Execute, Language::Ebpf));
        assert_eq!(applet.acknowledge_mode(), AcknowledgeMode::OnCompletion);
        assert_eq!(applet.program_key, ["prog.0000", "prog.0001"]);
        assert_eq!((&applet.program_param[..], applet.output_key()), (&[Bytes::from_static(b"x")][..], &b"out"[..]));
        assert!(applet.set_value_in_response() && applet.max_run_time.is_none() && applet.notify_on_completion.is_none());
        assert_eq!(applet.encode_to_vec(), EXECUTE);
    }

    #[test]
    fn argument_need_not_be_utf8() {
        let applet = ManageApplet::decode(&[0x3a, 0x02, 0xff, 0xfe][..]).unwrap();
        assert_eq!(applet.program_param, [&[0xff, 0xfe][..]]);
    }

    /// What a real drive wrote, from the facts.
    #[test]
    fn result_of_a_real_drive_is_read() {
        let text = Bytes::from_static(b"0:0:Applet success:Args: /mnt/util/applets/4234354357\nHello World!");
        let result = ProgramResult::parse(&text).unwrap();
        assert_eq!((result.exit_code, result.signal, result.message.as_str()), (0, 0, "Applet success"));
        assert_eq!(result.output, "Args: /mnt/util/applets/4234354357\nHello World!");
        assert_eq!(&result.to_bytes()[..text.len()], &text[..]);
        assert_eq!(result.to_bytes()[text.len()..], [0]);
        assert_eq!(ProgramResult::parse(&result.to_bytes()).unwrap(), result);
    }

    #[test]
    fn colons_in_a_message_do_not_move_the_output() {
        let result = ProgramResult { exit_code: -3, signal: 9, message: "killed: too\0long".into(), output: Bytes::from_static(b"a:b\0c") };
        let bytes = result.to_bytes();
        assert_eq!(&bytes[..], b"-3:9:killed; too long:a:b\0c\0");
        let read = ProgramResult::parse(&bytes).unwrap();
        assert_eq!((read.exit_code, read.signal, &read.output[..]), (-3, 9, &b"a:b\0c"[..]));
    }

    #[test]
    fn result_without_its_fields_is_corrupt() {
        for text in [&b""[..], b"0", b"0:0:done", b"x:0:done:", b"0::done:", b"99999999999:0:done:", b"\xff:0:a:b"] {
            assert_eq!(ProgramResult::parse(&Bytes::from_static(text)).unwrap_err().kind(), Kind::Corrupt, "{text:?}");
        }
        assert_eq!(ProgramResult::parse(&Bytes::from_static(b"1:2::")).unwrap().output, "");
    }
}
