//! The envelope of a command: its bytes, and what proves who sent them.

use std::fmt;

use bytes::Bytes;

use crate::command::Command;
use crate::kinds::{AuthType, StatusCode};
use crate::signature::HmacKey;
use crate::status::Refusal;

/// A command as bytes, with what proves who sent it. The command stays bytes until [`Message::command`], because its
/// HMAC is computed over exactly these bytes.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Message {
    /// What kind of proof it is.
    #[prost(enumeration = "AuthType", optional, tag = "4")]
    pub auth_type: Option<i32>,
    /// The HMAC.
    #[prost(message, optional, tag = "5")]
    pub hmac_auth: Option<HmacAuth>,
    /// The PIN.
    #[prost(message, optional, tag = "6")]
    pub pin_auth: Option<PinAuth>,
    /// The command.
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub command_bytes: Option<Bytes>,
}

/// An identity and its HMAC.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct HmacAuth {
    /// The identity's number.
    #[prost(int64, optional, tag = "1")]
    pub identity: Option<i64>,
    /// The HMAC of the command with the identity's key.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub hmac: Option<Bytes>,
}

/// A PIN. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
#[prost(skip_debug)]
pub struct PinAuth {
    /// The PIN.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub pin: Option<Bytes>,
}

impl fmt::Debug for PinAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PinAuth(..)")
    }
}

/// Who sent a message, as it claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Authentication<'a> {
    /// An identity. [`Message::is_signed_by`] proves it.
    Identity(i64),
    /// Who knows this PIN.
    Pin(&'a [u8]),
    /// The drive, without a request.
    Unsolicited,
}

impl Message {
    /// A command with the HMAC of an identity: a request, or the response to one.
    #[must_use]
    pub fn signed(identity: i64, key: &HmacKey, command: &Command) -> Message {
        let command = command.to_bytes();
        let hmac = Bytes::copy_from_slice(&key.sign(&command));
        let hmac_auth = Some(HmacAuth { identity: Some(identity), hmac: Some(hmac) });
        Message { auth_type: Some(AuthType::Hmac.into()), hmac_auth, pin_auth: None, command_bytes: Some(command) }
    }

    /// A PIN operation with its PIN.
    #[must_use]
    pub fn with_pin(pin: Bytes, command: &Command) -> Message {
        let pin_auth = Some(PinAuth { pin: Some(pin) });
        Message { auth_type: Some(AuthType::Pin.into()), hmac_auth: None, pin_auth, command_bytes: Some(command.to_bytes()) }
    }

    /// The response to a PIN operation: it has neither PIN nor HMAC.
    #[must_use]
    pub fn pin_response(command: &Command) -> Message {
        Message { auth_type: Some(AuthType::Pin.into()), command_bytes: Some(command.to_bytes()), ..Message::default() }
    }

    /// What a drive says without a request: it has no HMAC.
    #[must_use]
    pub fn unsolicited(command: &Command) -> Message {
        Message { auth_type: Some(AuthType::Unsolicited.into()), command_bytes: Some(command.to_bytes()), ..Message::default() }
    }

    /// Decodes a message, but not its command. Its byte fields share the memory of `bytes`.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if the bytes are no message.
    pub fn parse(bytes: Bytes) -> Result<Message, Refusal> {
        prost::Message::decode(bytes).map_err(|e| Refusal::invalid(format!("the message is malformed: {e}")))
    }

