//! A certificate authority and the certificates of one fleet, made in one step.
//!
//! | file | what | may be used |
//! |---|---|---|
//! | `ca.pem`, `ca.key` | the authority | to sign |
//! | `host.pem`, `host.key` | a host | as a server, and as the client of drives |
//! | `drive.pem`, `drive.key` | a drive | as a server only: with a drive's key, no other drive can be asked anything |
//!
//! Clients know a host by its name alone. A drive's certificate thus has none of the host's names, except for those by
//! which any process of a machine reaches itself: with a drive's key, no other machine can pose as the host.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType, string::Ia5String,
};
use sha2::{Digest, Sha256};
use skytether_common::{Error, Result};

use crate::files::{Access, replace};
use crate::identity::URI_SCHEME;

const DAY: Duration = Duration::from_secs(86_400);

/// How long the authority is valid.
const CA_LIFETIME: Duration = Duration::from_secs(3650 * 86_400);

/// How long the certificates of hosts and drives are valid.
const LIFETIME: Duration = Duration::from_secs(730 * 86_400);

/// The certificates of an authority in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The files that were written, in order.
    pub files: Vec<PathBuf>,
    /// The names and addresses that the host's certificate is for.
    pub names: Vec<String>,
    /// The names and addresses that the drives' certificate is for.
    pub drive_names: Vec<String>,
}

/// Makes an authority, and the certificates of a host and of drives, in `dir`. The host's is for this machine's name,
/// `localhost`, the loopback addresses and `names`; the drives' is for `localhost`, the loopback addresses and
/// `drive_names`.
///
/// # Errors
/// `Conflict` where one of the files exists, unless `force`; `Invalid` for names that can't be in a certificate.
pub fn init(dir: &Path, names: &[String], drive_names: &[String], force: bool) -> Result<Written> {
    let files = ["ca.pem", "ca.key", "host.pem", "host.key", "drive.pem", "drive.key"].map(|name| dir.join(name));
    if !force && let Some(there) = files.iter().find(|path| path.exists()) {
        return Err(Error::conflict(format!("{}: it exists; choose another directory, or give --force to replace it", there.display())));
    }
    let machine = machine_name();
    let local = ["localhost", "127.0.0.1", "::1"].map(String::from);
    let names = distinct(machine.iter().chain(&local).chain(names));
    let drive_names = distinct(local.iter().chain(drive_names));
    let machine = machine.as_deref().unwrap_or("localhost");
    let authority = authority(machine)?;
    let host = issue(&authority, "host", machine, &names, &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth])?;
    let drive = issue(&authority, "drive", machine, &drive_names, &[ExtendedKeyUsagePurpose::ServerAuth])?;
    std::fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
    let contents = [(authority.pem(), authority.key().serialize_pem()), host, drive];
    for (paths, (certificate, key)) in files.chunks(2).zip(contents) {
        for (path, content, access) in [(paths.first(), certificate, Access::All), (paths.get(1), key, Access::Owner)] {
            if let Some(path) = path {
                replace(path, content.as_bytes(), access)?;
            }
        }
    }
    Ok(Written { files: files.to_vec(), names, drive_names })
}

/// The names in their order, each once.
fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut all = Vec::new();
    for name in names {
        if !all.contains(name) {
            all.push(name.clone());
        }
    }
    all
}

/// This machine's name, by `uname -n`: POSIX has that command, and the standard library has no call for it.
fn machine_name() -> Option<String> {
    let output = std::process::Command::new("uname").arg("-n").output().ok()?;
    let name = String::from_utf8(output.stdout).ok()?.trim().to_ascii_lowercase();
    let good = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
    (good && name != "localhost").then_some(name)
}

fn failed(cause: rcgen::Error) -> Error {
    Error::internal("cannot make a certificate").with_source(cause)
}

fn dated(mut params: CertificateParams, lifetime: Duration) -> CertificateParams {
    let now = SystemTime::now();
    // Machines whose clocks are behind take it as well.
    params.not_before = (now - DAY).into();
    params.not_after = (now + lifetime).into();
    params
}

