//! Which pools a fleet takes: those that keep what they acknowledged, and can do what the index needs.

use skytether_common::{Error, Result};

use crate::cluster::PoolInfo;

/// The pool `name` among `all`.
pub(crate) fn named<'a>(all: &'a [PoolInfo], name: &str) -> Result<&'a PoolInfo> {
    all.iter().find(|pool| pool.pool_name == name).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|pool| pool.pool_name.as_str()).collect();
        let known = if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
        Error::not_found(format!("the Ceph cluster has no pool {name} ({known}): make it with `ceph osd pool create {name}`"))
    })
}

/// Refuses a pool for the fleet's record and indexes.
pub(crate) fn check_index(pool: &PoolInfo, lossy: bool) -> Result<()> {
    let name = &pool.pool_name;
    if !pool.is_replicated() {
        return Err(Error::invalid(format!(
            "pool {name} is erasure-coded, and such pools take no omap, which the fleet's index needs: name a replicated pool, and this one for the values (rados://REPLICATED?data={name})"
        )));
    }
    check_copies(pool, lossy)
}

/// Refuses a pool for values.
pub(crate) fn check_data(pool: &PoolInfo, lossy: bool) -> Result<()> {
    check_copies(pool, lossy)
}

fn check_copies(pool: &PoolInfo, lossy: bool) -> Result<()> {
    if pool.size < 2 && !lossy {
        let name = &pool.pool_name;
        return Err(Error::invalid(format!(
            "pool {name} keeps one copy of each object (size 1), so that one lost disk is lost data: raise it (`ceph osd pool set {name} size 3`), or add lossy=allow to the address if the data can be had again"
        )));
    }
    Ok(())
}

/// What keeps the values of a fleet, for people.
pub(crate) fn described(data: &PoolInfo) -> String {
    let name = &data.pool_name;
    match (data.is_replicated(), data.size) {
        (true, 1) => format!("pool {name} keeps one copy"),
        (true, copies) => format!("pool {name} keeps {copies} copies"),
        (false, _) => format!("pool {name} is erasure-coded (profile {})", data.erasure_code_profile),
    }
}
