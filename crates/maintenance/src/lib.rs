//! Work over the drives of a cluster in the background of queries: scrubs, repairs, and fleets that grow or shrink.

use skytether_cluster::cluster::Cluster;

pub mod rebalance;
pub mod rebalance_parities;
pub mod rebalance_plan;
pub mod rebuild;
pub mod rebuild_copies;
pub mod resize;
pub mod resize_members;
pub mod resize_nodes;
pub mod retention;
pub mod scrub;
pub mod scrub_window;
pub mod two_level_layout;

/// Maintenance of one cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Maintenance(pub(crate) Cluster);

impl Maintenance {
    /// Of this cluster.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        Self(cluster)
    }
}
