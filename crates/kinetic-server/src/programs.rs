//! Programs inside the drive (`MANAGE_APPLET`): the values of some keys, one after the other, are the program.
//!
//! A program reaches what its caller may reach, and nothing else. It ends within its limits: instructions, time, memory
//! and output. Programs run on threads of their own, two at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::Error;
use skytether_ebpf::Limits;
use skytether_kinetic_protocol::access::Target;
use skytether_kinetic_protocol::command::{Body, Header};
use skytether_kinetic_protocol::kinds::{AcknowledgeMode, AppletType, Language, Priority};
use skytether_kinetic_protocol::limits::told;
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kinetic_protocol::status::Status;
use skytether_kinetic_protocol::{Permission, Refusal, StatusCode};
use skytether_kv::Change;
use tokio::runtime::Handle;

use crate::admission::{Caller, Request};
use crate::data::detached;
use crate::native_programs;
use crate::program_bytes::{bytes_of, check_keys, interrupted, run_time};
use crate::program_list::Listed;
use crate::queries::{self, Query};
use crate::reach::Reach;
use crate::reply::{Answer, Reply};
use crate::shared::Shared;
use crate::turns::Waiting;
use crate::watch;
use crate::watches::Teller;

/// The longest that a program may run.
const MOST: Duration = Duration::from_secs(60);

/// Runs or manages a program. `teller` sends what the connection is told later.
pub(crate) fn manage(shared: &Arc<Shared>, request: &Request, teller: &Teller) -> Result<Reply, Refusal> {
    request.caller.check(Permission::ManageApplet, Target::Drive)?;
    let asked = request.body.manage_applet.as_ref().ok_or_else(|| Refusal::invalid("the request names no program"))?;
    let keys: Vec<Bytes> = asked.program_key.iter().map(detached).collect();
    match asked.manage_applet_type() {
        AppletType::Execute => execute(shared, request, asked, keys),
        AppletType::Install | AppletType::Update => prepare(shared, request, asked, keys),
        AppletType::Uninstall => {
            check_keys(shared, &request.caller, &keys)?;
            Ok(on_a_thread(shared, request, move |shared| {
                shared.programs.forget(&bytes_of(shared, &keys)?);
                Ok(())
            }))
        }
        AppletType::Abort => {
            if keys.is_empty() || !shared.programs.abort(&keys) {
                return Err(Refusal::new(StatusCode::NotFound, "no program of these keys runs"));
            }
            Ok(Reply::Now(Answer::of(request, Ok(()))))
        }
        AppletType::GetProcessStatus => {
            let mut answer = Answer::of(request, Ok(()));
            let process_status = shared.programs.statuses(&keys);
            answer.command.body = Some(Body { manage_applet: Some(ManageApplet { process_status, ..ManageApplet::default() }), ..Body::default() });
            Ok(Reply::Now(answer))
        }
        AppletType::Watch => watch::set(shared, request, asked, keys, teller),
        AppletType::Unwatch => watch::end(shared, request, asked, &keys),
        other @ (AppletType::Debug | AppletType::Invalid) => {
            let text = format!("this drive does not do {other}: it knows EXECUTE, ABORT, GET_PROCESS_STATUS, INSTALL, UPDATE, UNINSTALL, WATCH and UNWATCH");
            Err(Refusal::new(StatusCode::InvalidExecute, text))
        }
    }
}

/// Refuses a program that this drive can't run: by its language, and by its first bytes.
fn check_kind(shared: &Shared, language: Language, program: &[u8]) -> Result<(), Refusal> {
    let refused = |text: &str| Err(Refusal::new(StatusCode::InvalidExecute, text));
    // The protocol has no number for it.
    if skytether_wasm::is_module(program) {
        return Ok(());
    }
    match language {
        Language::Ebpf => {}
        Language::Native if native_programs::is_one(language, program) => return native_programs::check(shared, program),
        Language::Native => {}
        Language::Llvm | Language::Java | Language::Substrait | Language::Invalid => {
            return refused("this drive runs WebAssembly modules and eBPF objects; say so by the language EBPF (4)");
        }
    }
    if program.starts_with(b"\x7fELF") {
        Ok(())
    } else {
        refused("the program is no ELF object and no WebAssembly module; compile it with `clang -target bpf -mcpu=v3 -O2 -c`")
    }
}

fn unloadable(error: &Error) -> Refusal {
    Refusal::new(StatusCode::InvalidExecute, error.to_string())
}

