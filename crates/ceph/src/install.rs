//! Object class and engine on the OSDs of a machine: files, the unit of systemd, and Ceph's list of classes.
//!
//! Files get their final names when they are complete: an OSD may load the class at any time. An OSD keeps the library
//! that it has loaded until it is restarted. Another version has another name, so both can be there meanwhile.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use skytether_ceph_protocol::proxy::{DIR, Frame, Probe, socket_name};
use skytether_ceph_protocol::{CLASS, PROBE};
use skytether_common::{Error, Kind, Result};
use skytether_rados::{Address, Objects};

/// Where distributions keep Ceph's object classes.
const CLASS_DIRS: [&str; 3] = ["/usr/lib/x86_64-linux-gnu/rados-classes", "/usr/lib/aarch64-linux-gnu/rados-classes", "/usr/lib64/rados-classes"];

/// The unit of systemd, by OSD.
pub const UNIT: &str = "skytether-ceph-engine@.service";

/// Where units of administrators are.
pub const UNIT_DIR: &str = "/etc/systemd/system";

/// Ceph's option that lists the classes that OSDs may load.
const LIST: &str = "osd_class_load_list";

/// What `ceph` has in that list by default (Ceph 16 to 19).
const USUAL: &str = "cephfs hello journal lock log numops otp rbd refcount rgw rgw_gc timeindex user version cas cmpomap queue 2pc_queue fifo";

/// How long an engine on this machine may take to answer.
const HELLO: Duration = Duration::from_secs(1);

/// Objects that [`status`] makes at most until each OSD has one.
const PROBES: usize = 256;

/// The class's file, as OSDs look for it.
#[must_use]
pub fn class_file() -> String {
    format!("libcls_{CLASS}.so")
}

/// The folder of object classes on this machine.
///
/// # Errors
/// `NotFound`, with the option that names it.
pub fn class_dir() -> Result<PathBuf> {
    let found = CLASS_DIRS.iter().map(PathBuf::from).find(|dir| dir.is_dir());
    found.ok_or_else(|| Error::not_found("this machine has no folder of Ceph's object classes: install ceph-osd, or name the folder with --class-dir"))
}

/// The library that is installed: next to `program`, or where a build has it.
///
/// # Errors
/// `NotFound`, with the option that names it.
pub fn library(program: &Path) -> Result<PathBuf> {
    let beside = program.parent().into_iter().flat_map(|dir| [dir.join(class_file()), dir.join("../lib").join(class_file())]);
    let found = beside.into_iter().find(|file| file.is_file());
    found.ok_or_else(|| {
        let name = class_file();
        Error::not_found(format!("{name} is not next to {}: build it with `cargo build -p skytether-ceph-class`, and name it with --class", program.display()))
    })
}

/// The unit that runs `program` next to each OSD.
#[must_use]
pub fn unit(program: &Path, memory: u64) -> String {
    let most = memory.saturating_mul(2);
    format!(
        "[Unit]
Description=Skytether query engine next to Ceph OSD %i
After=ceph-osd@%i.service
StartLimitIntervalSec=0

[Service]
User=ceph
Group=ceph
RuntimeDirectory=skytether
RuntimeDirectoryPreserve=yes
ExecStart={} ceph engine --osd %i --sockets {DIR} --memory {memory}
Restart=always
RestartSec=200ms
MemoryMax={most}
CPUWeight=50
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
NoNewPrivileges=yes

[Install]
WantedBy=ceph-osd@%i.service
",
        program.display()
    )
}

/// What was done, or is to be done, line by line for people.
pub type Lines = Vec<String>;

fn failed(what: &str, path: &Path, e: io::Error) -> Error {
    Error::new(if e.kind() == io::ErrorKind::PermissionDenied { Kind::Invalid } else { Kind::Unavailable }, format!("cannot {what} {}", path.display()))
        .with_source(e)
}

/// Puts a file in place; whether it was another one before.
fn put(path: &Path, bytes: &[u8]) -> Result<bool> {
    if std::fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(false);
    }
    let dir = path.parent().unwrap_or(Path::new("/"));
    let new = dir.join(format!(".{}.new", path.file_name().unwrap_or_default().to_string_lossy()));
    let written = std::fs::write(&new, bytes)
        .and_then(|()| std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)))
        .and_then(|()| std::fs::rename(&new, path));
    written.map(|()| true).map_err(|e| {
        let _ = std::fs::remove_file(&new);
        failed("write", path, e)
    })
}

