//! Headers of responses, the status with which a drive greets a client, and what a client checks in a response.

use crate::command::{Body, Command, Header};
use crate::kinds::{LogType, MessageType, StatusCode};
use crate::log::{Configuration, GetLog, Limits};
use crate::message::Message;
use crate::status::{Refusal, Status};

/// The response to a request, without a body: the type below the request's, its connection, and its sequence as
/// `ack_sequence`. The type is `Invalid` if the request's is none of a request.
#[must_use]
pub fn respond(request: &Header, status: Status) -> Command {
    let message_type = request.message_type().response().unwrap_or(MessageType::Invalid);
    let header = Header {
        connection_id: request.connection_id,
        // A request without a sequence has 0.
        ack_sequence: Some(request.sequence()),
        message_type: Some(message_type.into()),
        ..Header::default()
    };
    Command { header: Some(header), body: None, status: Some(status) }
}

/// Refuses a request whose cluster version is not the drive's, and tells the drive's.
///
/// # Errors
/// The response, with [`StatusCode::VersionFailure`].
pub fn check_cluster_version(request: &Header, drive: i64) -> Result<(), Box<Command>> {
    let asked = request.cluster_version();
    if asked == drive {
        return Ok(());
    }
    let refusal = Refusal::new(StatusCode::VersionFailure, format!("the request has cluster version {asked}, the drive {drive}"));
    let mut response = respond(request, refusal.status());
    if let Some(header) = &mut response.header {
        header.cluster_version = Some(drive);
    }
    Err(Box::new(response))
}

/// What a drive says as soon as a client has connected: who it is and what it accepts. Clients wait for it.
#[must_use]
pub fn greeting(connection_id: i64, cluster_version: i64, configuration: Configuration, limits: Limits) -> Message {
    let header = Header { cluster_version: Some(cluster_version), connection_id: Some(connection_id), ..Header::default() };
    let log = GetLog {
        types: vec![LogType::Configuration.into(), LogType::Limits.into()],
        configuration: Some(configuration),
        limits: Some(limits),
        ..GetLog::default()
    };
    let body = Body { get_log: Some(log), ..Body::default() };
    Message::unsolicited(&Command { header: Some(header), body: Some(body), status: Some(Status::of(StatusCode::Success)) })
}

/// What a drive says before it closes a connection.
#[must_use]
pub fn farewell(connection_id: i64, refusal: &Refusal) -> Message {
    let header = Header { connection_id: Some(connection_id), ..Header::default() };
    Message::unsolicited(&Command { header: Some(header), body: None, status: Some(refusal.status()) })
}

/// What a greeting tells a client.
#[derive(Debug, Clone, PartialEq)]
pub struct Greeting {
    /// The number of the connection; each request has it.
    pub connection_id: i64,
    /// The drive's cluster version.
    pub cluster_version: i64,
    /// Who the drive is.
    pub configuration: Configuration,
    /// What it accepts.
    pub limits: Limits,
}

impl Greeting {
    /// What the first message of a connection tells.
    ///
    /// # Errors
    /// The drive's refusal, if it says one; [`StatusCode::InvalidRequest`] if the message is no greeting.
    pub fn read(message: &Message) -> Result<Greeting, Refusal> {
        let mut command = message.command()?;
        Refusal::check(command.status.as_ref())?;
        let log = command.body.take().and_then(|body| body.get_log).unwrap_or_default();
        let (Some(configuration), Some(limits)) = (log.configuration, log.limits) else {
            return Err(Refusal::invalid("the drive's first message has no configuration or no limits"));
        };
        let header = command.require_header()?;
        Ok(Greeting { connection_id: header.connection_id(), cluster_version: header.cluster_version(), configuration, limits })
    }
}

