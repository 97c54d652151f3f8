//! Running the command, once or as a server, for a bounded time.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_skytether");

/// How long one call may take; a call that takes longer has hung. More than any deadline of the system's
/// own, so that those are seen.
const PATIENCE: Duration = Duration::from_secs(100);

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    /// That it ended with `code`; the outputs are shown where not.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// A failure: one sentence on stderr, nothing on stdout; the sentence.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        let done = self.code(code);
        assert_eq!(done.out, "", "a failure prints no result");
        assert!(!done.err.contains("panicked") && !done.err.contains("RUST_BACKTRACE"), "{}", done.err);
        done.err
    }
}

/// The command, with none of our surroundings in its way.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(args)
        .env_remove("SKYTETHER_FLEET")
        .env_remove("SKYTETHER_LOG")
        .env_remove("SKYTETHER_TOKEN")
        .env_remove("SKYTETHER_TLS_CA")
        .env("COLUMNS", "120")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Everything that can be read from `from`, on a thread of its own.
fn drain(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        let _ = send.send(all);
    });
    receive
}

/// Runs the command to its end.
#[track_caller]
pub(crate) fn run(args: &[&str]) -> Done {
    run_with(args, &[])
}

/// As [`run`], with at most `most` open files.
#[track_caller]
pub(crate) fn run_with_files(most: usize, args: &[&str]) -> Done {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -n {most}; exec \"$0\" \"$@\"")).arg(PROGRAM).args(args);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(shell, args)
}

/// [`run`] with variables in its environment.
#[track_caller]
pub(crate) fn run_with(args: &[&str], environment: &[(&str, &str)]) -> Done {
    let mut command = command(args);
    command.envs(environment.iter().copied());
    finish(command, args)
}

#[track_caller]
fn finish(mut command: Command, args: &[&str]) -> Done {
    let mut child = Killed(command.spawn().unwrap());
    let (out, err) = (drain(child.0.stdout.take().unwrap()), drain(child.0.stderr.take().unwrap()));
    ended(child, &out, &err, args)
}

/// Waits for a command that prints nothing but `out` and `err`, and collects its result.
#[track_caller]
fn ended(mut child: Killed, out: &Receiver<Vec<u8>>, err: &Receiver<Vec<u8>>, args: &[&str]) -> Done {
    // Its outputs are closed when it ends; they are what can be waited for with a bound.
    let bytes = out.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("`skytether {}` has hung", args.join(" ")));
    let err = err.recv_timeout(PATIENCE).unwrap();
    let code = child.0.wait().unwrap().code();
    Done { code, out: String::from_utf8_lossy(&bytes).into_owned(), bytes, err: String::from_utf8(err).unwrap() }
}

/// Runs the command and reads `lines` lines of what it prints before closing the pipe.
pub(crate) fn run_and_leave(args: &[&str], lines: usize) -> Done {
    let mut child = Killed(command(args).spawn().unwrap());
    let err = drain(child.0.stderr.take().unwrap());
    let mut read = BufReader::with_capacity(16, child.0.stdout.take().unwrap());
    let mut out = String::new();
    for _ in 0..lines {
        read.read_line(&mut out).unwrap();
    }
    drop(read);
    let err = err.recv_timeout(PATIENCE).expect("the command goes on writing to nobody");
    let code = child.0.wait().unwrap().code();
    Done { code, bytes: Vec::new(), out, err: String::from_utf8(err).unwrap() }
}

/// Runs the command, reads a line of what it prints, and presses Ctrl-C. The command must print more than a pipe holds.
#[track_caller]
pub(crate) fn run_and_interrupt(args: &[&str]) -> Done {
    let mut child = Killed(command(args).spawn().unwrap());
    let err = drain(child.0.stderr.take().unwrap());
    let mut read = BufReader::with_capacity(16, child.0.stdout.take().unwrap());
    let mut out = String::new();
    read.read_line(&mut out).unwrap();
    send(&child.0, libc::SIGINT);
    // What it wrote before may be read; it need not be.
    let rest = drain(read);
    let bytes = rest.recv_timeout(PATIENCE).expect("Ctrl-C does not end it");
    let err = err.recv_timeout(PATIENCE).unwrap();
    let code = child.0.wait().unwrap().code();
    Done { code, bytes, out, err: String::from_utf8(err).unwrap() }
}

