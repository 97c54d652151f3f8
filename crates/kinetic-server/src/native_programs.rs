//! Native programs: they run contained, and reach the drive by a connection of their own, with their caller's rights.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_common::{Error, Kind};
use skytether_kinetic::library::ProgramLanguage;
use skytether_kinetic_protocol::kinds::Language;
use skytether_kinetic_protocol::program::ProgramResult;
use skytether_kinetic_protocol::{Refusal, StatusCode};
use skytether_native::{Call, Limits, OUTPUT_FD, Outcome, SOCKET_FD, Trap};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::admission::{Caller, Gate};
use crate::guest::Guest;
use crate::session;
use crate::shared::Shared;

/// How long a connection may take to end after its program.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a program is a native one. eBPF objects and WebAssembly modules are none, whatever they are called.
pub(crate) fn is_one(language: Language, program: &[u8]) -> bool {
    language == Language::Native && !matches!(ProgramLanguage::of(program), ProgramLanguage::Ebpf | ProgramLanguage::Wasm)
}

/// Refuses what is no native program of this machine.
pub(crate) fn check(shared: &Shared, program: &[u8]) -> Result<(), Refusal> {
    if !shared.options.native_programs {
        let text = "native programs are off on this drive; compile for eBPF (`clang -target bpf -mcpu=v3 -O2 -c`)";
        return Err(Refusal::new(StatusCode::InvalidExecute, text));
    }
    skytether_native::check(program).map_err(|e| Refusal::new(StatusCode::InvalidExecute, e.to_string()))
}

/// A run that was asked for.
pub(crate) struct Run {
    pub(crate) shared: Arc<Shared>,
    pub(crate) caller: Caller,
    pub(crate) erasures: u64,
    /// Set when the program is to end.
    pub(crate) aborted: Arc<AtomicBool>,
    pub(crate) runtime: Handle,
    pub(crate) name: String,
    pub(crate) arguments: Vec<Bytes>,
    pub(crate) until: Instant,
    pub(crate) output_bytes: usize,
}

impl Run {
    /// Runs the program. It blocks, and so belongs on a thread of its own.
    ///
    /// # Errors
    /// A refusal where the program did not run.
    pub(crate) fn run(self, program: &[u8]) -> Result<(ProgramResult, Option<Bytes>), Refusal> {
        let (guest, proof) = Guest::new(self.caller.acl(), self.caller.chain.clone(), self.erasures, Arc::clone(&self.aborted))?;
        let (ours, theirs) = self.sockets().map_err(|e| Refusal::new(StatusCode::InternalError, format!("no socket for the program: {e}")))?;
        let gate = Gate::of_guest(self.shared.next_connection(), self.caller.tls, guest);
        let ends = CancellationToken::new();
        // A program may compute as long as it may run before it asks for anything.
        let first_call_time = self.until.saturating_duration_since(Instant::now()) + PATIENCE;
        let conversing = self.runtime.spawn(session::converse_as(gate, Arc::clone(&self.shared), ours, first_call_time, ends.clone()));
        let environment = [
            ("KINETIC_FD", SOCKET_FD.to_string()),
            ("KINETIC_OUTPUT_FD", OUTPUT_FD.to_string()),
            ("KINETIC_IDENTITY", proof.identity.to_string()),
            ("KINETIC_KEY", proof.key),
        ];
        // A key may have a byte of 0, which ends arguments.
        let name = self.name.replace('\0', " ");
        let call = Call { program, name: &name, arguments: &self.arguments, environment: &environment, socket: Some(theirs.into()) };
        let limits = Limits { deadline: Some(self.until), ..Limits::default() };
        let limits = Limits { output_bytes: limits.output_bytes.min(self.output_bytes), ..limits };
        let ended = skytether_native::run(call, &limits, &self.aborted);
        if ended.is_err() {
            ends.cancel();
        }
        // Its end of the socket is closed. What it has sent takes effect before its caller learns of the end.
        let stop = conversing.abort_handle();
        let waited = self.runtime.block_on(async { tokio::time::timeout(PATIENCE, conversing).await });
        if waited.is_err() {
            stop.abort();
        }
        match ended {
            Ok(Outcome { exit_code, output, stdout, stderr }) => {
                Ok((ProgramResult { exit_code, signal: 0, message: told("finished", &stderr), output: stdout }, Some(output)))
            }
            Err(trap) if trap.cause.has_run() => Ok((stopped(trap), None)),
            Err(trap) => {
                let error = Error::from(trap);
                let code = if matches!(error.kind(), Kind::Unavailable | Kind::Internal) { StatusCode::InternalError } else { StatusCode::InvalidExecute };
                Err(Refusal::new(code, error.to_string()))
            }
        }
    }

    /// The drive's end of a connection, and the program's.
    fn sockets(&self) -> std::io::Result<(tokio::net::UnixStream, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let _entered = self.runtime.enter();
        Ok((tokio::net::UnixStream::from_std(ours)?, theirs))
    }
}

/// How a program that was stopped ended. It is no error of the request.
fn stopped(trap: Trap) -> ProgramResult {
    ProgramResult { exit_code: -1, signal: trap.cause.signal(), message: told(&trap.to_string(), &trap.stderr), output: trap.stdout }
}

/// A message, and what the program wrote to its standard error.
fn told(message: &str, stderr: &[u8]) -> String {
    let stderr = String::from_utf8_lossy(stderr);
    if stderr.is_empty() { message.to_owned() } else { format!("{message}; its standard error: {}", stderr.trim()) }
}