/// Checks that a response belongs to a request, and that it is a success.
///
/// # Errors
/// [`StatusCode::InvalidRequest`] if it belongs to another one; otherwise the drive's refusal.
pub fn check_response(request: &Header, response: &Command) -> Result<(), Refusal> {
    let header = response.require_header()?;
    if header.ack_sequence() != request.sequence() {
        return Err(Refusal::invalid(format!("the drive answers request {}, not {}", header.ack_sequence(), request.sequence())));
    }
    let refused = Refusal::check(response.status.as_ref());
    if refused.is_ok() && Some(header.message_type()) != request.message_type().response() {
        return Err(Refusal::invalid(format!("the drive answers {} with {}", request.message_type(), header.message_type())));
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(message_type: MessageType) -> Header {
        Header { cluster_version: Some(3), connection_id: Some(77), sequence: Some(5), message_type: Some(message_type.into()), ..Header::default() }
    }

    #[test]
    fn response_answers_its_request() {
        let response = respond(&request(MessageType::Get), Status::of(StatusCode::Success));
        // Header {3: 77, 6: 5, 7: 1}, status {1: 1}, by hand.
        assert_eq!(&response.to_bytes()[..], [0x0a, 0x06, 0x18, 77, 0x30, 5, 0x38, 1, 0x1a, 2, 8, 1]);
        assert_eq!(check_response(&request(MessageType::Get), &response), Ok(()));
        assert_eq!(check_response(&request(MessageType::Put), &response).unwrap_err().code, StatusCode::InvalidRequest);
        let later = Header { sequence: Some(6), ..request(MessageType::Get) };
        assert_eq!(check_response(&later, &response).unwrap_err().text, "the drive answers request 5, not 6");
    }

    #[test]
    fn response_to_no_request_has_no_type() {
        for number in [None, Some(1), Some(-1), Some(0), Some(14), Some(98), Some(i32::MIN)] {
            let response = respond(&Header { message_type: number, ..Header::default() }, Status::of(StatusCode::InvalidRequest));
            assert_eq!(response.header.unwrap().message_type, Some(-1), "{number:?}");
        }
    }

    #[test]
    fn refusal_of_the_drive_reaches_the_client() {
        let refusal = Refusal::new(StatusCode::NotFound, "no such key");
        let response = respond(&request(MessageType::Get), refusal.status());
        assert_eq!(check_response(&request(MessageType::Get), &response), Err(refusal));
    }

    #[test]
    fn wrong_cluster_version_learns_the_drives() {
        assert_eq!(check_cluster_version(&request(MessageType::Get), 3), Ok(()));
        // An absent one is 0.
        assert_eq!(check_cluster_version(&Header::default(), 0), Ok(()));
        let response = check_cluster_version(&request(MessageType::Get), 9).unwrap_err();
        assert_eq!(response.status_code(), StatusCode::VersionFailure);
        let header = response.header.unwrap();
        assert_eq!((header.cluster_version, header.ack_sequence, header.message_type()), (Some(9), Some(5), MessageType::GetResponse));
    }

    #[test]
    fn greeting_has_configuration_and_limits() {
        let configuration = Configuration { vendor: Some("v".into()), ..Configuration::default() };
        let message = greeting(7, 2, configuration.clone(), Limits { max_key_size: Some(5), ..Limits::default() });
        let command: &[u8] = &[
            0x0a, 0x04, 0x08, 2, 0x18, 7, // header
            0x12, 0x0f, 0x32, 0x0d, 0x08, 3, 0x08, 6, 0x2a, 3, 0x2a, 1, b'v', 0x42, 2, 0x08, 5, // body, log
            0x1a, 2, 0x08, 1, // status
        ];
        assert_eq!(message.command_bytes(), command);
        let greeting = Greeting::read(&message).unwrap();
        assert_eq!((greeting.connection_id, greeting.cluster_version, greeting.limits.max_key_size()), (7, 2, 5));
        assert_eq!(greeting.configuration, configuration);
    }

    #[test]
    fn drive_that_refuses_a_client_is_heard() {
        let refusal = Refusal::new(StatusCode::ServiceBusy, "100 connections are open");
        assert_eq!(Greeting::read(&farewell(7, &refusal)), Err(refusal));
        let empty = Message::unsolicited(&Command { status: Some(Status::of(StatusCode::Success)), ..Command::default() });
        assert_eq!(Greeting::read(&empty).unwrap_err().code, StatusCode::InvalidRequest);
    }
}