/// Work on a program's bytes, which waits for its turn as a program does.
fn on_a_thread(shared: &Arc<Shared>, request: &Request, work: impl FnOnce(&Shared) -> Result<(), Refusal> + Send + 'static) -> Reply {
    let (shared, header, done) = (Arc::clone(shared), request.header.clone(), Answer::of(request, Ok(())));
    let waiting = shared.programs.turns.ask(Priority::of(header.priority));
    Reply::Work(Box::pin(async move {
        let turn = waiting.await;
        let working = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&shared)
        });
        match working.await.unwrap_or_else(|_| Err(interrupted())) {
            Ok(()) => done,
            Err(why) => Answer::refused(&header, &why),
        }
    }))
}

/// Loads a program, so that what is wrong with it is told now.
fn prepare(shared: &Arc<Shared>, request: &Request, asked: &ManageApplet, keys: Vec<Bytes>) -> Result<Reply, Refusal> {
    check_keys(shared, &request.caller, &keys)?;
    let language = asked.lang();
    Ok(on_a_thread(shared, request, move |shared| {
        let bytes = bytes_of(shared, &keys)?;
        if queries::is_query_program(shared, language, &bytes) {
            return queries::check(&bytes);
        }
        check_kind(shared, language, &bytes)?;
        if native_programs::is_one(language, &bytes) {
            return Ok(());
        }
        shared.programs.load(&bytes).map(drop).map_err(|e| unloadable(&e))
    }))
}

/// How a run ended, and its output where that was asked for.
pub(crate) type Ended = Result<(Status, Bytes), Refusal>;

/// A run that is asked for.
pub(crate) struct Run<'a> {
    /// With whose rights.
    pub(crate) caller: &'a Caller,
    pub(crate) asked: &'a ManageApplet,
    pub(crate) keys: Vec<Bytes>,
    /// The value of the request; `None` where it was too long.
    pub(crate) value: Option<Bytes>,
    pub(crate) priority: Priority,
    /// Whether a watch starts it. It does not take the places of those whom clients start.
    pub(crate) watched: bool,
}

/// A run that was asked for, after all checks.
struct Asked {
    shared: Arc<Shared>,
    caller: Caller,
    listed: Listed,
    turn: Waiting,
    language: Language,
    keys: Vec<Bytes>,
    /// How many erasures there were: the program ends with the next.
    erasures: u64,
    arguments: Vec<Bytes>,
    output_key: Option<Bytes>,
    output_in_response: bool,
    most: Duration,
}

fn execute(shared: &Arc<Shared>, request: &Request, asked: &ManageApplet, keys: Vec<Bytes>) -> Result<Reply, Refusal> {
    let value = request.dropped.is_none().then(|| request.value.clone());
    let run = Run { caller: &request.caller, asked, keys, value, priority: Priority::of(request.header.priority), watched: false };
    Ok(executing(request, asked, start(shared, run)?))
}