/// What is installed where.
#[derive(Debug, Clone)]
pub struct Places {
    /// The folder of object classes.
    pub classes: PathBuf,
    /// The folder of units.
    pub units: PathBuf,
}

/// Installs the class's `library`, and a unit for `program`.
///
/// # Errors
/// `Invalid` for a library that is none, or without the right to write; what the system says.
pub fn install(places: &Places, library: &Path, program: &Path, memory: u64) -> Result<Lines> {
    let bytes = std::fs::read(library).map_err(|e| failed("read", library, e))?;
    let exports = |name: &str| bytes.windows(name.len()).any(|part| part == name.as_bytes());
    if !bytes.starts_with(b"\x7fELF") || !exports("__cls_init") || !exports(CLASS) {
        return Err(Error::invalid(format!("{} is not the object class {CLASS}: name {} with --class", library.display(), class_file())));
    }
    let (class, service) = (places.classes.join(class_file()), places.units.join(UNIT));
    let was_there = class.exists();
    let mut lines = Vec::new();
    match (put(&class, &bytes)?, was_there) {
        (true, true) => lines.push(format!("replaced {}: OSDs that have loaded the former one keep it until they restart", class.display())),
        (true, false) => lines.push(format!("wrote {}", class.display())),
        (false, _) => lines.push(format!("{} is there already", class.display())),
    }
    let changed = put(&service, unit(program, memory).as_bytes())?;
    lines.push(format!("{} {}", if changed { "wrote" } else { "already there:" }, service.display()));
    Ok(lines)
}

