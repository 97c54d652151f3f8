//! Files in CephFS and in RADOS, read without a mount: libcephfs lists them and says in which objects their bytes lie,
//! and librados reads these.
//!
//! | module | subject |
//! |---|---|
//! | `place` | addresses: `cephfs:/PATH`, `rados://POOL/PREFIX` |
//! | `library` | libcephfs, opened at run time |
//! | `mount` | safe calls of libcephfs, with deadlines |
//! | `layout` | pure: from a file's bytes to those of objects |
//! | `file` | reading a file's objects |
//!
//! Invariant: the bytes of an open file are those of the file as it was listed, or the read is a `Conflict`. Of an
//! object, each read names its version. Of a file in CephFS, its inode, size and time are looked at after each read:
//! the metadata server has every other client write down and tell what it changed before it answers.

mod file;
mod layout;
mod library;
mod mount;
mod place;

use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether_common::{Error, Kind, Result};

pub use self::file::{CephFile, ObjectRange, ObjectReads};
use self::file::{Source, Tail, replaced};
use self::layout::Layout;
use self::mount::{Found, Mount, Stamp};
pub use self::place::is_files;
use self::place::{Place, Tree};
use crate::cluster::{Cluster, Pool, c_text};
use crate::library::Handle;
use crate::operations::Write;

/// Files that one listing may have.
const MOST: usize = 1_000_000;

/// Files whose ends are kept, at most: 64 MiB of them.
const KEPT_TAILS: usize = 1024;

/// The largest object that a writer makes, and the least; both are multiples of the 64 KiB that Ceph asks for.
const LARGEST_OBJECT: u64 = 64 << 20;
const LEAST_OBJECT: u64 = 4 << 20;

/// A file, as it was listed.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its path in the file system, or the object's name.
    pub path: String,
    /// Bytes.
    pub size: u64,
    content: Content,
    tail: Option<Tail>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    File(Stamp),
    /// The object's version.
    Object(u64),
}

#[derive(Debug)]
enum Store {
    FileSystem { mount: Arc<Mount>, path: String },
    Objects { pool: Arc<Pool>, namespace: String, prefix: String },
}

/// Files in a Ceph cluster.
#[derive(Debug)]
pub struct CephFiles {
    cluster: Arc<Cluster>,
    store: Store,
    name: String,
}

/// What tells connections apart: threads do not survive a fork.
type Key = (u32, Option<PathBuf>, String, Duration);

/// Connections that are in use, each with its file systems.
static CONNECTIONS: LazyLock<Mutex<HashMap<Key, Connection>>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Connection {
    cluster: Weak<Cluster>,
    mounts: HashMap<Option<String>, Weak<Mount>>,
}

impl CephFiles {
    /// Connects to the cluster of `address`; connections of the process are shared. It blocks.
    ///
    /// # Errors
    /// `Invalid` for what is no address, `Unsupported` for snapshots, `NotFound` without Ceph's libraries, the pool or
    /// the file system, and those of the cluster.
    pub fn open(address: &str) -> Result<Self> {
        let place = Place::parse(address)?;
        let name = place.name();
        let key = (std::process::id(), place.conf.clone(), place.user.clone(), place.timeout);
        let mut connections = CONNECTIONS.lock();
        connections.retain(|_, connection| connection.cluster.strong_count() > 0);
        let connection = connections.entry(key).or_default();
        let cluster = match connection.cluster.upgrade() {
            Some(cluster) => cluster,
            None => {
                let made = Cluster::connect_for(&name, place.conf.as_deref(), &place.user, place.timeout)?;
                *connection = Connection { cluster: Arc::downgrade(&made), mounts: HashMap::new() };
                made
            }
        };
        let store = match place.tree {
            Tree::FileSystem { path, .. } if path.split('/').any(|part| part == ".snap") => {
                // The objects of a snapshot are read by its number, which this does not do: they would be today's.
                return Err(Error::unsupported(format!("{name} is in a snapshot: mount the file system to read snapshots")));
            }
            Tree::FileSystem { name: of, path } => {
                let mount = match connection.mounts.get(&of).and_then(Weak::upgrade) {
                    Some(mount) => mount,
                    None => {
                        let made = Mount::connect(Arc::clone(&cluster), of.as_deref())?;
                        connection.mounts.insert(of, Arc::downgrade(&made));
                        made
                    }
                };
                Store::FileSystem { mount, path }
            }
            Tree::Objects { pool, namespace, prefix } => Store::Objects { pool: cluster.pool(&pool, &namespace)?, namespace, prefix },
        };
        Ok(Self { cluster, store, name })
    }

