//! The protocols that the program knows, by scheme: where another door is registered.

use skytether_doors::DriveDoors;
use skytether_transport::endpoint::{DEFAULT_SCHEME, TLS_SCHEME};
use skytether_transport::{Registry, Security};

/// How a drive, or an aggregator, is served by any protocol that needs no store of its own.
pub(crate) fn of_drives() -> DriveDoors {
    skytether_flight_drive::drive_doors()
}

/// The schemes by which a drive is served. Its Kinetic doors and those to its volumes are made when it is open,
/// as their keys and journals lie in its directory.
pub(crate) fn schemes_of_drives() -> Registry<Security> {
    let mut schemes = skytether_doors::securities(&of_drives());
    schemes.register(skytether_kinetic_server::options::SCHEME, Security::Plain);
    schemes.register(skytether_kinetic_server::options::TLS_SCHEME, Security::Tls);
    crate::volumes::schemes_into(&mut schemes);
    schemes
}

/// How a host is served. Its Flight protocol and Flight SQL share a port; its volumes have ports of their own.
pub(crate) fn of_hosts() -> Registry<Security> {
    let mut faces = Registry::new("a host");
    faces.register(DEFAULT_SCHEME, Security::Plain);
    faces.register(TLS_SCHEME, Security::Tls);
    crate::volumes::schemes_into(&mut faces);
    faces
}
