//! Which process has a fleet: a lock on one object, which the OSD lets go where it is not renewed.
//!
//! The lock tells a second process early and by name. What keeps data safe is the owner in each index, which every
//! change compares ([`crate::store`]): a process whose lock has run out changes nothing.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use skytether_common::{Error, Result};
use uuid::Uuid;

use crate::cluster::{Pool, c_text};

const OBJECT: &CStr = c"skytether-lock";
const LOCK: &CStr = c"fleet";

/// How long a lock holds without renewal, by the clock of the OSD.
const HELD: Duration = Duration::from_secs(30);

/// How often it is renewed.
const RENEWED: Duration = Duration::from_secs(10);

/// `LIBRADOS_LOCK_FLAG_MAY_RENEW`.
const MAY_RENEW: u8 = 1;

/// Bytes for what the OSD tells of a lock's holder.
const TEXT: usize = 4096;

/// A fleet's lock, until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Arc<Pool>,
    cookie: CString,
    /// Dropped to end the thread that renews.
    stop: Option<Sender<()>>,
    renewing: Option<std::thread::JoinHandle<()>>,
}

impl Lease {
    /// Takes the lock of the fleet `name`.
    ///
    /// # Errors
    /// `Conflict` while another process has it, which the text names; `Unavailable`.
    pub(crate) fn take(pool: &Arc<Pool>, name: &str, owner: Uuid) -> Result<Self> {
        let cookie = c_text(&Holder::own(owner).to_string())?;
        let mut code = lock(pool, &cookie, 0);
        if code == -libc::EBUSY {
            let holder = holder(pool)?;
            if let Some((client, given)) = &holder
                && Holder::parse(&given.to_string_lossy()).is_some_and(|holder| holder.is_gone())
            {
                // SAFETY: C strings are valid during the call.
                unsafe { (pool.cluster.lib.break_lock)(pool.io, OBJECT.as_ptr(), LOCK.as_ptr(), client.as_ptr(), given.as_ptr()) };
                code = lock(pool, &cookie, 0);
            }
            if code == -libc::EBUSY {
                let who = holder
                    .and_then(|(_, given)| Holder::parse(&given.to_string_lossy()))
                    .map_or_else(|| "another process".to_owned(), |holder| holder.described());
                return Err(Error::conflict(format!(
                    "{who} has the fleet at {name} open: close it there, or serve it with `skytether host serve` and connect; if that process is dead, its lock ends within {} s",
                    HELD.as_secs()
                )));
            }
        }
        if code < 0 {
            return Err(pool.failed(code, "lock", &OBJECT.to_string_lossy()));
        }
        let (stop, stopped) = channel::<()>();
        let (own, text, who) = (Arc::clone(pool), cookie.clone(), name.to_owned());
        let renew = move || {
            while stopped.recv_timeout(RENEWED) == Err(RecvTimeoutError::Timeout) {
                let code = lock(&own, &text, MAY_RENEW);
                if code < 0 {
                    tracing::warn!("the lock of the fleet at {who} was not renewed: {}", own.failed(code, "lock", &OBJECT.to_string_lossy()));
                }
            }
        };
        let renewing = std::thread::Builder::new().name("rados-lease".into()).spawn(renew);
        let renewing = renewing.map_err(|e| Error::unavailable("no thread could be started that renews the fleet's lock").with_source(e))?;
        Ok(Self { pool: Arc::clone(pool), cookie, stop: Some(stop), renewing: Some(renewing) })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(renewing) = self.renewing.take() {
            let _ = renewing.join();
        }
        // SAFETY: C strings are valid during the call.
        let code = unsafe { (self.pool.cluster.lib.unlock)(self.pool.io, OBJECT.as_ptr(), LOCK.as_ptr(), self.cookie.as_ptr()) };
        if code < 0 && code != -libc::ENOENT {
            tracing::warn!("the fleet was not unlocked: {}", self.pool.failed(code, "unlock", &OBJECT.to_string_lossy()));
        }
    }
}