/// Runs the command, and presses Ctrl-C once `begun`.
#[track_caller]
pub(crate) fn run_and_interrupt_once(args: &[&str], begun: impl Fn() -> bool) -> Done {
    let mut child = Killed(command(args).spawn().unwrap());
    let (out, err) = (drain(child.0.stdout.take().unwrap()), drain(child.0.stderr.take().unwrap()));
    let since = std::time::Instant::now();
    while !begun() {
        assert!(since.elapsed() < PATIENCE && child.0.try_wait().unwrap().is_none(), "`skytether {}` has not begun, or is over", args.join(" "));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    send(&child.0, libc::SIGINT);
    ended(child, &out, &err, args)
}

/// Sends a signal to a process that was not awaited yet.
#[track_caller]
fn send(child: &Child, signal: libc::c_int) {
    // SAFETY: kill(2) takes no memory; the process is our child and was not awaited, so that the
    // number is still its own.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
}

/// A process that is killed, and awaited, with its owner.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A drive or host as a process.
pub(crate) struct Served {
    child: Killed,
    /// Where it listens: `grpc://HOST:PORT`.
    pub(crate) url: String,
    /// All lines that it printed when it was ready.
    pub(crate) banner: Vec<String>,
    out: Receiver<Vec<u8>>,
    err: Receiver<Vec<u8>>,
}

impl Served {
    /// Starts `skytether ARGS`, which prints its address when it is ready.
    #[track_caller]
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[], 1)
    }

    /// Starts `skytether ARGS` with variables in its environment; it prints `lines` addresses.
    #[track_caller]
    pub(crate) fn start_with(args: &[&str], environment: &[(&str, &str)], lines: usize) -> Self {
        let mut child = Killed(command(args).envs(environment.iter().copied()).spawn().unwrap());
        let err = drain(child.0.stderr.take().unwrap());
        let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
        let (send, first) = channel();
        let (rest, out) = channel();
        std::thread::spawn(move || {
            for _ in 0..lines {
                let mut line = String::new();
                let _ = stdout.read_line(&mut line);
                let _ = send.send(line.trim_end().to_owned());
            }
            let mut all = Vec::new();
            let _ = stdout.read_to_end(&mut all);
            let _ = rest.send(all);
        });
        let banner: Vec<String> = (0..lines).map(|_| first.recv_timeout(PATIENCE).unwrap()).collect();
        let Some(url) = banner[0].split_whitespace().last().filter(|word| word.starts_with("grpc://") || word.starts_with("grpc+tls://")) else {
            drop(child);
            panic!("`skytether {}` said {banner:?} and {:?}", args.join(" "), err.recv().map(|e| String::from_utf8_lossy(&e).into_owned()));
        };
        Self { child, url: url.to_owned(), banner, out, err }
    }

    /// `HOST:PORT`.
    pub(crate) fn address(&self) -> &str {
        self.url.split_once("://").unwrap().1
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Ends it as a power cut does.
    pub(crate) fn kill(mut self) {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
    }

    #[track_caller]
    fn signal(&self, signal: libc::c_int) {
        send(&self.child.0, signal);
    }

    /// Stops the process: its sockets stay open, and no request is answered.
    #[track_caller]
    pub(crate) fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets it go on.
    #[track_caller]
    pub(crate) fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Asks it to end, with SIGTERM, and waits until it has.
    #[track_caller]
    pub(crate) fn stop(mut self) -> Done {
        self.signal(libc::SIGTERM);
        let bytes = self.out.recv_timeout(PATIENCE).expect("SIGTERM does not end it");
        let err = self.err.recv_timeout(PATIENCE).unwrap();
        let code = self.child.0.wait().unwrap().code();
        Done { code, out: String::from_utf8_lossy(&bytes).into_owned(), bytes, err: String::from_utf8(err).unwrap() }
    }
}

/// A directory as text; test directories have names that are text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A fleet of `drives` drives in `dir`; its path.
#[track_caller]
pub(crate) fn fleet(dir: &Path, drives: &str) -> String {
    let at = text(&dir.join("fleet")).to_owned();
    let done = run(&["init", &at, "--drives", drives]).code(0);
    assert!(done.out.contains(&format!("{drives} drive")) && done.err.is_empty(), "{done:?}");
    at
}

/// Writes `content` to a file called `name`; its path.
pub(crate) fn file(dir: &Path, name: &str, content: &str) -> String {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().write_all(content.as_bytes()).unwrap();
    text(&path).to_owned()
}

/// `rows` rows of (k, v, x, noise): x in eighths, so that sums are exact in any order; noise, so that nothing
/// is small when compressed.
pub(crate) fn rows(from: i64, rows: i64) -> RecordBatch {
    let v: Vec<i64> = (from..from + rows).collect();
    let noise: Vec<i64> = v.iter().map(|&v| scramble(v as u64) as i64).collect();
    let x = Float64Array::from_iter(noise.iter().map(|n| (n % 9 != 0).then_some((n % 1000) as f64 / 8.0)));
    let k = StringArray::from_iter(v.iter().map(|v| (v % 7 != 0).then(|| format!("group {}", v % 5))));
    let columns: Vec<(&str, ArrayRef)> =
        vec![("k", Arc::new(k)), ("v", Arc::new(Int64Array::from(v))), ("x", Arc::new(x)), ("noise", Arc::new(Int64Array::from(noise)))];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// The finaliser of splitmix64: bits without pattern.
fn scramble(v: u64) -> u64 {
    let v = v.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let v = (v ^ (v >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let v = (v ^ (v >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    v ^ (v >> 31)
}

/// `batch` as a Parquet file; its path.
pub(crate) fn parquet(dir: &Path, name: &str, batch: &RecordBatch) -> String {
    let path = dir.join(name);
    let mut writer = parquet::arrow::ArrowWriter::try_new(std::fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    text(&path).to_owned()
}

/// `batch` as an Arrow IPC file; its path.
pub(crate) fn arrow_file(dir: &Path, name: &str, batch: &RecordBatch) -> String {
    let path = dir.join(name);
    let mut writer = arrow::ipc::writer::FileWriter::try_new(std::fs::File::create(&path).unwrap(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    text(&path).to_owned()
}
