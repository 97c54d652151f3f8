//! The identity of a caller.

use std::fmt;
use std::sync::Arc;

use x509_parser::extensions::GeneralName;

/// The scheme of the URIs that name machines in their certificates: `skytether://host/NAME`, `skytether://drive/UUID`.
pub const URI_SCHEME: &str = "skytether://";

/// How a caller proved its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdentityKind {
    /// It did not.
    Anonymous,
    /// By a bearer token.
    Token,
    /// By a client certificate.
    Certificate,
}

/// A caller as the authenticator found it. Doors put it among the extensions of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The token's name, or the name in the certificate; empty for an anonymous caller.
    pub name: String,
    /// How it was proved.
    pub kind: IdentityKind,
    /// What its token was given, as `read:DOMAIN`. Nothing checks them yet.
    pub grants: Arc<[String]>,
}

impl Identity {
    /// A caller without a proof of identity.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { name: String::new(), kind: IdentityKind::Anonymous, grants: Arc::default() }
    }

    /// The holder of a token.
    #[must_use]
    pub fn token(name: impl Into<String>, grants: impl Into<Arc<[String]>>) -> Self {
        Self { name: name.into(), kind: IdentityKind::Token, grants: grants.into() }
    }

    /// The machine that a verified certificate (DER) names: its URI of [`URI_SCHEME`], or else its first DNS name. The
    /// common name does not count: any certificate authority fills it in as it likes.
    #[must_use]
    pub fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let names = &certificate.subject_alternative_name().ok()??.value.general_names;
        let uri = names.iter().find_map(|name| match name {
            GeneralName::URI(uri) if uri.starts_with(URI_SCHEME) => Some(*uri),
            _ => None,
        });
        let dns = names.iter().find_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        });
        // It goes into log lines: no line breaks.
        let name = uri.or(dns)?.escape_default().to_string();
        Some(Self { name, kind: IdentityKind::Certificate, grants: Arc::default() })
    }

    /// Whether the caller proved its identity.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.kind != IdentityKind::Anonymous
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            IdentityKind::Anonymous => f.write_str("anonymous"),
            IdentityKind::Token => write!(f, "token {}", self.name),
            IdentityKind::Certificate => write!(f, "certificate {}", self.name),
        }
    }
}

/// Why a caller may not go on, in words for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied(pub String);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
