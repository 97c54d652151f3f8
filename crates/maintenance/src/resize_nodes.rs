//! The node of a joining drive, and whether nodes keep enough drives without those that leave.

use std::collections::{BTreeMap, BTreeSet};

use skytether_common::units::counted;
use skytether_common::{Error, Kind, Result};
use skytether_erasure::{Code, Scheme};

use crate::Maintenance;
use skytether_api::resize_report::ResizeOptions;
use skytether_catalog::records::code_map::code;
use skytether_catalog::records::failure_domains::FailureDomains;

/// The longest name of a node, in bytes.
const LONGEST: usize = 255;

impl Maintenance {
    /// The nodes of `count` drives that join while `leaving` leave, in order. The names are empty where the fleet has
    /// no nodes.
    ///
    /// # Errors
    /// `Invalid` for a name that can't be a node's, and for a name in a fleet without nodes. `Invalid`, too, where no
    /// option says which node the drive at an address is on.
    pub(crate) fn nodes_for(&self, count: usize, leaving: &BTreeSet<usize>, options: &ResizeOptions) -> Result<Vec<String>> {
        let Some(domains) = self.0.catalog().health().failure_domains() else {
            return match &options.node {
                None => Ok(vec![String::new(); count]),
                Some(node) => {
                    Err(Error::invalid(format!("this fleet was founded without nodes, so that no drive can be on node {node:?}: leave the node out")))
                }
            };
        };
        if let Some(node) = &options.node {
            if node.is_empty() || node.len() > LONGEST || node.chars().any(char::is_control) {
                return Err(Error::invalid(format!("{node:?} can't be the name of a node: 1 to {LONGEST} bytes, without control characters")));
            }
            return Ok(vec![node.clone(); count]);
        }
        let known = self.drives_of_nodes(&domains, &BTreeSet::new());
        let mut drives = self.drives_of_nodes(&domains, leaving);
        let mut nodes = Vec::with_capacity(count);
        for n in 0..count {
            let node = match options.addresses.get(n) {
                // An unknown address may be another machine, and must not count as a known node.
                Some(address) if !known.contains_key(host_of(address)) => {
                    let names: Vec<&str> = known.keys().map(String::as_str).collect();
                    return Err(Error::invalid(format!(
                        "this fleet has nodes ({}), and none of them is known to have the drive at {address}: name its node, an old or a new one (`--node`, in Python node=)",
                        names.join(", ")
                    )));
                }
                Some(address) => host_of(address).to_owned(),
                None => drives.iter().min_by_key(|(_, drives)| **drives).map(|(node, _)| node.clone()).unwrap_or_default(),
            };
            *drives.entry(node.clone()).or_default() += 1;
            nodes.push(node);
        }
        Ok(nodes)
    }

    /// How many drives each node has without these.
    fn drives_of_nodes(&self, domains: &FailureDomains, leaving: &BTreeSet<usize>) -> BTreeMap<String, usize> {
        let mut drives = BTreeMap::new();
        for at in self.0.catalog().health().members().into_iter().filter(|at| !leaving.contains(at)) {
            if let Some(node) = domains.name(at) {
                *drives.entry(node.to_owned()).or_default() += 1;
            }
        }
        drives
    }

    /// Checks that enough drives are left without these, and with others on `nodes`, for the fleet and for each data
    /// set.
    ///
    /// # Errors
    /// `Invalid`, naming the data set and the node; what the drives say.
    pub(crate) async fn enough(&self, leaving: &BTreeSet<usize>, nodes: &[String]) -> Result<()> {
        let (catalog, health) = (self.0.catalog(), self.0.catalog().health());
        if leaving.is_empty() {
            return Ok(());
        }
        let left = health.members().into_iter().filter(|at| !leaving.contains(at)).count() + nodes.len();
        if left == 0 {
            return Err(Error::invalid("a fleet keeps one drive at least"));
        }
        let too_few = |e: Error| Error::invalid(format!("without the drives that are to leave there would be {left}: add others first")).with_source(e);
        let domains = health.failure_domains();
        let on = domains.as_ref().map(|domains| {
            let mut on = self.drives_of_nodes(domains, leaving);
            nodes.iter().for_each(|node| *on.entry(node.clone()).or_default() += 1);
            on
        });
        if let (Scheme::Levels(outer, inner), Some(on)) = (health.scheme(), &on) {
            let enough = on.values().filter(|drives| **drives >= inner.shards()).count();
            if enough < outer.shards() {
                return Err(Error::invalid(format!(
                    "redundancy {} needs {} nodes or more with {} drives or more each, and without the drives that are to leave {enough} would have so many: add others first",
                    health.scheme(),
                    outer.shards(),
                    inner.shards()
                )));
            }
        }
        code(health.scheme(), left).map_err(too_few)?;
        for name in catalog.names().await? {
            let record = match catalog.read(&name).await {
                Ok((record, _)) => record,
                Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Corrupt | Kind::Unsupported) => continue,
                Err(e) => return Err(e),
            };
            for redundancy in record.tables.values().filter_map(|table| table.redundancy.as_ref()) {
                code(redundancy.scheme, left).map_err(|e| too_few(e.context(name.to_string())))?;
                if let (Some(inner), Some(domains), Some(on)) = (redundancy.scheme.inner(), &domains, &on) {
                    let of = redundancy.drives.iter().map(|id| Ok(domains.name(catalog.drive(id, &name)?).unwrap_or_default().to_owned()));
                    let own: BTreeSet<String> = of.collect::<Result<_>>()?;
                    stays(&own, on, inner).map_err(|e| e.context(format!("{name} has redundancy {}, and stays on its nodes", redundancy.scheme)))?;
                }
            }
        }
        if health.homes() > left {
            return Err(Error::invalid(format!(
                "root records lie on {} drives, and without those that are to leave there would be {left}: add others first",
                health.homes()
            )));
        }
        Ok(())
    }
}

/// Checks that data on the nodes `own`, in groups of `inner`, can stay there. `on` has the number of remaining drives
/// per node. A node whose drives all leave may be replaced by another one.
fn stays(own: &BTreeSet<String>, on: &BTreeMap<String, usize>, inner: Code) -> Result<()> {
    let mut spare = on.iter().filter(|(node, drives)| !own.contains(*node) && **drives >= inner.shards()).count();
    for node in own {
        let drives = on.get(node).copied().unwrap_or(0);
        if drives == 0 && spare > 0 {
            spare -= 1;
        } else if drives < inner.shards() {
            let least = counted(inner.shards() as u64, "drive");
            return Err(Error::invalid(if drives == 0 {
                format!("{node} would have none left, and no other node has {least} to take its place: add them first (`skytether fleet add --node NAME`)")
            } else {
                format!(
                    "{node} would have {drives}, of {least} or more that each of them needs: add others there first (`skytether fleet add --node {node}`), or let all of its drives go, once another node has {least} to take its place"
                )
            }));
        }
    }
    Ok(())
}

/// The host part of an address, without scheme and port.
#[must_use]
pub fn host_of(address: &str) -> &str {
    let bare = address.rsplit_once("://").map_or(address, |(_, rest)| rest);
    bare.rsplit_once(':').map_or(bare, |(host, _)| host)
}