    /// Who sent the message, as it claims. An absent PIN is an empty one.
    ///
    /// # Errors
    /// [`StatusCode::InvalidRequest`] if the kind of proof is absent or unknown: close the connection.
    /// [`StatusCode::HmacFailure`] if the identity or its HMAC is missing.
    pub fn authentication(&self) -> Result<Authentication<'_>, Refusal> {
        match self.auth_type() {
            AuthType::Hmac => {
                let hmac = self.hmac_auth.as_ref().filter(|auth| auth.hmac.is_some());
                let missing = || Refusal::new(StatusCode::HmacFailure, "the message has no identity or no HMAC");
                hmac.and_then(|auth| auth.identity).map(Authentication::Identity).ok_or_else(missing)
            }
            AuthType::Pin => {
                // The Java client leaves out an empty PIN.
                let pin = self.pin_auth.as_ref().and_then(|auth| auth.pin.as_deref());
                Ok(Authentication::Pin(pin.unwrap_or_default()))
            }
            AuthType::Unsolicited => Ok(Authentication::Unsolicited),
            AuthType::Invalid => Err(Refusal::invalid(format!("the message has the authentication type {:?}; use 1 (HMAC) or 2 (PIN)", self.auth_type))),
        }
    }

    /// Whether the message has the HMAC of this key. Absent command bytes are signed as none.
    #[must_use]
    pub fn is_signed_by(&self, key: &HmacKey) -> bool {
        let hmac = self.hmac_auth.as_ref().and_then(|auth| auth.hmac.as_deref());
        hmac.is_some_and(|hmac| key.verify(self.command_bytes(), hmac))
    }

    /// Decodes the command. Its byte fields share the memory of this message.
    ///
    /// # Errors
    /// Those of [`Command::parse`].
    pub fn command(&self) -> Result<Command, Refusal> {
        Command::parse(self.command_bytes.clone().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{LogType, MessageType};
    use crate::signature::tests::{COMMAND, HMAC};

    /// The message around the command of the vector, by hand.
    fn real_message() -> Bytes {
        let auth: &[u8] = &[0x20, 0x01, 0x2a, 0x18, 0x08, 0x01, 0x12, 0x14];
        [auth, &HMAC, &[0x3a, 0x20], COMMAND].concat().into()
    }

    #[test]
    fn message_of_a_real_client_is_verified_and_read() {
        let bytes = real_message();
        let message = Message::parse(bytes.clone()).unwrap();
        assert_eq!(message.authentication(), Ok(Authentication::Identity(1)));
        assert!(message.is_signed_by(&HmacKey::new(b"asdfasdf")) && !message.is_signed_by(&HmacKey::new(b"")));
        let command = message.command().unwrap();
        let header = command.require_header().unwrap();
        assert_eq!((header.cluster_version, header.connection_id, header.sequence), (Some(0), Some(1_171_500_672), Some(0)));
        assert_eq!(header.message_type(), MessageType::GetLog);
        let types: Vec<_> = command.body.as_ref().unwrap().get_log.as_ref().unwrap().types().collect();
        assert_eq!(types, LogType::ALL[..7]);
        // The same bytes come out, so the signature holds for what we encode as well.
        assert_eq!(Message::signed(1, &HmacKey::new(b"asdfasdf"), &command), message);
        assert_eq!(prost::Message::encode_to_vec(&message), bytes);
    }

    #[test]
    fn command_shares_the_memory_of_its_message() {
        let bytes = real_message();
        let command = Message::parse(bytes.clone()).unwrap().command_bytes.unwrap();
        assert!(bytes.as_ptr_range().contains(&command.as_ptr()));
    }

    #[test]
    fn proof_is_needed_and_its_kind_known() {
        let code = |message: &Message| message.authentication().unwrap_err().code;
        assert_eq!(code(&Message::default()), StatusCode::InvalidRequest);
        assert_eq!(code(&Message { auth_type: Some(4), ..Message::default() }), StatusCode::InvalidRequest);
        let hmac = Message { auth_type: Some(1), ..Message::default() };
        assert_eq!(code(&hmac), StatusCode::HmacFailure);
        assert_eq!(code(&Message { hmac_auth: Some(HmacAuth { identity: Some(1), hmac: None }), ..hmac }), StatusCode::HmacFailure);
        assert_eq!(Message { auth_type: Some(2), ..Message::default() }.authentication(), Ok(Authentication::Pin(b"")));
        assert!(!Message::default().is_signed_by(&HmacKey::new(b"asdfasdf")));
    }

    #[test]
    fn pin_and_unsolicited_messages_have_no_hmac() {
        let command = Command::default();
        let pin = Message::with_pin(Bytes::from_static(b"123"), &command);
        assert_eq!(pin.authentication(), Ok(Authentication::Pin(b"123")));
        assert!(!format!("{pin:?}").contains("123"));
        assert_eq!(&prost::Message::encode_to_vec(&pin)[..], [0x20, 0x02, 0x32, 0x05, 0x0a, 0x03, b'1', b'2', b'3', 0x3a, 0x00]);
        assert_eq!(&prost::Message::encode_to_vec(&Message::pin_response(&command))[..], [0x20, 0x02, 0x3a, 0x00]);
        let unsolicited = Message::unsolicited(&command);
        assert_eq!(unsolicited.authentication(), Ok(Authentication::Unsolicited));
        assert_eq!(&prost::Message::encode_to_vec(&unsolicited)[..], [0x20, 0x03, 0x3a, 0x00]);
    }

    #[test]
    fn malformed_bytes_are_refused() {
        for bytes in [&[0x3a, 0x05, 1][..], &[0xff], &[0x20], &[0x22, 0x00], &[0x0b]] {
            assert_eq!(Message::parse(Bytes::from_static(bytes)).unwrap_err().code, StatusCode::InvalidRequest, "{bytes:?}");
        }
        let message = Message { command_bytes: Some(Bytes::from_static(&[0x0a, 0x05])), ..Message::default() };
        assert_eq!(message.command().unwrap_err().code, StatusCode::InvalidRequest);
    }
}
