//! Programs of a drive by their names: what `skytether program` and `skytether.programs` do.
//!
//! The program `words` lies under the key `program/words`; one that is longer than a value lies under
//! `program/words.0000` and on. The client `kctl` has the same convention (`exec -n COUNT program/words`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use skytether_common::{Error, Result};
use skytether_kinetic_protocol::StatusCode;
use skytether_kinetic_protocol::kinds::{AppletType, Language, Synchronization};
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_transport::Endpoint;

use crate::batch::Change;
use crate::client::Client;
use crate::connection::Connection;
use crate::failure::{Failure, Outcome};
use crate::layout::{PLANS, passing_name};
use crate::options::ClientOptions;
use crate::programs::{Executed, Execution};
use crate::queries::{self, MAGIC, Report};
use crate::values::{Delete, Keys, Put};

/// What the keys of programs begin with.
pub const PROGRAMS: &str = "program/";

/// The longest name, in bytes.
const LONGEST_NAME: usize = 128;

/// The longest program, in bytes.
const LONGEST: usize = 16 << 20;

/// The longest output that is put together here, in bytes.
const LONGEST_OUTPUT: usize = 256 << 20;

/// How long the drive may take to check a program.
const CHECKING: Duration = Duration::from_secs(60);

/// How long a program is waited for where the caller does not say: longer than a drive lets one run.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// What a program is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramLanguage {
    /// An eBPF object, as clang makes it.
    Ebpf,
    /// An ELF executable for the drive's processor.
    Native,
    /// A WebAssembly module.
    Wasm,
    /// A sub-plan for the drive's query engine.
    Query,
    /// Something else.
    Unknown,
}

impl ProgramLanguage {
    /// The language of a program that begins with these bytes.
    #[must_use]
    pub fn of(program: &[u8]) -> ProgramLanguage {
        /// The machine in an ELF header of eBPF objects (`EM_BPF`).
        const BPF: [u8; 2] = 247_u16.to_le_bytes();
        match program {
            _ if program.starts_with(MAGIC) => Self::Query,
            _ if program.starts_with(b"\0asm") => Self::Wasm,
            _ if !program.starts_with(b"\x7fELF") => Self::Unknown,
            _ if program.get(18..20) == Some(&BPF) => Self::Ebpf,
            _ => Self::Native,
        }
    }

    fn number(self) -> Language {
        match self {
            // The protocol has no number for WebAssembly: drives tell it by its first bytes.
            Self::Ebpf | Self::Wasm | Self::Unknown => Language::Ebpf,
            Self::Native => Language::Native,
            Self::Query => Language::Substrait,
        }
    }

    /// The language in a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ebpf => "ebpf",
            Self::Native => "native",
            Self::Wasm => "wasm",
            Self::Query => "query",
            Self::Unknown => "unknown",
        }
    }
}

/// A program that a drive has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredProgram {
    /// Its name.
    pub name: String,
    /// What it is written for.
    pub language: ProgramLanguage,
    /// Its length in bytes.
    pub bytes: u64,
    /// The keys that have it.
    pub keys: u32,
    /// How often it runs at this moment.
    pub running: u32,
}

/// How a program is to run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProgramRun {
    /// Its arguments.
    pub arguments: Vec<Bytes>,
    /// The key that its output is put under.
    pub output_key: Option<Bytes>,
    /// How long it may run; `None`: as long as the drive allows.
    pub most: Option<Duration>,
}

/// The programs of one drive.
#[derive(Debug)]
pub struct ProgramLibrary {
    client: Client,
}

/// Checks a program's name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_part = name.rsplit_once('.').is_some_and(|(_, end)| end.len() == 4 && end.bytes().all(|byte| byte.is_ascii_digit()));
    let fits = !name.is_empty() && name.len() <= LONGEST_NAME && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if fits && !is_part {
        return Ok(());
    }
    Err(Error::invalid(format!("{name:?} is no name of a program: use letters, digits, '-', '_' and '.', and no four digits behind a '.' at the end")))
}

