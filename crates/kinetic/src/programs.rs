//! The operations of a connection on programs inside the drive (`MANAGE_APPLET`).

use std::time::Duration;

use bytes::Bytes;
use skytether_common::Kind;
use skytether_kinetic_protocol::MessageType;
use skytether_kinetic_protocol::command::{Body, Command};
use skytether_kinetic_protocol::kinds::{AcknowledgeMode, AppletType, Language};
use skytether_kinetic_protocol::program::{ManageApplet, ProcessStatus, ProgramResult, WatchScope};
use skytether_kinetic_protocol::{Refusal, StatusCode};

use crate::admin::timed;
use crate::connection::{Connection, Queue, Request, Response};
use crate::failure::{Failure, Outcome};
use crate::traffic::Proof;

/// A program that a drive runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Execution {
    /// What it is written for: the number of a [`Language`], or a vendor's.
    pub language: i32,
    /// The keys whose values, one after the other, are the program.
    pub keys: Vec<Bytes>,
    /// Its arguments.
    pub arguments: Vec<Bytes>,
    /// The key that it writes its output under.
    pub output_key: Option<Bytes>,
    /// Whether the output's value comes with the answer.
    pub output_in_response: bool,
    /// How long it may run; `None`: as long as the drive allows.
    pub most: Option<Duration>,
}

impl Execution {
    /// The program in `keys`, without arguments and output.
    #[must_use]
    pub fn new(language: Language, keys: Vec<Bytes>) -> Execution {
        Execution { language: language.into(), keys, arguments: Vec::new(), output_key: None, output_in_response: false, most: None }
    }

    fn applet(self) -> ManageApplet {
        ManageApplet {
            manage_applet_type: Some(AppletType::Execute.into()),
            lang: Some(self.language),
            program_key: self.keys,
            max_run_time: self.most.map(|most| i32::try_from(most.as_millis()).unwrap_or(i32::MAX).max(1)),
            program_param: self.arguments,
            output_key: self.output_key,
            set_value_in_response: self.output_in_response.then_some(true),
            ..ManageApplet::default()
        }
    }
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// Exit code, signal, message, output.
    pub result: ProgramResult,
    /// The value of its output key, if it was asked for.
    pub value: Bytes,
}

impl Executed {
    /// What the status of a response, or of a notification, says.
    ///
    /// # Errors
    /// `Corrupt` if it has not the form of a program's result.
    pub fn read(command: &Command, value: Bytes) -> skytether_common::Result<Executed> {
        let text = command.status.as_ref().and_then(|status| status.detailed_message.clone()).unwrap_or_default();
        Ok(Executed { result: ProgramResult::parse(&text)?, value })
    }
}

/// Changes of keys that start a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// The first key.
    pub first: Bytes,
    /// The last key; empty: beyond all keys.
    pub last: Bytes,
    /// `Put`, `Delete`; none: both.
    pub kinds: Vec<MessageType>,
}

impl Watched {
    /// Puts and deletes of all keys from the first to the second.
    #[must_use]
    pub fn keys(first: Bytes, last: Bytes) -> Watched {
        Watched { first, last, kinds: Vec::new() }
    }

    fn scope(self) -> WatchScope {
        WatchScope { start_key: Some(self.first), end_key: Some(self.last), mtype: self.kinds.into_iter().map(i32::from).collect() }
    }
}

/// What a drive says of a change that it ran a program for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noticed {
    /// The program's keys.
    pub program: Vec<Bytes>,
    /// The key that was changed.
    pub key: Bytes,
    /// `Put` or `Delete`.
    pub kind: MessageType,
    /// How the program ended; the drive's refusal where it did not run.
    pub ended: Result<ProgramResult, Refusal>,
}

impl Noticed {
    /// What a message of [`Connection::notifications`] says, if it is one about a watch.
    ///
    /// # Errors
    /// `Corrupt` if the program's result has not the form of one.
    pub fn read(command: &Command) -> skytether_common::Result<Option<Noticed>> {
        let Some(applet) = command.body.as_ref().and_then(|body| body.manage_applet.as_ref()) else { return Ok(None) };
        let Some(change) = &applet.notification else { return Ok(None) };
        let ended = match command.status_code() {
            StatusCode::ExecuteComplete => Ok(Executed::read(command, Bytes::new())?.result),
            _ => Err(Refusal::check(command.status.as_ref()).err().unwrap_or_else(|| Refusal::new(command.status_code(), ""))),
        };
        Ok(Some(Noticed { program: applet.program_key.clone(), key: change.key.clone().unwrap_or_default(), kind: change.mtype(), ended }))
    }
}