/// Checks a run and gives it a place on the list. It begins when it is polled; dropping it ends the program.
pub(crate) fn start(shared: &Arc<Shared>, run: Run<'_>) -> Result<BoxFuture<'static, Ended>, Refusal> {
    let Run { caller, asked, keys, value, priority, watched } = run;
    let is_query = asked.lang() == Language::Substrait;
    if !(is_query && keys.is_empty()) {
        check_keys(shared, caller, &keys)?;
    }
    if let Some(key) = &asked.output_key {
        shared.limits.check_key(key)?;
        caller.check(Permission::Write, Target::Key(key))?;
    }
    let busy = || Refusal::new(StatusCode::ServiceBusy, "too many programs run or wait; send this one again later");
    // A sub-plan without keys is known by its output key: ABORT must not end those of other callers.
    let known_by = if keys.is_empty() { asked.output_key.iter().map(detached).collect() } else { keys.clone() };
    let list = |until| shared.programs.list(known_by, until, watched).ok_or_else(busy);
    if is_query || queries::is_query(shared, &keys)? {
        let query = Query::new(shared, caller, asked, &keys, value, list)?;
        return Ok(Box::pin(query.run()));
    }
    let most = run_time(asked, MOST);
    let run = Asked {
        shared: Arc::clone(shared),
        caller: caller.clone(),
        listed: list(Instant::now() + most)?,
        turn: shared.programs.turns.ask(priority),
        language: asked.lang(),
        keys,
        erasures: shared.erasures(),
        arguments: asked.program_param.iter().map(detached).collect(),
        output_key: asked.output_key.as_ref().map(detached),
        output_in_response: asked.set_value_in_response(),
        most,
    };
    Ok(Box::pin(run.run()))
}

/// When a run is answered.
fn executing(request: &Request, asked: &ManageApplet, run: BoxFuture<'static, Ended>) -> Reply {
    let header = request.header.clone();
    let done = Answer::of(request, Ok(()));
    if asked.acknowledge_mode() == AcknowledgeMode::OnReceipt {
        let running = async move {
            let ended = run.await;
            notification(&header, ended)
        };
        if asked.notify_on_completion() {
            return Reply::Begun(done, Box::pin(running));
        }
        // Its client does not wait for it: its place on the list, its deadline and ABORT bound it.
        tokio::spawn(running);
        return Reply::Now(done);
    }
    Reply::Work(Box::pin(async move {
        match run.await {
            Ok((status, output)) => {
                let mut answer = done;
                (answer.command.status, answer.value) = (Some(status), output);
                answer
            }
            Err(why) => Answer::refused(&header, &why),
        }
    }))
}

/// What the drive says by itself when a program has ended.
fn notification(request: &Header, ended: Ended) -> Answer {
    let (status, value) = end_of(ended);
    let mut answer = Answer::refused(request, &Refusal::invalid(""));
    answer.command.header = Some(Header { connection_id: request.connection_id, ack_sequence: request.sequence, ..Header::default() });
    (answer.command.status, answer.value) = (Some(status), value);
    answer
}

/// The status and the value of a message about a run that has ended.
pub(crate) fn end_of(ended: Ended) -> (Status, Bytes) {
    match ended {
        Ok((status, value)) => (Status { code: Some(StatusCode::ExecuteComplete.into()), ..status }, value),
        Err(why) => (why.status(), Bytes::new()),
    }
}

/// Aborts a program whose caller does not wait for it any more.
struct Waited(Option<Arc<AtomicBool>>);

impl Drop for Waited {
    fn drop(&mut self) {
        if let Some(aborted) = &self.0 {
            aborted.store(true, Ordering::Relaxed);
        }
    }
}

impl Asked {
    async fn run(self) -> Ended {
        let Asked { shared, caller, listed, turn, language, keys, erasures, arguments, output_key, output_in_response, most } = self;
        let aborted = Arc::clone(&listed.aborted);
        let mut waited = Waited(Some(Arc::clone(&aborted)));
        let turn = turn.await.ok_or_else(interrupted)?;
        let until = Instant::now() + most;
        listed.runs_until(until);
        let name = keys.iter().map(|key| String::from_utf8_lossy(key)).collect::<Vec<_>>().join(" ");
        let mut limits = Limits { deadline: Some(until), ..Limits::default() };
        if output_key.is_some() || output_in_response {
            // An output is one value.
            limits.output_bytes = limits.output_bytes.min(told(shared.limits.max_value_size).map_or(usize::MAX, |limit| limit as usize));
        }
        let (of, flag, runtime) = (Arc::clone(&shared), Arc::clone(&aborted), Handle::current());
        let (called, chain) = (name.clone(), caller.chain.clone());
        let running = tokio::task::spawn_blocking(move || {
            // The turn and the place on the list are those of this thread, whether or not anybody waits for it.
            let _of_the_thread = (turn, listed);
            let bytes = bytes_of(&of, &keys)?;
            check_kind(&of, language, &bytes)?;
            if native_programs::is_one(language, &bytes) {
                let output_bytes = limits.output_bytes;
                let run = native_programs::Run { shared: of, caller, erasures, aborted: flag, runtime, name: called, arguments, until, output_bytes };
                return run.run(&bytes);
            }
            let program = of.programs.load(&bytes).map_err(|e| unloadable(&e))?;
            let mut reach = Reach::new(of, caller, erasures, runtime, Arc::clone(&flag));
            Ok(program.run(&arguments, &mut reach, &limits, &flag))
        });
        let ended = running.await.map_err(|_| interrupted())?;
        waited.0 = None;
        let (result, output) = ended?;
        // A program that was stopped has no output: what its key had stays.
        if let Some((key, output)) = output_key.zip(output.as_ref()) {
            shared.write_of_program(&chain, Change::put(key, output.clone()), erasures).await?;
        }
        let value = output.filter(|_| output_in_response).unwrap_or_default();
        let text = format!("the program {name} has ended; {}", result.message);
        let status = Status { status_message: Some(text.into()), detailed_message: Some(result.to_bytes()), ..Status::of(StatusCode::Success) };
        Ok((status, value))
    }
}