/// Removes the class and the unit.
///
/// # Errors
/// What the system says.
pub fn remove(places: &Places) -> Result<Lines> {
    let mut lines = Vec::new();
    for path in [places.classes.join(class_file()), places.units.join(UNIT)] {
        match std::fs::remove_file(&path) {
            Ok(()) => lines.push(format!("removed {}", path.display())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => lines.push(format!("{} was not there", path.display())),
            Err(e) => return Err(failed("remove", &path, e)),
        }
    }
    Ok(lines)
}

/// The classes that OSDs may load, as the monitors have it; `None` where it is the default.
fn listed(cluster: &Objects) -> Result<Option<String>> {
    let answer = cluster.command(&json!({"prefix": "config dump", "format": "json"}))?;
    let all: Vec<Value> = serde_json::from_slice(&answer).map_err(|e| Error::unsupported("the monitors list options in an unknown form").with_source(e))?;
    let own = all.iter().find(|option| option["name"] == LIST && option["section"] == "osd");
    Ok(own.and_then(|option| option["value"].as_str()).map(str::to_owned))
}

/// `list` with or without the class; `None` where nothing is to be changed.
fn changed(list: Option<&str>, with: bool) -> Option<String> {
    let words: Vec<&str> = list.unwrap_or(USUAL).split_whitespace().collect();
    let has = words.iter().any(|word| *word == CLASS || (with && *word == "*"));
    if has == with {
        return None;
    }
    let kept = words.into_iter().filter(|word| *word != CLASS).chain(with.then_some(CLASS));
    Some(kept.collect::<Vec<_>>().join(" "))
}

/// Lets all OSDs load the class, or not any more, by the monitors' options. Blocks.
///
/// # Errors
/// Those of the monitors.
pub fn allow(at: &Address, with: bool) -> Result<Lines> {
    let cluster = Objects::open(at)?;
    let Some(list) = changed(listed(&cluster)?.as_deref(), with) else { return Ok(vec![format!("the monitors' {LIST} needs no change")]) };
    cluster.command(&json!({"prefix": "config set", "who": "osd", "name": LIST, "value": list}))?;
    let word = if with { "now names" } else { "names no longer" };
    Ok(vec![format!("the monitors' {LIST} for OSDs {word} {CLASS}; OSDs take it when they restart, and a value in their ceph.conf goes before it")])
}

/// The version of the engine next to OSD `number` of this machine.
///
/// # Errors
/// Why none answers.
pub fn engine(sockets: &Path, number: u32) -> Result<String, String> {
    let path = sockets.join(socket_name(number));
    let ask = || -> io::Result<Frame> {
        let mut stream = UnixStream::connect(&path)?;
        stream.set_read_timeout(Some(HELLO))?;
        stream.set_write_timeout(Some(HELLO))?;
        Frame::Hello.write(&mut stream)?;
        Frame::read(&mut stream)
    };
    match ask() {
        Ok(Frame::Done(version)) => Ok(String::from_utf8_lossy(&version).into_owned()),
        Ok(_) => Err(format!("what listens at {} is no engine", path.display())),
        Err(e) => Err(format!("no engine answers at {}: {e}", path.display())),
    }
}

/// What one OSD can do.
#[derive(Debug, Clone)]
pub struct OsdStatus {
    /// Its number.
    pub osd: u32,
    /// The version of its class; `Err`: why it has none.
    pub class: Result<String, String>,
    /// The version of the engine next to it; `Err`: why none answers.
    pub engine: Result<String, String>,
}

/// Asks each OSD of the pool that `at` names, by objects that are made for it and removed. Blocks.
///
/// # Errors
/// Those of the monitors and of the pool.
pub fn status(at: &Address) -> Result<Vec<OsdStatus>> {
    let cluster = Objects::open(at)?;
    let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    let parsed = |bytes: Vec<u8>| -> Result<Value> {
        serde_json::from_slice(&bytes).map_err(|e| Error::unsupported("the monitors answer in an unknown form").with_source(e))
    };
    let all = parsed(cluster.command(&json!({"prefix": "osd ls", "format": "json"}))?)?;
    let mut left: Vec<u32> = all.as_array().into_iter().flatten().filter_map(number).collect();
    let mut found = Vec::new();
    for probe in 0..PROBES {
        if left.is_empty() {
            break;
        }
        let object = format!("skytether-probe.{probe}");
        let map = parsed(cluster.command(&json!({"prefix": "osd map", "pool": at.pool, "object": object, "nspace": at.namespace, "format": "json"}))?)?;
        let Some(osd) = number(&map["acting_primary"]).filter(|osd| left.contains(osd)) else { continue };
        left.retain(|other| *other != osd);
        cluster.write(&object, vec![0u8])?;
        let called = cluster.call(&object, CLASS, PROBE, &[]);
        cluster.remove(&object)?;
        let called = called?;
        found.push(match (called.error(), Probe::decode(&called.output)) {
            (Some(error), _) => OsdStatus { osd, class: Err(error), engine: Err("not asked".to_owned()) },
            (None, Err(wrong)) => OsdStatus { osd, class: Err(wrong.to_string()), engine: Err("not asked".to_owned()) },
            (None, Ok(told)) if told.read < 0 => {
                let why = format!("version {} can't read objects of pool {} ({})", told.class, at.pool, io::Error::from_raw_os_error(-told.read));
                OsdStatus { osd, class: Err(why), engine: told.engine }
            }
            (None, Ok(told)) => OsdStatus { osd, class: Ok(told.class), engine: told.engine },
        });
    }
    let absent = |osd| OsdStatus { osd, class: Err(format!("it has no part of pool {}", at.pool)), engine: Err("not asked".to_owned()) };
    found.extend(left.into_iter().map(absent));
    found.sort_by_key(|one| one.osd);
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_classes_change_by_one_name() {
        assert_eq!(changed(Some("a b"), true).unwrap(), format!("a b {CLASS}"));
        assert_eq!(changed(Some(&format!("a {CLASS} b")), false).unwrap(), "a b");
        assert_eq!((changed(Some("*"), true), changed(Some("a"), false), changed(None, false)), (None, None, None));
        assert!(changed(None, true).unwrap().contains("lock log") && changed(None, true).unwrap().ends_with(CLASS));
    }

    #[test]
    fn installing_twice_and_removing_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places { classes: dir.path().to_owned(), units: dir.path().to_owned() };
        let library = dir.path().join("built.so");
        std::fs::write(&library, b"no library").unwrap();
        assert!(install(&places, &library, Path::new("/usr/bin/skytether"), 1 << 29).unwrap_err().to_string().contains("not the object class"));
        std::fs::write(&library, format!("\x7fELF __cls_init {CLASS}")).unwrap();
        let first = install(&places, &library, Path::new("/usr/bin/skytether"), 1 << 29).unwrap();
        let again = install(&places, &library, Path::new("/usr/bin/skytether"), 1 << 29).unwrap();
        assert!(first[0].starts_with("wrote") && again[0].contains("already"), "{first:?} {again:?}");
        assert!(std::fs::read_to_string(dir.path().join(UNIT)).unwrap().contains("ExecStart=/usr/bin/skytether ceph engine --osd %i"));
        remove(&places).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(remove(&places).unwrap()[0].contains("was not there"));
    }
}
