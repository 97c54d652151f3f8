//! Addresses of files in Ceph: `cephfs:/PATH?conf=FILE` and `rados://POOL/PREFIX?conf=FILE`.

use std::path::PathBuf;
use std::time::Duration;

use skytether_common::{Error, Result};

use crate::address::{decoded, parameters, timeout};

/// The parameters of either form.
const KNOWN: [&str; 5] = ["conf", "user", "timeout", "fs", "namespace"];

/// Where files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) tree: Tree,
    /// Ceph's configuration file; `None`: where Ceph looks for it.
    pub(super) conf: Option<PathBuf>,
    /// The user, without `client.`.
    pub(super) user: String,
    pub(super) timeout: Duration,
}

/// What has the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tree {
    /// A file system, the default one if none is named, and a path in it, which begins with `/`.
    FileSystem { name: Option<String>, path: String },
    /// The objects of a pool whose names begin with a text.
    Objects { pool: String, namespace: String, prefix: String },
}

impl Place {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = |what: String| {
            Error::invalid(format!(
                "{text:?} {what}: write cephfs:/PATH?conf=FILE or rados://POOL/PREFIX?conf=FILE, with user=, timeout=, \
                 fs= (of CephFS) and namespace= (of RADOS) as needed"
            ))
        };
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let mut given = parameters(query, &KNOWN, &wrong)?;
        let (scheme, rest) = place.split_once(':').unwrap_or(("", place));
        let (fs, namespace) = (given.remove("fs"), given.remove("namespace"));
        let tree = match (scheme.to_ascii_lowercase().as_str(), fs, namespace) {
            ("cephfs", name, None) => Tree::FileSystem { name, path: format!("/{}", decoded(rest.trim_matches('/'), &wrong)?) },
            ("rados", None, namespace) => {
                let rest = rest.strip_prefix("//").unwrap_or_default();
                let (pool, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                if pool.is_empty() {
                    return Err(wrong("names no pool".to_owned()));
                }
                Tree::Objects { pool: decoded(pool, &wrong)?, namespace: namespace.unwrap_or_default(), prefix: decoded(prefix, &wrong)? }
            }
            ("cephfs" | "rados", _, _) => return Err(wrong("has a parameter of the other scheme".to_owned())),
            _ => return Err(wrong("is no address of files in Ceph".to_owned())),
        };
        let timeout = timeout(&given, &wrong)?;
        Ok(Self { tree, conf: given.remove("conf").map(PathBuf::from), user: given.remove("user").unwrap_or_else(|| "admin".to_owned()), timeout })
    }

    /// For errors: the address without parameters.
    pub(super) fn name(&self) -> String {
        match &self.tree {
            Tree::FileSystem { path, .. } => format!("cephfs:{path}"),
            Tree::Objects { pool, prefix, .. } => format!("rados://{pool}/{prefix}"),
        }
    }
}

/// Whether `text` is an address of files in Ceph, or of a fleet there.
#[must_use]
pub fn is_files(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("cephfs") || scheme.eq_ignore_ascii_case("rados"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_files_name_their_tree() {
        let file = Place::parse("cephfs:/a%20b/c/?conf=/etc/c.conf&user=u&fs=second&timeout=3").unwrap();
        assert_eq!(file.tree, Tree::FileSystem { name: Some("second".into()), path: "/a b/c".into() });
        assert_eq!((file.name().as_str(), file.user.as_str(), file.timeout), ("cephfs:/a b/c", "u", Duration::from_secs(3)));
        assert_eq!(Place::parse("cephfs:///x").unwrap().tree, Tree::FileSystem { name: None, path: "/x".into() });
        let objects = Place::parse("rados://p/year=2020/part-?namespace=n").unwrap();
        assert_eq!(objects.tree, Tree::Objects { pool: "p".into(), namespace: "n".into(), prefix: "year=2020/part-".into() });
        assert_eq!((objects.conf, objects.user.as_str()), (None, "admin"));
    }

    #[test]
    fn wrong_addresses_of_files_are_refused() {
        for (text, what) in [
            ("/x", "no address"),
            ("rados:///x", "no pool"),
            ("rados://p?fs=a", "other scheme"),
            ("cephfs:/p?namespace=a", "other scheme"),
            ("cephfs:/p?data=a", "\"data\""),
            ("cephfs:/p?timeout=0", "timeout"),
        ] {
            let error = Place::parse(text).unwrap_err();
            assert!(error.to_string().contains(what), "{text}: {error}");
        }
    }
}
