//! Addresses with a scheme, and registries of what handles a scheme.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use skytether_common::{Error, Result};

/// The scheme of an address that names none.
pub const DEFAULT_SCHEME: &str = "grpc";

/// gRPC over TLS.
pub const TLS_SCHEME: &str = "grpc+tls";

/// `SCHEME://AUTHORITY[/PATH][?QUERY]`. An address without a scheme means `grpc://`; `grpc+tcp` and `http` are other
/// names of `grpc`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    scheme: String,
    authority: String,
    rest: String,
}

impl Endpoint {
    /// The endpoint of `scheme` at `authority` (`host:port`).
    #[must_use]
    pub fn new(scheme: &str, authority: impl Into<String>) -> Self {
        Self { scheme: scheme.to_owned(), authority: authority.into(), rest: String::new() }
    }

    /// The scheme, in lower case: `grpc`, `grpc+tls`.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// What follows `://`, up to the path: `host:port`, or what the scheme has instead.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Path and query with their `/` and `?`; most often empty.
    #[must_use]
    pub fn rest(&self) -> &str {
        &self.rest
    }

    /// Host (without brackets) and port.
    ///
    /// # Errors
    /// `Invalid` where the address is not of the form `host:port`, or has a path.
    pub fn socket(&self) -> Result<(&str, u16)> {
        let parsed = (self.rest.is_empty() && is_host_and_port(&self.authority)).then(|| self.authority.rsplit_once(':')).flatten();
        let (host, port) = parsed.ok_or_else(|| not_an_address(self))?;
        let port = port.parse().map_err(|_| not_an_address(self))?;
        Ok((host.trim_start_matches('[').trim_end_matches(']'), port))
    }
}

fn not_an_address(given: impl fmt::Display) -> Error {
    Error::invalid(format!("{:?} is no address: write host:port, grpc://host:port or grpc+tls://host:port", given.to_string()))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.rest)
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").unwrap_or((DEFAULT_SCHEME, text));
        let scheme = match scheme.to_ascii_lowercase() {
            known if matches!(known.as_str(), "grpc+tcp" | "http") => DEFAULT_SCHEME.to_owned(),
            other => other,
        };
        let named = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if !named || authority.is_empty() || authority.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(not_an_address(text));
        }
        // A bare slash at the end is what people copy from browsers.
        Ok(Self { scheme, authority: authority.to_owned(), rest: if rest == "/" { String::new() } else { rest.to_owned() } })
    }
}

/// Whether `text` is `HOST:PORT`: a host's name or number, those with colons in brackets, and a port.
#[must_use]
pub fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let named = !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
    let numbered = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).is_some_and(|h| {
        let (number, zone) = h.split_once('%').unwrap_or((h, ""));
        number.contains(':') && number.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.')) && zone.bytes().all(|b| b.is_ascii_alphanumeric())
    });
    (named || numbered) && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

/// What handles addresses, by scheme: doors, connectors.
#[derive(Debug, Clone)]
pub struct Registry<T> {
    what: &'static str,
    known: BTreeMap<String, T>,
}

impl<T> Registry<T> {
    /// An empty registry of `what` ("a drive's door"), which errors name.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self { what, known: BTreeMap::new() }
    }

    /// Adds what handles `scheme`, in the place of what handled it before.
    pub fn register(&mut self, scheme: impl Into<String>, handler: T) {
        self.known.insert(scheme.into(), handler);
    }

    /// The same schemes with what `of` makes of their handlers.
    #[must_use]
    pub fn map<U>(&self, of: impl Fn(&T) -> U) -> Registry<U> {
        Registry { what: self.what, known: self.known.iter().map(|(scheme, handler)| (scheme.clone(), of(handler))).collect() }
    }

    /// The known schemes, in order.
    pub fn schemes(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }

    /// What handles the scheme of `at`.
    ///
    /// # Errors
    /// `Unsupported`, with the known schemes, for another one.
    pub fn get(&self, at: &Endpoint) -> Result<&T> {
        self.known.get(at.scheme()).ok_or_else(|| {
            let known: Vec<_> = self.schemes().map(|scheme| format!("{scheme}://")).collect();
            Error::unsupported(format!("{at}: {} has no scheme {:?}: use one of {}", self.what, at.scheme(), known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_common::Kind;

    fn parsed(text: &str) -> (String, String) {
        let endpoint: Endpoint = text.parse().unwrap();
        (endpoint.scheme().to_owned(), endpoint.authority().to_owned())
    }

    #[test]
    fn address_without_scheme_means_grpc() {
        for text in ["a:1", "grpc://a:1", "GRPC://a:1/", "grpc+tcp://a:1", "http://a:1"] {
            assert_eq!(parsed(text), ("grpc".into(), "a:1".into()), "{text}");
        }
        assert_eq!(parsed("grpc+tls://[::1]:5300"), ("grpc+tls".into(), "[::1]:5300".into()));
    }

    #[test]
    fn socket_has_host_without_brackets_and_port() {
        for (text, socket) in [("a.b:1", ("a.b", 1)), ("grpc+tls://[::1]:5300", ("::1", 5300)), ("[fe80::1%eth0]:0", ("fe80::1%eth0", 0))] {
            assert_eq!(text.parse::<Endpoint>().unwrap().socket().unwrap(), socket);
        }
        for text in ["a", "grpc://a", "grpc://a:1/x", "a:99999", "a:+1", "::1:5300", "rados://pool?conf=/etc/c"] {
            let error = text.parse::<Endpoint>().unwrap().socket().unwrap_err();
            assert!(error.kind() == Kind::Invalid && error.message().contains("grpc+tls://"), "{text}: {error}");
        }
    }

    #[test]
    fn other_schemes_keep_path_and_query() {
        let endpoint: Endpoint = "rados://pool?conf=/etc/c".parse().unwrap();
        assert_eq!((endpoint.authority(), endpoint.rest()), ("pool", "?conf=/etc/c"));
        assert_eq!(endpoint.to_string(), "rados://pool?conf=/etc/c");
    }

    #[test]
    fn text_that_is_no_address_is_refused() {
        for text in ["", "://a:1", "grpc://", "a b:1", "gr pc://a:1", "grpc:///x"] {
            assert_eq!(text.parse::<Endpoint>().unwrap_err().kind(), Kind::Invalid, "{text:?}");
        }
    }

    #[test]
    fn unknown_scheme_is_refused_with_the_known_ones() {
        let mut doors = Registry::new("a drive's door");
        doors.register("grpc", 1);
        doors.register("grpc+tls", 2);
        assert_eq!(*doors.get(&"grpc+tls://a:1".parse().unwrap()).unwrap(), 2);
        let error = doors.get(&"nbd://a:1".parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert_eq!(error.message(), "nbd://a:1: a drive's door has no scheme \"nbd\": use one of grpc://, grpc+tls://");
    }
}