fn authority(machine: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = dated(CertificateParams::default(), CA_LIFETIME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().map_err(failed)?;
    // Its own name for each authority: verifiers look for the issuer by name, and say of a namesake that the signature
    // is wrong instead of that the authority is unknown.
    let id: String = Sha256::digest(key.public_key_raw()).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.push(DnType::CommonName, format!("Skytether fleet authority {id} of {machine}"));
    CertifiedIssuer::self_signed(params, key).map_err(failed)
}

/// Certificate and key of a machine, in PEM.
fn issue(
    authority: &CertifiedIssuer<'_, KeyPair>,
    kind: &str,
    machine: &str,
    names: &[String],
    usages: &[ExtendedKeyUsagePurpose],
) -> Result<(String, String)> {
    let params = CertificateParams::new(names.to_vec()).map_err(|e| {
        Error::invalid(format!("{} can't all be names in a certificate; give host names and addresses with --name and --drive-name", names.join(", ")))
            .with_source(e)
    })?;
    let mut params = dated(params, LIFETIME);
    let uri = Ia5String::try_from(format!("{URI_SCHEME}{kind}/{machine}")).map_err(failed)?;
    params.subject_alt_names.push(SanType::URI(uri));
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Skytether {kind} {machine}"));
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages.to_vec();
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.signed_by(&key, authority).map_err(failed)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Identity, IdentityKind};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use skytether_common::Kind;

    #[test]
    fn init_writes_six_files_and_replaces_none_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("pki");
        let written = init(&at, &["box.example".into(), "10.0.0.7".into()], &[], false).unwrap();
        assert_eq!(written.files.len(), 6);
        assert!(["localhost", "127.0.0.1", "::1", "box.example", "10.0.0.7"].iter().all(|name| written.names.iter().any(|n| n == name)));
        #[cfg(unix)]
        for path in &written.files {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, if path.extension().unwrap() == "key" { 0o600 } else { 0o644 }, "{}", path.display());
        }
        let before = std::fs::read(at.join("ca.pem")).unwrap();
        assert_eq!(init(&at, &[], &[], false).unwrap_err().kind(), Kind::Conflict);
        assert_eq!(std::fs::read(at.join("ca.pem")).unwrap(), before);
        init(&at, &[], &[], true).unwrap();
        assert_ne!(std::fs::read(at.join("ca.pem")).unwrap(), before);
    }

    #[test]
    fn certificate_names_its_machine_by_uri() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), &[], &[], false).unwrap();
        for kind in ["host", "drive"] {
            let der = CertificateDer::from_pem_file(dir.path().join(format!("{kind}.pem"))).unwrap();
            let identity = Identity::of_certificate(&der).unwrap();
            assert!(identity.name.starts_with(&format!("skytether://{kind}/")) && identity.kind == IdentityKind::Certificate, "{identity}");
        }
        // The authority's own names no machine.
        let der = CertificateDer::from_pem_file(dir.path().join("ca.pem")).unwrap();
        assert_eq!(Identity::of_certificate(&der), None);
    }

    #[test]
    fn name_that_no_certificate_can_hold_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(init(dir.path(), &["größe".into()], &[], false).unwrap_err().kind(), Kind::Invalid);
        assert!(!dir.path().join("ca.pem").exists());
    }

    /// What the certificate at `path` is for, by names of the DNS and by addresses.
    fn names_in(path: &Path) -> Vec<String> {
        use x509_parser::extensions::GeneralName;
        let der = CertificateDer::from_pem_file(path).unwrap();
        let (_, certificate) = x509_parser::parse_x509_certificate(&der).unwrap();
        let names = &certificate.subject_alternative_name().unwrap().unwrap().value.general_names;
        names
            .iter()
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some((*name).to_owned()),
                GeneralName::IPAddress([a, b, c, d]) => Some(format!("{a}.{b}.{c}.{d}")),
                GeneralName::IPAddress([.., 1]) => Some("::1".to_owned()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn drive_certificate_has_none_of_the_names_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let written = init(dir.path(), &["storage.example".into(), "10.0.0.7".into()], &["d1.example".into(), "10.0.0.8".into()], false).unwrap();
        let (host, drive) = (names_in(&dir.path().join("host.pem")), names_in(&dir.path().join("drive.pem")));
        assert_eq!(drive, ["localhost", "127.0.0.1", "::1", "d1.example", "10.0.0.8"]);
        assert_eq!(host[host.len() - 5..], ["localhost", "127.0.0.1", "::1", "storage.example", "10.0.0.7"]);
        // Before them comes this machine's name, if it has one.
        assert_eq!(host[..host.len() - 5], *machine_name().as_slice());
        assert_eq!((written.names, written.drive_names), (host, drive));
    }
}