    /// The address without parameters.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path below which names of directories say what is in them: the address's path, or the prefix up to its last
    /// slash.
    #[must_use]
    pub fn base(&self) -> &str {
        match &self.store {
            Store::FileSystem { path, .. } => path,
            Store::Objects { prefix, .. } => prefix.rsplit_once('/').map_or("", |(base, _)| base),
        }
    }

    /// All files, sorted by their paths: those below the path, or the objects whose names begin with the prefix.
    ///
    /// # Errors
    /// `NotFound` where there is no such path; those of the cluster.
    pub fn list(&self) -> Result<Vec<Listed>> {
        let mut found = match &self.store {
            Store::FileSystem { mount, path } => list_files(mount, path)?,
            // A context of its own: versions are asked of it.
            Store::Objects { pool, namespace, prefix } => list_objects(&self.cluster.pool(&pool.name, namespace)?, prefix)?,
        };
        found.sort_by(|a, b| a.path.cmp(&b.path));
        if found.len() <= KEPT_TAILS {
            for file in &mut found {
                file.tail = Some(Tail::default());
            }
        }
        Ok(found)
    }

    /// Opens a file that was listed.
    ///
    /// # Errors
    /// `Conflict` where it is another one by now; those of the cluster.
    pub fn file(&self, listed: &Listed) -> Result<CephFile> {
        let gone = |e: Error| if e.kind() == Kind::NotFound { replaced(&listed.path).with_source(e) } else { e };
        let (pool, namespace, source) = match (&self.store, listed.content) {
            (Store::FileSystem { mount, .. }, Content::File(stamp)) => {
                let file = mount.open(&listed.path).map_err(gone)?;
                if file.stamp()? != Found::File(stamp) {
                    return Err(replaced(&listed.path));
                }
                let layout = Layout::parse(&file.layout()?).map_err(|e| e.context(format!("cannot read {}", listed.path)))?;
                let pool = self.cluster.pool(&layout.pool, &layout.namespace)?;
                (pool, layout.namespace.clone(), Source::Striped { file, stamp, layout })
            }
            (Store::Objects { pool, namespace, .. }, Content::Object(version)) => {
                let object = c_text(&listed.path)?;
                let own = self.cluster.pool(&pool.name, namespace)?;
                let now = version_of(&own, &object).map_err(gone)?;
                if now != (listed.size, version) {
                    return Err(replaced(&listed.path));
                }
                (own, namespace.clone(), Source::Object { object, version })
            }
            _ => return Err(Error::invalid(format!("{} was not listed by {}", listed.path, self.name))),
        };
        Ok(CephFile { name: listed.path.clone(), size: listed.size, pool, namespace, source, tail: listed.tail.clone(), tally: Mutex::default() })
    }

    /// The OSD that serves an object now, if one does.
    ///
    /// # Errors
    /// Those of the monitors.
    pub fn osd(&self, pool: &str, namespace: &str, object: &str) -> Result<Option<i64>> {
        #[derive(serde::Deserialize)]
        struct Map {
            acting_primary: i64,
        }
        let words = serde_json::json!({"prefix": "osd map", "pool": pool, "object": object, "nspace": namespace, "format": "json"});
        let answer = self.cluster.command(&words)?;
        let map: Map = serde_json::from_slice(&answer)
            .map_err(|e| Error::unsupported(format!("the monitors of {} answer in an unknown form where an object lies", self.name)).with_source(e))?;
        Ok((map.acting_primary >= 0).then_some(map.acting_primary))
    }

    /// Writes a file at `path` below the address's path (empty: at it), or the object whose name is the prefix and
    /// `path`. It replaces another one. The file is one object up to 64 MiB; longer ones are several in CephFS.
    ///
    /// # Errors
    /// `Invalid` for an object that would be longer; those of the cluster.
    pub fn write(&self, path: &str, bytes: Bytes) -> Result<()> {
        match &self.store {
            Store::FileSystem { mount, path: base } => {
                let whole = if path.is_empty() { base.clone() } else { format!("{}/{path}", base.trim_end_matches('/')) };
                if let Some((directory, _)) = whole.rsplit_once('/')
                    && !directory.is_empty()
                {
                    mount.make_directories(directory)?;
                }
                let object = (bytes.len() as u64).next_multiple_of(LEAST_OBJECT).clamp(LEAST_OBJECT, LARGEST_OBJECT);
                mount.write(&whole, bytes, object as u32)
            }
            Store::Objects { pool, prefix, .. } => {
                let name = format!("{prefix}{path}");
                if name.is_empty() {
                    return Err(Error::invalid(format!("{}: an object needs a name", self.name)));
                }
                if bytes.len() as u64 > LARGEST_OBJECT {
                    return Err(Error::invalid(format!(
                        "{name} would have {} bytes, and an object has at most {LARGEST_OBJECT}: write several, or use CephFS",
                        bytes.len()
                    )));
                }
                match Write::new(pool).bytes(&bytes).run(&c_text(&name)?) {
                    code if code < 0 => Err(pool.failed(code, "write", &name)),
                    _ => Ok(()),
                }
            }
        }
    }
}