impl Connection {
    /// Has the drive run a program after each change of these keys. The key and `PUT` or `DELETE` are its last two
    /// arguments. Its ends are messages of [`Connection::notifications`], if `notify`: [`Noticed::read`].
    ///
    /// The watch stays when this connection ends.
    ///
    /// # Errors
    /// `NOT_AUTHORIZED` where the caller may not list these keys, `NOT_FOUND` for the program's; [`Failure`].
    pub async fn watch(&self, program: Execution, changes: Watched, notify: bool) -> Outcome<()> {
        let applet = ManageApplet {
            manage_applet_type: Some(AppletType::Watch.into()),
            watch_scope: Some(changes.scope()),
            notify_on_completion: notify.then_some(true),
            ..program.applet()
        };
        self.manage(applet, self.options.patience(0)).await.map(drop)
    }

    /// Ends the watches of a program: those of these changes, or all.
    ///
    /// # Errors
    /// `NOT_FOUND` where there is none; [`Failure`].
    pub async fn unwatch(&self, program: Vec<Bytes>, changes: Option<Watched>) -> Outcome<()> {
        let (manage_applet_type, watch_scope) = (Some(AppletType::Unwatch.into()), changes.map(Watched::scope));
        let applet = ManageApplet { manage_applet_type, program_key: program, watch_scope, ..ManageApplet::default() };
        self.manage(applet, self.options.patience(0)).await.map(drop)
    }

    /// Runs a program and waits for its end, no longer than `patience`. A program that fails is no error: its result
    /// says so.
    ///
    /// # Errors
    /// `INVALID_EXECUTE` where it can't run, `NOT_FOUND` for its keys; [`Failure`].
    pub async fn execute(&self, program: Execution, patience: Duration) -> Outcome<Executed> {
        let applet = ManageApplet { acknowledge_mode: Some(AcknowledgeMode::OnCompletion.into()), ..program.applet() };
        let response = self.manage(applet, patience).await?;
        Executed::read(&response.command, response.value).map_err(|e| Failure::lost(Kind::Corrupt, e.message(), true))
    }

    /// Starts a program. Its end is a message of [`Connection::notifications`], if `notify`.
    ///
    /// # Errors
    /// As [`Connection::execute`].
    pub async fn start_program(&self, program: Execution, notify: bool) -> Outcome<()> {
        let applet = program.applet();
        let applet = ManageApplet { acknowledge_mode: Some(AcknowledgeMode::OnReceipt.into()), notify_on_completion: Some(notify), ..applet };
        self.manage(applet, self.options.patience(0)).await.map(drop)
    }

    /// Ends the program of these keys.
    ///
    /// # Errors
    /// `NOT_FOUND` where it does not run; [`Failure`].
    pub async fn abort_program(&self, keys: Vec<Bytes>) -> Outcome<()> {
        let applet = ManageApplet { manage_applet_type: Some(AppletType::Abort.into()), program_key: keys, ..ManageApplet::default() };
        self.manage(applet, self.options.patience(0)).await.map(drop)
    }

    /// The programs that run; those of `keys` if there are any.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn programs(&self, keys: Vec<Bytes>) -> Outcome<Vec<ProcessStatus>> {
        let applet = ManageApplet { manage_applet_type: Some(AppletType::GetProcessStatus.into()), program_key: keys, ..ManageApplet::default() };
        let response = self.manage(applet, self.options.patience(0)).await?;
        Ok(response.body().manage_applet.unwrap_or_default().process_status)
    }

    /// Sends any command about programs: installs, watches, what a vendor adds. It waits for the answer, no
    /// longer than `patience`. Use a connection of its own for long ones: an answer that is late ends the connection.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn manage(&self, applet: ManageApplet, patience: Duration) -> Outcome<Response> {
        let request = timed(Request::new(MessageType::ManageApplet), patience).body(Body { manage_applet: Some(applet), ..Body::default() });
        self.call(Queue::Write, request, Proof::Hmac, patience).await
    }
}
