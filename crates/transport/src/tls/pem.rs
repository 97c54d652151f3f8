//! Reads PEM files for both sides, and has the cryptography of both.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use skytether_common::{Error, Result};

/// The cryptography: ring's.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The certificates in a PEM file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    let read = read.map_err(|e| unreadable(path, "certificates", e))?;
    if read.is_empty() {
        return Err(Error::invalid(format!("{}: it holds no certificate; name a PEM file with one", path.display())));
    }
    Ok(read)
}

/// The private key in a PEM file.
pub(super) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).map_err(|e| unreadable(path, "a private key", e))
}

fn unreadable(path: &Path, what: &str, cause: rustls::pki_types::pem::Error) -> Error {
    match cause {
        rustls::pki_types::pem::Error::Io(cause) => Error::io("read", path, cause),
        cause => Error::invalid(format!("{}: it can't be read as PEM with {what}", path.display())).with_source(cause),
    }
}

/// The authorities in a PEM file.
pub(super) fn authorities(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| Error::invalid(format!("{}: it holds what is no certificate of an authority", path.display())).with_source(e))?;
    }
    Ok(roots)
}
