//! Authentication: how a server finds the caller's identity.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use futures::future::BoxFuture;

use crate::connection::Peer;
use crate::identity::{Denied, Identity};
use crate::token::{Secret, TokenStore};

/// Some clients (ADBC's Flight SQL driver) leave the padding out.
const LENIENT: GeneralPurpose = GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent));

/// What a caller shows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown<'a> {
    /// The value of the header `authorization`.
    pub authorization: Option<&'a str>,
    /// The other side of the connection.
    pub peer: Option<&'a Peer>,
}

/// A caller that may go on.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// The caller's identity.
    pub identity: Identity,
    /// The token that it proved that with. The answer to a login carries it.
    pub token: Option<Secret>,
}

/// Authenticates callers. It is asked at each call, so that a revocation takes effect at once.
///
/// The answer is a future so that a later implementation can ask an identity provider.
pub trait Authenticator: Send + Sync + fmt::Debug {
    /// The caller's identity, or why it may not go on.
    fn authenticate<'a>(&'a self, shown: Shown<'a>) -> BoxFuture<'a, Result<Admitted, Denied>>;

    /// Whether anonymous callers are refused.
    fn is_required(&self) -> bool;
}

/// The authenticator of `drive serve` and `host serve`: a token, or else a client certificate, or else nothing where
/// that is allowed.
///
/// Where authentication is not required, what does not verify counts as nothing: clients that always send some password
/// then get in, as they do with no password at all.
#[derive(Debug, Clone, Default)]
pub struct Gate {
    /// The tokens; without them, only certificates count.
    pub tokens: Option<Arc<TokenStore>>,
    /// Whether anonymous callers are refused.
    pub required: bool,
}

/// What a header `authorization` holds.
enum Credential {
    Bearer(Secret),
    /// A user's name and password, where the password is a token and the user its name.
    Basic(String, Secret),
    Unknown,
}

impl Credential {
    fn parse(header: &str) -> Self {
        let Some((scheme, value)) = header.trim().split_once(' ') else { return Self::Unknown };
        let value = value.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Self::Bearer(Secret::new(value));
        }
        if scheme.eq_ignore_ascii_case("basic")
            && let Some(text) = LENIENT.decode(value).ok().and_then(|bytes| String::from_utf8(bytes).ok())
            && let Some((user, password)) = text.split_once(':')
        {
            return Self::Basic(user.to_owned(), Secret::new(password));
        }
        Self::Unknown
    }
}

impl Gate {
    fn check(&self, shown: Shown<'_>) -> Result<Admitted, Denied> {
        let token = match (shown.authorization.map(Credential::parse), &self.tokens) {
            (None, _) => None,
            (Some(credential), Some(tokens)) => Some(match credential {
                Credential::Bearer(token) => tokens.verify(None, &token).map(|identity| (identity, token)),
                Credential::Basic(user, token) => tokens.verify(Some(&user), &token).map(|identity| (identity, token)),
                Credential::Unknown => Err(Denied("the header `authorization` has another form than `Bearer TOKEN`; send a token".into())),
            }),
            (Some(_), None) => Some(Err(Denied("this server takes no tokens; connect with a client certificate".into()))),
        };
        match token {
            Some(Ok((identity, token))) => return Ok(Admitted { identity, token: Some(token) }),
            Some(Err(denied)) if self.required => return Err(denied),
            _ => {}
        }
        if let Some(identity) = shown.peer.and_then(|peer| peer.certificate.clone()) {
            return Ok(Admitted { identity, token: None });
        }
        if self.required {
            return Err(Denied(match self.tokens {
                Some(_) => "this server requires authentication: send a token (--token, SKYTETHER_TOKEN, or in Python token=)".into(),
                None => "this server requires authentication: connect with a client certificate that names its machine".into(),
            }));
        }
        Ok(Admitted { identity: Identity::anonymous(), token: None })
    }
}

impl Authenticator for Gate {
    fn authenticate<'a>(&'a self, shown: Shown<'a>) -> BoxFuture<'a, Result<Admitted, Denied>> {
        // The file of tokens is small and read only when it has changed: no need for another thread.
        Box::pin(std::future::ready(self.check(shown)))
    }

    fn is_required(&self) -> bool {
        self.required
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::IdentityKind;

    fn gate(required: bool) -> (tempfile::TempDir, Gate, Secret) {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Arc::new(TokenStore::new(dir.path().join("tokens.json")));
        let token = tokens.create("laptop2", &["read:d".into()], None).unwrap();
        (dir, Gate { tokens: Some(tokens), required }, token)
    }

    fn check(gate: &Gate, authorization: &str) -> Result<Identity, Denied> {
        gate.check(Shown { authorization: Some(authorization), peer: None }).map(|admitted| admitted.identity)
    }

    #[test]
    fn bearer_and_basic_with_or_without_padding_are_accepted() {
        let (_dir, gate, token) = gate(true);
        let basic = base64::engine::general_purpose::STANDARD.encode(format!("laptop2:{}", token.expose()));
        assert!(basic.ends_with('='), "the case must have padding to leave out");
        for header in [
            format!("Bearer {}", token.expose()),
            format!("bearer  {}", token.expose()),
            format!("Basic {basic}"),
            format!("Basic {}", basic.trim_end_matches('=')),
        ] {
            let identity = check(&gate, &header).unwrap();
            assert_eq!((identity.name.as_str(), identity.kind), ("laptop2", IdentityKind::Token));
            assert_eq!(*identity.grants, ["read:d".to_owned()]);
        }
    }

    #[test]
    fn invalid_credentials_are_denied_where_required() {
        let (_dir, gate, token) = gate(true);
        let other_name = base64::engine::general_purpose::STANDARD.encode(format!("desktop:{}", token.expose()));
        for header in ["", "Bearer", "Bearer ", "Bearer sky_nothing", "Basic !!!", "Basic YQ==", "Digest x", &format!("Basic {other_name}")] {
            assert!(check(&gate, header).is_err(), "{header}");
        }
        assert!(gate.check(Shown::default()).is_err());
    }

    #[test]
    fn invalid_credentials_are_anonymous_where_optional() {
        let (_dir, gate, token) = gate(false);
        assert_eq!(check(&gate, "Basic YTpi").unwrap().kind, IdentityKind::Anonymous);
        assert_eq!(gate.check(Shown::default()).unwrap().identity.kind, IdentityKind::Anonymous);
        assert_eq!(check(&gate, &format!("Bearer {}", token.expose())).unwrap().kind, IdentityKind::Token);
    }

    #[test]
    fn certificate_is_an_identity_but_excuses_no_wrong_token() {
        let (_dir, gate, _) = gate(true);
        let certificate = Some(Identity { name: "skytether://host/a".into(), kind: IdentityKind::Certificate, grants: Arc::default() });
        let peer = Peer { address: "127.0.0.1:1".parse().unwrap(), tls: true, certificate };
        let shown = Shown { authorization: None, peer: Some(&peer) };
        assert_eq!(gate.check(shown).unwrap().identity.to_string(), "certificate skytether://host/a");
        assert!(gate.check(Shown { authorization: Some("Bearer sky_wrong"), ..shown }).is_err());
    }
}
