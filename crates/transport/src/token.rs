//! Bearer tokens: made once, kept as hashes in a JSON file.
//!
//! A token is `sky_` and 256 random bits. The file holds their SHA-256, name, dates and grants. A plain hash is enough:
//! slow ones (Argon2) and salts protect what people choose and reuse, and no attacker can try 2^256 tokens. A slow hash
//! would only make each call slow.
//!
//! Several processes may use a file at once: the host that checks tokens, and the command that makes or revokes one.
//! The file is replaced as a whole, under a lock next to it, and read again when it has changed.

use std::fmt;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use skytether_common::{Context, Error, Kind, Result};
use skytether_runtime::waiting;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::files::{Access, Stamp, open_lock, replace, resolved};
use crate::identity::{Denied, Identity};

/// What tokens begin with, so that scanners for leaked secrets find them.
const PREFIX: &str = "sky_";

/// The version of the file's format.
const FORMAT: u32 = 1;

/// The file's name in the directory of an embedded fleet.
pub const FILE_NAME: &str = "tokens.json";

/// How long a change waits for another process that changes the file.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often it asks meanwhile.
const ASK: Duration = Duration::from_millis(20);

/// Text that is not to be printed. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Hides `text`.
    #[must_use]
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().into())
    }

    /// The text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A token as it is listed: all but its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenInfo {
    /// Its name, which is also the user name of clients that log in.
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// From when on it is refused, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// What its holder may do: `read:DOMAIN`, `write:DOMAIN`, `admin`. Kept and shown; nothing checks them yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<String>,
}

impl TokenInfo {
    /// Whether it has expired by now.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.expires.is_some_and(|at| now() >= at)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    info: TokenInfo,
    /// SHA-256 of the token's text, in hexadecimal digits.
    sha256: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    format: u32,
    tokens: Vec<Entry>,
}

/// A file of tokens. An absent file holds none. Where its path is a symbolic link, the file is what that names.
#[derive(Debug)]
pub struct TokenStore {
    path: PathBuf,
    cache: Mutex<Option<(Stamp, Arc<Checked>)>>,
    patience: Duration,
}