fn lock(pool: &Pool, cookie: &CStr, flags: u8) -> c_int {
    let mut duration = libc::timeval { tv_sec: HELD.as_secs() as libc::time_t, tv_usec: 0 };
    // SAFETY: C strings and the duration are valid during the call.
    unsafe { (pool.cluster.lib.lock_exclusive)(pool.io, OBJECT.as_ptr(), LOCK.as_ptr(), cookie.as_ptr(), c"".as_ptr(), &raw mut duration, flags) }
}

/// The client and the cookie of the lock's holder.
fn holder(pool: &Pool) -> Result<Option<(CString, CString)>> {
    let mut texts = [[0 as c_char; TEXT]; 4];
    let mut lens = [TEXT; 4];
    let mut exclusive: c_int = 0;
    let [tag, clients, cookies, addresses] = &mut texts;
    let [tag_len, clients_len, cookies_len, addresses_len] = &mut lens;
    // SAFETY: four buffers with their lengths, valid during the call.
    let found = unsafe {
        (pool.cluster.lib.list_lockers)(
            pool.io,
            OBJECT.as_ptr(),
            LOCK.as_ptr(),
            &raw mut exclusive,
            tag.as_mut_ptr(),
            tag_len,
            clients.as_mut_ptr(),
            clients_len,
            cookies.as_mut_ptr(),
            cookies_len,
            addresses.as_mut_ptr(),
            addresses_len,
        )
    };
    if found < 0 {
        return Err(pool.failed(c_int::try_from(found).unwrap_or(-libc::EIO), "ask for the lock of", &OBJECT.to_string_lossy()));
    }
    if found == 0 {
        return Ok(None);
    }
    let text = |buffer: &[c_char; TEXT]| {
        let bytes: Vec<u8> = buffer.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        CString::new(bytes).unwrap_or_default()
    };
    Ok(Some((text(clients), text(cookies))))
}

/// A process, as its lock names it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Holder {
    machine: String,
    /// Drawn at each start of the kernel: process ids are of that start.
    boot: String,
    /// The name space of the process id.
    space: String,
    process: u32,
    owner: String,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {} {}", self.machine, self.boot, self.space, self.process, self.owner)
    }
}

impl Holder {
    /// This process.
    fn own(owner: Uuid) -> Self {
        let read = |path: &str| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.split_whitespace().next().unwrap_or("?").to_owned()
        };
        let space = std::fs::read_link("/proc/self/ns/pid").map_or_else(|_| "?".to_owned(), |path| path.to_string_lossy().replace(' ', ""));
        Self {
            machine: read("/proc/sys/kernel/hostname"),
            boot: read("/proc/sys/kernel/random/boot_id"),
            space,
            process: std::process::id(),
            owner: owner.to_string(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [machine, boot, space, process, owner] = words[..] else { return None };
        Some(Self { machine: machine.into(), boot: boot.into(), space: space.into(), process: process.parse().ok()?, owner: owner.into() })
    }

    /// Whether this machine knows that the process has ended.
    fn is_gone(&self) -> bool {
        let own = Self::own(Uuid::nil());
        let here = self.boot == own.boot && self.space == own.space && self.boot != "?" && self.space != "?";
        here && self.process != own.process && !std::path::Path::new(&format!("/proc/{}", self.process)).exists()
    }

    fn described(&self) -> String {
        let own = Self::own(Uuid::nil());
        match (self.boot == own.boot, self.process == own.process) {
            (true, true) => format!("this process itself (pid {})", self.process),
            (true, false) => format!("process {}", self.process),
            (false, _) => format!("process {} of {}", self.process, self.machine),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_gone_only_where_this_kernel_says_so() {
        let own = Holder::own(Uuid::from_u128(7));
        assert_eq!(Holder::parse(&own.to_string()), Some(own.clone()));
        assert!(!own.is_gone() && own.described().contains("this process itself"));
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let dead = Holder { process: ended.id(), ..own.clone() };
        assert!(dead.is_gone());
        for elsewhere in
            [Holder { boot: "other".into(), ..dead.clone() }, Holder { space: "pid:[1]".into(), ..dead.clone() }, Holder { space: "?".into(), ..dead }]
        {
            assert!(!elsewhere.is_gone(), "{elsewhere}");
        }
        assert_eq!(Holder::parse("a b"), None);
    }
}