fn too_many(name: &str) -> Error {
    Error::exhausted(format!("{name} has more than {MOST} files: name a directory or prefix with fewer"))
}

/// The files at or below `path`. Links to files are followed, and those to directories are not.
fn list_files(mount: &Mount, path: &str) -> Result<Vec<Listed>> {
    let listed = |path: String, stamp: Stamp| Listed { path, size: stamp.size, content: Content::File(stamp), tail: None };
    match mount.find(path)? {
        Found::File(stamp) => return Ok(vec![listed(path.to_owned(), stamp)]),
        Found::Other => return Err(Error::invalid(format!("{path} is neither a file nor a directory"))),
        Found::Directory => {}
    }
    let (mut found, mut left) = (Vec::new(), vec![path.trim_end_matches('/').to_owned()]);
    while let Some(directory) = left.pop() {
        for (name, what) in mount.list(if directory.is_empty() { "/" } else { &directory })? {
            let path = format!("{directory}/{name}");
            match what {
                Found::File(stamp) => found.push(listed(path, stamp)),
                Found::Directory => left.push(path),
                Found::Other => match mount.find(&path) {
                    Ok(Found::File(stamp)) => found.push(listed(path, stamp)),
                    // Sockets, devices, links to directories or to nothing.
                    Ok(_) => {}
                    Err(e) if e.kind() == Kind::NotFound => {}
                    Err(e) => return Err(e),
                },
            }
            if found.len() + left.len() > MOST {
                return Err(too_many(path_name(&directory)));
            }
        }
    }
    Ok(found)
}

fn path_name(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

/// Size and version of an object. The pool must be the caller's own: librados keeps the last version in it.
fn version_of(pool: &Pool, object: &CStr) -> Result<(u64, u64)> {
    let (mut size, mut time) = (0u64, 0);
    // SAFETY: text and out pointers live during the call.
    let code = unsafe { (pool.cluster.lib.stat)(pool.io, object.as_ptr(), &raw mut size, &raw mut time) };
    if code < 0 {
        return Err(pool.failed(code, "look at", &object.to_string_lossy()));
    }
    // SAFETY: the context is open.
    Ok((size, unsafe { (pool.cluster.lib.get_last_version)(pool.io) }))
}

/// The objects of a pool's namespace whose names begin with `prefix`.
fn list_objects(pool: &Arc<Pool>, prefix: &str) -> Result<Vec<Listed>> {
    let lib = pool.cluster.lib;
    let mut list: Handle = ptr::null_mut();
    // SAFETY: the out pointer lives during the call.
    let code = unsafe { (lib.nobjects_list_open)(pool.io, &raw mut list) };
    if code < 0 {
        return Err(pool.failed(code, "list the objects before", prefix));
    }
    let mut names = Vec::new();
    let code = loop {
        let mut name: *const c_char = ptr::null();
        // SAFETY: the list is open and the out pointer lives during the call; key and namespace are not wanted.
        let code = unsafe { (lib.nobjects_list_next)(list, &raw mut name, ptr::null_mut(), ptr::null_mut()) };
        if code < 0 || name.is_null() {
            break code;
        }
        // SAFETY: librados' text lives until the next call.
        let name = unsafe { CStr::from_ptr(name) }.to_owned();
        if name.to_bytes().starts_with(prefix.as_bytes()) {
            names.push(name);
        }
        if names.len() > MOST {
            break -libc::E2BIG;
        }
    };
    // SAFETY: the list is open and closed once.
    unsafe { (lib.nobjects_list_close)(list) };
    match code {
        code if code == -libc::E2BIG => return Err(too_many(&pool.name)),
        code if code < 0 && code != -libc::ENOENT => return Err(pool.failed(code, "list the objects before", prefix)),
        _ => {}
    }
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let path = name.to_str().map_err(|e| Error::unsupported(format!("an object of pool {} has a name that is not UTF-8", pool.name)).with_source(e))?;
        match version_of(pool, &name) {
            Ok((size, version)) => found.push(Listed { path: path.to_owned(), size, content: Content::Object(version), tail: None }),
            // Removed while the names were read.
            Err(e) if e.kind() == Kind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    if found.is_empty() {
        return Err(Error::not_found(format!("pool {} has no object whose name begins with {prefix:?}", pool.name)));
    }
    Ok(found)
}