/// What verifying needs.
#[derive(Debug, Default)]
struct Checked(Vec<(TokenInfo, [u8; 32])>);

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn hash(token: &Secret) -> [u8; 32] {
    Sha256::digest(token.expose().as_bytes()).into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// A name of letters, digits, `-`, `_`, `.` and `@`: it appears in log lines and as a user name before a colon.
fn check_name(name: &str) -> Result<()> {
    if (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@')) {
        return Ok(());
    }
    Err(Error::invalid(format!("{name:?} can't be a token's name: use 1 to 64 letters, digits, '-', '_', '.' and '@'")))
}

/// Checks a grant: `read:DOMAIN`, `write:DOMAIN` or `admin`.
///
/// # Errors
/// `Invalid` for any other text.
pub fn check_grant(grant: &str) -> Result<()> {
    let good = match grant.split_once(':') {
        Some(("read" | "write", domain)) => (1..=255).contains(&domain.len()) && !domain.chars().any(|c| c.is_whitespace() || c.is_control()),
        _ => grant == "admin",
    };
    if good { Ok(()) } else { Err(Error::invalid(format!("{grant:?} is no grant: write read:DOMAIN, write:DOMAIN or admin"))) }
}

impl TokenStore {
    /// The tokens in the file at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), cache: Mutex::new(None), patience: PATIENCE }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a token. Its text is nowhere but in the answer.
    ///
    /// # Errors
    /// `Conflict` where there is a token of that name; `Invalid` for a name or a grant that can't be one, and for a
    /// file that can't be written; `Unavailable` where another process has it locked for 10 s.
    pub fn create(&self, name: &str, grants: &[String], lifetime: Option<Duration>) -> Result<Secret> {
        check_name(name)?;
        grants.iter().try_for_each(|grant| check_grant(grant))?;
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|e| Error::unavailable("the system gives no random numbers").with_source(e))?;
        let token = Secret::from(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)));
        self.change(|content| {
            if content.tokens.iter().any(|entry| entry.info.name == name) {
                return Err(Error::conflict(format!("token {name}: there is one of that name; revoke it first, or choose another name")));
            }
            let created = now();
            let expires = lifetime.map(|lifetime| created.saturating_add(lifetime.as_secs()));
            let info = TokenInfo { name: name.to_owned(), created, expires, grants: grants.to_vec() };
            content.tokens.push(Entry { info, sha256: hex(&hash(&token)) });
            Ok(())
        })?;
        Ok(token)
    }

    /// The tokens, in order of their names.
    ///
    /// # Errors
    /// `Corrupt` for a damaged file, `Unsupported` for one of a newer version.
    pub fn list(&self) -> Result<Vec<TokenInfo>> {
        let mut tokens: Vec<_> = waiting(|| self.read(&self.path))?.tokens.into_iter().map(|entry| entry.info).collect();
        tokens.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(tokens)
    }

    /// Takes a token back: calls with it fail from now on.
    ///
    /// # Errors
    /// `NotFound` where there is none of that name; otherwise as [`TokenStore::create`].
    pub fn revoke(&self, name: &str) -> Result<()> {
        self.change(|content| {
            let before = content.tokens.len();
            content.tokens.retain(|entry| entry.info.name != name);
            if content.tokens.len() == before {
                return Err(Error::not_found(format!("token {name:?}: there is none of that name; `skytether token ls` lists them")));
            }
            Ok(())
        })
    }

    /// Whose token it is; with `user`, only if it has that name.
    ///
    /// All tokens are compared, each in constant time: how long it takes says nothing about any of them.
    pub(crate) fn verify(&self, user: Option<&str>, token: &Secret) -> Result<Identity, Denied> {
        let known = self.checked().map_err(|error| {
            tracing::error!("no token can be verified: {error}");
            Denied("this server can't read its tokens; its log says why".into())
        })?;
        let given = hash(token);
        let mut found = u64::MAX;
        for (n, (_, stored)) in (0u64..).zip(&known.0) {
            let same: Choice = stored.ct_eq(&given);
            found.conditional_assign(&n, same);
        }
        let entry = usize::try_from(found).ok().and_then(|found| known.0.get(found));
        match entry {
            Some((info, _)) if user.is_none_or(|user| user == info.name) && !info.is_expired() => {
                Ok(Identity::token(info.name.clone(), info.grants.as_slice()))
            }
            Some((info, _)) if info.is_expired() => Err(Denied("the token has expired; have another one made".into())),
            _ => Err(Denied("the token is wrong or was revoked; have another one made (skytether token create)".into())),
        }
    }

    /// The tokens as they are now, read again only where the file has changed.
    fn checked(&self) -> Result<Arc<Checked>> {
        let stamp = Stamp::of([self.path.as_path()]);
        let mut cache = self.cache.lock();
        if let Some((of, checked)) = cache.as_ref()
            && *of == stamp
        {
            return Ok(Arc::clone(checked));
        }
        // A file that can't be read admits no one: which tokens were revoked in it is not known.
        *cache = None;
        let content = self.read(&self.path)?;
        let entries = content.tokens.into_iter().map(|entry| unhex(&entry.sha256).map(|hash| (entry.info, hash)));
        let checked = entries.collect::<Option<Vec<_>>>().ok_or_else(|| self.damaged("a hash is not 64 hexadecimal digits"))?;
        let checked = Arc::new(Checked(checked));
        *cache = Some((stamp, Arc::clone(&checked)));
        Ok(checked)
    }

    fn damaged(&self, why: &str) -> Error {
        Error::corrupt(format!("{}: it is no file of tokens ({why}); remove it, and make the tokens again", self.path.display()))
    }

    fn read(&self, path: &Path) -> Result<Content> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Content::default()),
            Err(e) => return Err(Error::io("read", path, e)),
        };
        let content: Content = serde_json::from_slice(&bytes).map_err(|e| self.damaged("it is no JSON of tokens").with_source(e))?;
        if content.format > FORMAT {
            return Err(Error::unsupported(format!("{}: its format {} is newer than this program; update the program", self.path.display(), content.format)));
        }
        Ok(content)
    }

    /// Replaces the file by what `change` makes of it, with no other process doing so at the same time.
    fn change(&self, change: impl FnOnce(&mut Content) -> Result<()>) -> Result<()> {
        waiting(|| {
            // All processes must lock and replace the same file, by whatever links they come to it.
            let path = resolved(&self.path)?;
            let _lock = self.lock(&path).context(|| format!("cannot change {}", self.path.display()))?;
            let mut content = self.read(&path)?;
            change(&mut content)?;
            content.format = FORMAT;
            let text = serde_json::to_vec_pretty(&content).map_err(|e| Error::internal("cannot write JSON").with_source(e))?;
            replace(&path, &text, Access::Kept)
        })
    }

    /// Locks the tokens in `file` while the returned file is open. The lock is a file of its own, because the token
    /// file is replaced.
    fn lock(&self, file: &Path) -> Result<File> {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(".lock");
        let path = file.with_file_name(name);
        let lock = open_lock(&path, file).map_err(|e| Error::io("open", &path, e))?;
        let until = Instant::now() + self.patience;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(ASK),
                Err(TryLockError::WouldBlock) => {
                    let text = format!(
                        "{}: another process has held this lock for {:.0} s; end that process, or try again",
                        path.display(),
                        self.patience.as_secs_f64()
                    );
                    return Err(Error::unavailable(text));
                }
                Err(TryLockError::Error(e)) => return Err(Error::new(Kind::Unavailable, format!("cannot lock {}", path.display())).with_source(e)),
            }
        }
    }
}

