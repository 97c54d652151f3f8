//! Volumes in scrubs, repairs and resizes. What they are on the drives is the subject of `skytether_fleet_volume`.

use skytether_api::scrub_report::{Finding, ScrubReport};
use skytether_catalog::root_store::Catalog;
use skytether_catalog::volume_records::PREFIX;
use skytether_common::{Error, Result};
use skytether_fleet_volume::FleetBacking;

/// The volumes of a fleet, if it has any.
async fn volumes(catalog: &Catalog) -> Result<Option<FleetBacking>> {
    if catalog.list_records(PREFIX, None, 1).await?.is_empty() { Ok(None) } else { FleetBacking::new(catalog.clone()).map(Some) }
}

/// Verifies all volumes, and repairs what is damaged unless it is to `check` alone; what it found goes into `report`.
pub(crate) async fn scrub(catalog: &Catalog, check: bool, bytes_per_s: Option<u64>, report: &mut ScrubReport) -> Result<()> {
    let Some(volumes) = volumes(catalog).await? else { return Ok(()) };
    let scrubbed = volumes.scrub(check, bytes_per_s, &mut |_| ()).await?;
    report.values += scrubbed.values;
    report.bytes_verified += scrubbed.bytes;
    for found in scrubbed.damaged {
        let drives: Vec<&str> = found.faults.iter().map(|fault| fault.drive.as_str()).collect();
        let what: Vec<String> = found.faults.iter().map(|fault| fault.what.clone()).collect();
        report.tell(Finding {
            dataset: None,
            drive: drives.join(", "),
            key: found.key.as_str().to_owned(),
            what: what.join(", "),
            mended: found.repaired,
            error: found.error,
        });
    }
    Ok(())
}

/// Refuses that a drive leaves the fleet that has parts of volumes: a resize does not move them. Once drives are marked
/// as leaving, it waits for extents that are being written: they may have parts there.
pub(crate) async fn check_leaving(catalog: &Catalog, leaving: impl Iterator<Item = usize>) -> Result<()> {
    let mut all = None;
    for at in leaving.filter(|at| !catalog.health().is_down(*at)) {
        if all.is_none() {
            all = volumes(catalog).await?;
        }
        let Some(volumes) = &all else { return Ok(()) };
        if catalog.health().is_leaving(at) {
            volumes.await_merges(catalog.deadline()).await?;
        }
        if volumes.is_in_use(at).await? {
            let name = &catalog.drives()[at].info().name;
            return Err(Error::unsupported(format!(
                "{name} has parts of volumes, which a resize does not move: copy these volumes elsewhere and remove them first"
            )));
        }
    }
    Ok(())
}