fn whole_key(name: &str) -> Bytes {
    format!("{PROGRAMS}{name}").into()
}

fn part_key(name: &str, number: usize) -> Bytes {
    format!("{PROGRAMS}{name}.{number:04}").into()
}

impl ProgramLibrary {
    /// Connects to the drive at `at` (`kinetic://host:port`, `kinetics://host:port`).
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub async fn connect(at: &Endpoint, options: ClientOptions) -> Result<ProgramLibrary> {
        Ok(ProgramLibrary { client: Client::connect(at, options).await? })
    }

    /// The drive's connections.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn failed(&self, what: &str, failure: Failure) -> Error {
        Error::from(failure).context(format!("cannot {what} at {}", self.client.at().authority()))
    }

    /// Has the drive check a program, and puts it in the place of the one of that name.
    ///
    /// # Errors
    /// `Invalid` for a wrong name, an empty or a long program, and where the drive can't run it: the text says why, and
    /// the one of before stays.
    pub async fn put(&self, name: &str, program: Bytes) -> Result<StoredProgram> {
        check_name(name)?;
        if program.is_empty() || program.len() > LONGEST {
            return Err(Error::invalid(format!("the program {name} has {} bytes; a program has 1 to {LONGEST}", program.len())));
        }
        let language = ProgramLanguage::of(&program);
        let what = format!("put the program {name}");
        let on = self.client.connection().await.map_err(|e| self.failed(&what, e))?;
        let old = self.all_keys_of(&on, name).await.map_err(|e| self.failed(&what, e))?;
        let longest = on.longest_value().max(1);
        let keys: Vec<Bytes> =
            if program.len() <= longest { vec![whole_key(name)] } else { (0..program.len().div_ceil(longest)).map(|n| part_key(name, n)).collect() };
        let puts = keys.iter().zip(program.chunks(longest));
        let puts = puts.map(|(key, part)| Change::Put(Put::new(key.clone(), program.slice_ref(part), None, Bytes::new())));
        let deletes = old.into_iter().filter(|key| !keys.contains(key)).map(|key| Change::Delete(Delete::new(key, None)));
        let checked = self.check(&on, language, &program).await;
        // An identity that may write below `program/` only learns at the first run what is wrong.
        if let Err(failure) = checked
            && failure.code() != Some(StatusCode::NotAuthorized)
        {
            return Err(self.failed(&what, failure));
        }
        let changes: Vec<Change> = puts.chain(deletes).collect();
        let put = async {
            if changes.len() > 1 && on.fits_batch(&changes) {
                return on.batch(changes).await;
            }
            for change in changes {
                match change {
                    Change::Put(put) => on.put(put).await?,
                    Change::Delete(delete) => on.delete(delete).await?,
                }
            }
            Ok(())
        };
        put.await.map_err(|e| self.failed(&what, e))?;
        Ok(StoredProgram { name: name.to_owned(), language, bytes: program.len() as u64, keys: keys.len() as u32, running: 0 })
    }

    /// Has the drive check a program, under keys of the moment.
    async fn check(&self, on: &Connection, language: ProgramLanguage, program: &Bytes) -> Outcome<()> {
        let name = passing_name(PLANS).map_err(|e| Failure::unsent(e.kind(), e.report()))?;
        let checking = async {
            let (lang, program_key) = (Some(language.number().into()), on.put_parts(&name, program).await?);
            let install = ManageApplet { manage_applet_type: Some(AppletType::Install.into()), lang, program_key, ..ManageApplet::default() };
            on.manage(install, CHECKING).await
        };
        let checked = checking.await;
        // What the drive prepared is known by its bytes, and stays for the first run.
        if !checked.as_ref().is_err_and(|failure| failure.is_lost()) {
            for number in 0..on.parts(program.len()) {
                let delete = Delete::new(queries::part_key(name.as_bytes(), number), None);
                // What is left is old soon, and goes with the garbage.
                let _ = on.delete(Delete { synchronization: Synchronization::WriteBack, ..delete }).await;
            }
        }
        checked.map(drop)
    }

    /// Runs a program and waits for its end. Dropping the future ends it.
    ///
    /// # Errors
    /// `NotFound` where there is no such program; `Invalid` where the drive can't run it. A program that fails is no
    /// error: its result says so.
    pub async fn run(&self, name: &str, run: ProgramRun) -> Result<Executed> {
        check_name(name)?;
        let what = format!("run the program {name}");
        // A connection of its own: it is closed to end the program, and a long one holds up nothing.
        let on = self.client.another().await.map_err(|e| self.failed(&what, e))?;
        let execution = Execution { output_in_response: true, ..self.execution(&on, name, run).await? };
        let output_key = execution.output_key.clone();
        let mut ended = on.execute(execution, PATIENCE).await.map_err(|e| self.failed(&what, e))?;
        if let (Some(key), Ok(Report::Done { parts, .. })) = (output_key, Report::parse(&ended.result.output)) {
            let mut all = BytesMut::from(ended.value.as_ref());
            for number in 0..parts {
                let part = on.get(queries::part_key(&key, number), false).await.map_err(|e| self.failed(&what, e))?;
                if all.len() + part.value.len() > LONGEST_OUTPUT {
                    let text =
                        format!("the output of {name} is longer than {LONGEST_OUTPUT} bytes; read the keys {:?} with numbers", String::from_utf8_lossy(&key));
                    return Err(Error::exhausted(text));
                }
                all.extend_from_slice(&part.value);
            }
            ended.value = all.freeze();
        }
        Ok(ended)
    }

    /// What to ask a drive for, to run the program.
    pub(crate) async fn execution(&self, on: &Connection, name: &str, run: ProgramRun) -> Result<Execution> {
        let what = format!("run the program {name}");
        let keys = self.keys_of(on, name).await.map_err(|e| self.failed(&what, e))?;
        let Some(first) = keys.first() else { return Err(self.absent(name)) };
        let begin = on.get(first.clone(), false).await.map_err(|e| self.failed(&what, e))?;
        let ProgramRun { arguments, output_key, most } = run;
        Ok(Execution { arguments, output_key, most, ..Execution::new(ProgramLanguage::of(&begin.value).number(), keys) })
    }

    pub(crate) fn absent(&self, name: &str) -> Error {
        Error::not_found(format!("the drive at {} has no program {name}: `skytether program ls` lists those that it has", self.client.at().authority()))
    }

    /// The keys of a program, in their order.
    pub(crate) async fn keys_of(&self, on: &Connection, name: &str) -> Outcome<Vec<Bytes>> {
        let whole = whole_key(name);
        if on.get_version(whole.clone()).await?.is_some() {
            return Ok(vec![whole]);
        }
        let mut keys = Vec::new();
        loop {
            let key = part_key(name, keys.len());
            if on.get_version(key.clone()).await?.is_none() {
                return Ok(keys);
            }
            keys.push(key);
        }
    }

    /// All keys that have a part of a program of this name, also of one that was written or removed in part.
    async fn all_keys_of(&self, on: &Connection, name: &str) -> Outcome<Vec<Bytes>> {
        let (start, end) = (whole_key(name), Bytes::from(format!("{PROGRAMS}{name}.~")));
        let range = Keys { start: (start, true), end: (end, false), most: 200, reverse: false };
        let keys = on.get_key_range(range).await?;
        Ok(keys.into_iter().filter(|key| named(key).is_some_and(|(of, _)| of == name)).collect())
    }

    /// The programs that the drive has, by name.
    ///
    /// # Errors
    /// `Unavailable`; `Invalid` where the identity may not read them.
    pub async fn list(&self) -> Result<Vec<StoredProgram>> {
        let listing = async {
            let on = self.client.connection().await?;
            let running = on.programs(Vec::new()).await?;
            let mut found: BTreeMap<String, StoredProgram> = BTreeMap::new();
            let end = Bytes::from(format!("{}0", PROGRAMS.trim_end_matches('/')));
            for key in all_keys(&on, (Bytes::from_static(PROGRAMS.as_bytes()), false), (end, false)).await? {
                self.list_key(&on, &key, &mut found).await?;
            }
            for run in running {
                let name = run.program_key.first().and_then(|key| named(key)).map(|(name, _)| name);
                if let Some(program) = name.and_then(|name| found.get_mut(&name)) {
                    program.running += 1;
                }
            }
            Ok(found.into_values().collect())
        };
        listing.await.map_err(|e| self.failed("list the programs", e))
    }

    async fn list_key(&self, on: &Arc<Connection>, key: &Bytes, found: &mut BTreeMap<String, StoredProgram>) -> Outcome<()> {
        let Some((name, number)) = named(key) else { return Ok(()) };
        let record = match on.get(key.clone(), false).await {
            Ok(record) => record,
            // It was removed meanwhile.
            Err(failure) if failure.code() == Some(StatusCode::NotFound) => return Ok(()),
            Err(failure) => return Err(failure),
        };
        let new = StoredProgram { name: name.clone(), language: ProgramLanguage::Unknown, bytes: 0, keys: 0, running: 0 };
        let program = found.entry(name).or_insert(new);
        if number == 0 {
            program.language = ProgramLanguage::of(&record.value);
        }
        program.bytes += record.value.len() as u64;
        program.keys += 1;
        Ok(())
    }

    /// Removes a program. Runs of it come to their end.
    ///
    /// # Errors
    /// `NotFound` where there is none of that name.
    pub async fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let what = format!("remove the program {name}");
        let on = self.client.connection().await.map_err(|e| self.failed(&what, e))?;
        let keys = self.keys_of(&on, name).await.map_err(|e| self.failed(&what, e))?;
        if keys.is_empty() {
            return Err(self.absent(name));
        }
        let uninstall = ManageApplet { manage_applet_type: Some(AppletType::Uninstall.into()), program_key: keys.clone(), ..ManageApplet::default() };
        on.manage(uninstall, CHECKING).await.map_err(|e| self.failed(&what, e))?;
        // The first part last: while it is there, the others are found.
        for key in keys.into_iter().rev() {
            on.delete(Delete::new(key, None)).await.map_err(|e| self.failed(&what, e))?;
        }
        Ok(())
    }

    /// The value of a key, which a program may read; `None` where there is none.
    ///
    /// # Errors
    /// `Unavailable`; `Invalid` where the identity may not read it.
    pub async fn read(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let key = Bytes::copy_from_slice(key);
        let ask = |on: Arc<Connection>| {
            let key = key.clone();
            async move { on.get(key, false).await }
        };
        match self.client.read(ask).await {
            Ok(record) => Ok(Some(record.value)),
            Err(failure) if failure.code() == Some(StatusCode::NotFound) => Ok(None),
            Err(failure) => Err(self.failed(&format!("read the key {:?}", String::from_utf8_lossy(&key)), failure)),
        }
    }

    /// The keys from `first` to `last`, which both belong to them.
    ///
    /// # Errors
    /// `Unavailable`; `Invalid` where the identity may not list these keys.
    pub async fn keys(&self, first: Bytes, last: Bytes) -> Result<Vec<Bytes>> {
        let listing = async {
            let on = self.client.connection().await?;
            all_keys(&on, (first.clone(), true), (last.clone(), true)).await
        };
        let what = || format!("list the keys from {:?} to {:?}", String::from_utf8_lossy(&first), String::from_utf8_lossy(&last));
        listing.await.map_err(|e| self.failed(&what(), e))
    }

    /// Writes a value for programs, in the place of the one that was there. It is durable then.
    ///
    /// # Errors
    /// `Invalid` for a key or a value that is too long; `Unavailable`.
    pub async fn write(&self, key: &[u8], value: Bytes) -> Result<()> {
        let put = Put::new(Bytes::copy_from_slice(key), value, None, Bytes::new());
        let ask = |on: Arc<Connection>| {
            let put = put.clone();
            async move { on.put(put).await }
        };
        // To write the same again does no harm.
        self.client.read(ask).await.map_err(|e| self.failed(&format!("write the key {:?}", String::from_utf8_lossy(key)), e))
    }

    /// Removes a key, if it is there.
    ///
    /// # Errors
    /// `Unavailable`; `Invalid` where the identity may not remove it.
    pub async fn delete(&self, key: &[u8]) -> Result<()> {
        let delete = Delete::new(Bytes::copy_from_slice(key), None);
        let ask = |on: Arc<Connection>| {
            let delete = delete.clone();
            async move { on.delete(delete).await }
        };
        self.client.read(ask).await.map_err(|e| self.failed(&format!("remove the key {:?}", String::from_utf8_lossy(key)), e))
    }

    /// Ends the runs of a program.
    ///
    /// # Errors
    /// `NotFound` where it does not run.
    pub async fn abort(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let what = format!("abort the program {name}");
        let on = self.client.connection().await.map_err(|e| self.failed(&what, e))?;
        let keys = self.keys_of(&on, name).await.map_err(|e| self.failed(&what, e))?;
        on.abort_program(keys).await.map_err(|e| self.failed(&what, e))
    }
}