/// Parses a lifetime: a number and a unit, `90m`, `12h`, `30d`, `52w`.
///
/// # Errors
/// `Invalid` for another text, and for zero.
pub fn lifetime(text: &str) -> Result<Duration> {
    let wrong = || Error::invalid(format!("{text:?} is no lifetime: write a number and a unit, such as 90m, 12h, 30d or 52w"));
    let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).filter(|seconds| (1..=u64::from(u32::MAX)).contains(seconds)).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, TokenStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = TokenStore::new(dir.path().join(FILE_NAME));
        (dir, store)
    }

    #[test]
    fn token_is_long_and_its_text_is_not_in_the_file() {
        let (_dir, store) = store();
        let one = store.create("one", &[], None).unwrap();
        let two = store.create("two", &[], None).unwrap();
        assert!(one.expose().starts_with("sky_") && one.expose().len() == 4 + 43 && one != two);
        let file = std::fs::read_to_string(store.path()).unwrap();
        assert!(!file.contains(&one.expose()[4..]) && file.contains(&hex(&hash(&one))), "{file}");
        assert_eq!(format!("{one:?}"), "Secret");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(store.path()).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    /// The other store is another process: it sees changes without being started again.
    #[test]
    fn creation_and_revocation_reach_another_process_at_once() {
        let (_dir, store) = store();
        let host = TokenStore::new(store.path());
        assert!(host.verify(None, &Secret::new("sky_x")).is_err());
        let token = store.create("one", &["read:d".into()], None).unwrap();
        let identity = host.verify(None, &token).unwrap();
        assert_eq!((identity.name.as_str(), identity.grants.to_vec()), ("one", vec!["read:d".to_owned()]));
        assert!(host.verify(Some("one"), &token).is_ok() && host.verify(Some("two"), &token).is_err());
        store.revoke("one").unwrap();
        assert!(host.verify(None, &token).is_err());
        assert_eq!(store.revoke("one").unwrap_err().kind(), Kind::NotFound);
        // A name that was revoked may be used again; the old token stays dead.
        let again = store.create("one", &[], None).unwrap();
        assert!(host.verify(None, &again).is_ok() && host.verify(None, &token).is_err());
    }

    #[test]
    fn expired_token_is_denied_as_such() {
        let (_dir, store) = store();
        let token = store.create("one", &[], Some(Duration::from_secs(0))).unwrap();
        assert!(store.verify(None, &token).unwrap_err().0.contains("expired"));
        assert!(store.list().unwrap()[0].is_expired());
        let later = store.create("two", &[], Some(Duration::from_secs(3600))).unwrap();
        assert!(store.verify(None, &later).is_ok());
    }

    #[test]
    fn damaged_file_admits_no_one() {
        let (_dir, store) = store();
        let token = store.create("one", &[], None).unwrap();
        assert!(store.verify(None, &token).is_ok());
        let good = std::fs::read_to_string(store.path()).unwrap();
        for bad in ["{", "", r#"{"format":2,"tokens":[]}"#, &good.replace(&hex(&hash(&token)), "00")] {
            std::fs::write(store.path(), bad).unwrap();
            assert!(store.verify(None, &token).is_err(), "{bad}");
        }
        std::fs::write(store.path(), good).unwrap();
        assert!(store.verify(None, &token).is_ok());
    }

    #[test]
    fn names_and_grants_that_cannot_be_are_refused() {
        let (_dir, store) = store();
        for name in ["", "a b", "a\nb", "a:b", &"x".repeat(65)] {
            assert_eq!(store.create(name, &[], None).unwrap_err().kind(), Kind::Invalid, "{name:?}");
        }
        for grant in ["", "read", "read:", "own:d", "read:a b"] {
            assert_eq!(store.create("a", &[grant.into()], None).unwrap_err().kind(), Kind::Invalid, "{grant:?}");
        }
        store.create("a", &["read:d".into(), "write:e".into(), "admin".into()], None).unwrap();
        assert_eq!(store.create("a", &[], None).unwrap_err().kind(), Kind::Conflict);
        assert_eq!(store.list().unwrap().len(), 1);
    }

    #[test]
    fn concurrent_changes_all_arrive() {
        let (_dir, store) = store();
        std::thread::scope(|scope| {
            for n in 0..8 {
                let path = store.path();
                scope.spawn(move || TokenStore::new(path).create(&format!("t{n}"), &[], None).unwrap());
            }
        });
        assert_eq!(store.list().unwrap().len(), 8);
    }

    /// Holds the lock of `store` as another process does.
    fn held(store: &TokenStore) -> File {
        let lock = File::create(store.path().with_file_name(format!("{FILE_NAME}.lock"))).unwrap();
        lock.lock().unwrap();
        lock
    }

    #[test]
    fn held_lock_ends_a_change_as_unavailable() {
        let (_dir, mut store) = store();
        store.patience = Duration::from_millis(100);
        let lock = held(&store);
        let error = store.create("one", &[], None).unwrap_err();
        assert!(error.kind() == Kind::Unavailable && error.report().contains("tokens.json.lock"), "{error:?}");
        drop(lock);
        store.create("one", &[], None).unwrap();
    }

    /// The one worker must not wait for the lock: all calls of a host would.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn waiting_for_the_lock_holds_up_no_other_task() {
        let (_dir, store) = store();
        let lock = held(&store);
        let (begun, begins) = tokio::sync::oneshot::channel();
        let creating = tokio::spawn(async move {
            begun.send(()).unwrap();
            store.create("one", &[], None)
        });
        begins.await.unwrap();
        let other = tokio::spawn(async { tokio::task::yield_now().await });
        tokio::time::timeout(Duration::from_secs(5), other).await.expect("another task runs meanwhile").unwrap();
        assert!(!creating.is_finished());
        drop(lock);
        creating.await.unwrap().unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn change_through_a_link_reaches_the_file_behind_it() {
        let (dir, store) = store();
        let link = dir.path().join("link.json");
        std::os::unix::fs::symlink(FILE_NAME, &link).unwrap();
        // The file behind it is not there yet.
        let linked = TokenStore::new(&link);
        let token = linked.create("one", &[], None).unwrap();
        assert!(store.verify(None, &token).is_ok() && linked.verify(None, &token).is_ok());
        linked.revoke("one").unwrap();
        assert!(store.verify(None, &token).is_err() && linked.verify(None, &token).is_err());
        assert!(link.is_symlink() && !dir.path().join("link.json.lock").exists());
    }

    #[cfg(unix)]
    #[test]
    fn changed_file_and_its_lock_keep_owner_and_mode() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let (dir, store) = store();
        std::fs::write(store.path(), r#"{"format":1,"tokens":[]}"#).unwrap();
        std::fs::set_permissions(store.path(), std::fs::Permissions::from_mode(0o640)).unwrap();
        // Only root can give files away; other users' files are their own before and after.
        let _ = chown(store.path(), Some(1234), Some(4321));
        let before = std::fs::metadata(store.path()).unwrap();
        store.create("one", &[], None).unwrap();
        for name in [FILE_NAME, "tokens.json.lock"] {
            let after = std::fs::metadata(dir.path().join(name)).unwrap();
            assert_eq!((after.uid(), after.gid(), after.mode()), (before.uid(), before.gid(), before.mode()), "{name}");
        }
    }

    #[test]
    fn lifetimes_have_a_unit() {
        assert_eq!(lifetime("30d").unwrap(), Duration::from_secs(30 * 86_400));
        assert_eq!(lifetime("90m").unwrap(), Duration::from_secs(5400));
        for text in ["", "d", "30", "0d", "-1d", "1y", "99999999999w", "1.5h"] {
            assert!(lifetime(text).is_err(), "{text}");
        }
    }
}
