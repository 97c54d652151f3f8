//! Tells addresses of hosts from directories: one rule for the command line and both Python packages.

use std::net::IpAddr;
use std::path::Path;

use skytether_transport::Endpoint;
pub use skytether_transport::endpoint::is_host_and_port;

/// Whether `text` is a host's address: a URL, or `HOST:PORT` where no directory has that name.
#[must_use]
pub fn is_host(text: &str) -> bool {
    is_url(text) || (is_host_and_port(text) && !Path::new(text).is_dir())
}

/// Whether `path` seems to be a host's address without its port: a number such as `127.0.0.1`, or `localhost`.
pub(crate) fn lacks_port(path: &Path) -> bool {
    path.to_str().is_some_and(|text| text == "localhost" || text.parse::<IpAddr>().is_ok())
}

/// Whether `text` begins as `grpc://` does.
fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')))
}

/// The URL of the host at `address`, which may lack the scheme or have an alias of it. A text that is no address stays
/// as it is.
pub(crate) fn url(address: &str) -> String {
    address.parse::<Endpoint>().ok().filter(|endpoint| endpoint.socket().is_ok()).map_or_else(|| address.to_owned(), |endpoint| endpoint.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_distinguished_from_directories() {
        for text in ["grpc://127.0.0.1:5300", "http://a", "127.0.0.1:1", "localhost:5300", "my_host-2.example:0", "[::1]:5300", "[fe80::1%eth0]:1"] {
            assert!(is_host(text), "{text}");
        }
        for text in ["fleet", "./127.0.0.1:1", "a/b:1", "C:fleet", "12:30:99999", "a:b", ":1", "a b:1", "[]:1", "[a b]:1", "x:", "://x", "::1:5300"] {
            assert!(!is_host(text), "{text}");
        }
    }

    #[test]
    fn addresses_without_a_port_are_recognized() {
        for (text, lacks) in [("127.0.0.1", true), ("localhost", true), ("::1", true), ("127.0.0.1:5300", false), ("fleet", false), ("1", false)] {
            assert_eq!(lacks_port(Path::new(text)), lacks, "{text}");
        }
    }

    #[test]
    fn one_host_has_one_url() {
        for text in ["127.0.0.1:1", "grpc://127.0.0.1:1", "grpc+tcp://127.0.0.1:1/", "http://127.0.0.1:1"] {
            assert_eq!(url(text), "grpc://127.0.0.1:1", "{text}");
        }
        assert_eq!(url("GRPC+TLS://a:1/"), "grpc+tls://a:1");
        for text in ["fleet", "https://127.0.0.1:1", "http:// :1"] {
            assert_eq!(url(text), text);
        }
    }
}
