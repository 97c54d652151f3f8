//! Served drives from a host's side: how they are reached, and hosts over them.

use std::sync::Arc;

use skytether_common::units::counted;
use skytether_common::{Error, Kind, Result};
use skytether_device::Cse;
use skytether_doors::Connectors;
use skytether_flight::Face;
use skytether_flight_drive::ConnectOptions;
use skytether_host::{Founding, Host, HostOptions, Scheme};
use skytether_transport::{Credentials, Endpoint};

/// How a host reaches drives.
pub(crate) fn connectors() -> Arc<Connectors> {
    let mut connectors = skytether_flight_drive::connectors();
    skytether_kinetic::connectors_into(&mut connectors);
    Arc::new(connectors)
}

/// Whether an address is that of a Kinetic door.
pub(crate) fn is_kinetic(at: &Endpoint) -> bool {
    [skytether_kinetic_server::options::SCHEME, skytether_kinetic_server::options::TLS_SCHEME].contains(&at.scheme())
}

/// The addresses of drives, each with the name of its node. Semicolons separate nodes. Without semicolons and with a
/// scheme across nodes, the nodes are the host parts of the addresses; otherwise they are unknown.
pub(crate) fn drives_on_nodes(given: &[String], redundancy: Scheme) -> Result<Vec<(String, Option<String>)>> {
    let (mut drives, mut node) = (Vec::new(), 0);
    let grouped = given.iter().any(|part| part.contains(';'));
    for part in given {
        for (n, at) in part.split(';').enumerate() {
            node += usize::from(n > 0);
            if at.is_empty() {
                return Err(Error::invalid(format!("{part:?} is no address of a drive: write --drives \"a:1,a:2;b:1,b:2\"")));
            }
            let own = match (grouped, redundancy.inner()) {
                (true, _) => Some(format!("node-{node}")),
                (false, Some(_)) => Some(skytether_host::host_of(at).to_owned()),
                (false, None) => None,
            };
            drives.push((at.to_owned(), own));
        }
    }
    Ok(drives)
}

/// Connects to drives, each with the name of its node, which goes into `options`. A fleet with redundancy may open
/// `without` some that do not answer, whose errors come second.
pub(crate) async fn connect(
    placed: &[(String, Option<String>)],
    connectors: &Connectors,
    connection: &ConnectOptions,
    options: &mut HostOptions,
    without: bool,
) -> Result<(Vec<Arc<dyn Cse>>, Vec<Error>)> {
    let mut drives: Vec<Arc<dyn Cse>> = Vec::new();
    let mut silent = Vec::new();
    for (at, on) in placed {
        let endpoint = at.parse::<Endpoint>()?;
        match connectors.get(&endpoint)?.connect(&endpoint, connection).await {
            Ok(drive) => {
                if let Some(on) = on {
                    options.nodes.insert(drive.info().id, on.clone());
                }
                drives.push(drive);
            }
            // The other drives know.
            Err(e) if e.kind() == Kind::Unavailable && without && placed.len() > 1 => {
                eprintln!("skytether: {e}");
                options.silent.push(at.clone());
                silent.push(e);
            }
            Err(e) => return Err(e),
        }
    }
    Ok((drives, silent))
}

/// Joins drives to a host. With drives that are `silent`, only a fleet that is there already.
pub(crate) async fn join(drives: Vec<Arc<dyn Cse>>, silent: Vec<Error>, options: HostOptions, founding: Founding) -> Result<Host> {
    match all_of(silent) {
        None => Ok(Host::join(drives, options, founding).await?.0),
        Some(error) if drives.is_empty() => Err(error),
        Some(error) => match Host::join(drives, options, Founding::Never).await {
            Ok((host, _)) => Ok(host),
            Err(e) if e.kind() == Kind::Invalid => Err(error),
            Err(e) => Err(e.with_source(error)),
        },
    }
}

/// A host over served drives, for a program that is the only user of the fleet. The environment has the credentials.
///
/// # Errors
/// As for `host serve`.
pub(crate) async fn of_drives(drives: &[String], redundancy: Scheme, mut options: HostOptions, founding: Founding) -> Result<Host> {
    let placed = drives_on_nodes(drives, redundancy)?;
    let connection = ConnectOptions { credentials: Credentials::default().or_environment(), ..ConnectOptions::default() };
    let connectors = connectors();
    let (drives, silent) = connect(&placed, &connectors, &connection, &mut options, true).await?;
    options.redundancy = redundancy;
    let host = join(drives, silent, options, founding).await?;
    // Repairs and growth name further drives by their addresses.
    Ok(host.reaching(Arc::new(Face { connectors, drives: connection, ..Face::default() })))
}

/// Combines the errors of drives that don't answer.
pub(crate) fn all_of(mut silent: Vec<Error>) -> Option<Error> {
    if silent.len() < 2 {
        return silent.pop();
    }
    let texts: Vec<_> = silent.iter().map(Error::report).collect();
    Some(Error::unavailable(format!("{} can't be reached: {}", counted(silent.len() as u64, "drive"), texts.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semicolons_stand_between_nodes() {
        let named = |given: &str, scheme: &str| {
            let given: Vec<String> = given.split(',').map(str::to_owned).collect();
            let placed = drives_on_nodes(&given, scheme.parse().unwrap());
            placed.map(|all| all.into_iter().map(|(at, node)| format!("{at}={}", node.unwrap_or_default())).collect::<Vec<_>>())
        };
        assert_eq!(named("a:1,a:2;b:1,b:2", "none").unwrap(), ["a:1=node-0", "a:2=node-0", "b:1=node-1", "b:2=node-1"]);
        assert_eq!(named("a:1;b:1;c:1", "none").unwrap(), ["a:1=node-0", "b:1=node-1", "c:1=node-2"]);
        assert_eq!(named("a:1,grpc://b:2", "ec:2+1").unwrap(), ["a:1=", "grpc://b:2="]);
        assert_eq!(named("a:1,grpc://b:2,[::1]:3", "ec:2+1/2+1").unwrap(), ["a:1=a", "grpc://b:2=b", "[::1]:3=[::1]"]);
        assert!(named("a:1,;b:1", "none").is_err() && named("a:1;;b:1", "none").is_err());
    }
}