/// All keys of a range.
async fn all_keys(on: &Connection, mut start: (Bytes, bool), end: (Bytes, bool)) -> Outcome<Vec<Bytes>> {
    const PAGE: u32 = 200;
    let mut all = Vec::new();
    loop {
        let keys = on.get_key_range(Keys { start: start.clone(), end: end.clone(), most: PAGE, reverse: false }).await?;
        let is_last = keys.len() < PAGE as usize;
        all.extend(keys);
        match all.last() {
            Some(last) if !is_last => start = (last.clone(), false),
            _ => return Ok(all),
        }
    }
}

/// The name of the program whose key this is, and which part of it the key has.
fn named(key: &[u8]) -> Option<(String, u32)> {
    let name = std::str::from_utf8(key.strip_prefix(PROGRAMS.as_bytes())?).ok()?;
    let part = name.rsplit_once('.').and_then(|(of, digits)| {
        let is_number = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten().map(|number| (of.to_owned(), number))
    });
    Some(part.unwrap_or_else(|| (name.to_owned(), 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_of_parts_are_told_apart() {
        for name in ["words", "a.b-c_9", "v1.22"] {
            check_name(name).unwrap();
            assert_eq!(named(&whole_key(name)), Some((name.to_owned(), 0)));
            assert_eq!(named(&part_key(name, 12)), Some((name.to_owned(), 12)));
        }
        for name in ["", "a/b", "a b", "words.0001", &"x".repeat(LONGEST_NAME + 1)] {
            check_name(name).unwrap_err();
        }
        assert_eq!(named(b"other/words"), None);
    }

    #[test]
    fn language_follows_from_the_first_bytes() {
        let elf = |machine: u16| [b"\x7fELF".as_slice(), &[0; 14], &machine.to_le_bytes(), &[0; 8]].concat();
        let of = |bytes: &[u8]| ProgramLanguage::of(bytes);
        assert_eq!(
            (of(&elf(247)), of(&elf(62)), of(b"SKYPLAN1..."), of(b"text")),
            (ProgramLanguage::Ebpf, ProgramLanguage::Native, ProgramLanguage::Query, ProgramLanguage::Unknown)
        );
        assert_eq!((of(b"\0asm\x01\0\0\0"), of(b"\0as")), (ProgramLanguage::Wasm, ProgramLanguage::Unknown));
    }
}
