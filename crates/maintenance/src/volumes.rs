//! Volumes in scrubs, repairs and resizes. What they are on the drives is the subject of `skytether_fleet_volume`.

use std::collections::BTreeSet;

use skytether_api::scrub_report::{Finding, ScrubReport};
use skytether_catalog::root_store::Catalog;
use skytether_catalog::volume_records::PREFIX;
use skytether_common::Result;
use skytether_fleet_volume::{FleetBacking, Moved};

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

/// Moves the parts of volumes off drives that are to leave, once they are marked so. Nothing without volumes.
pub(crate) async fn move_off(catalog: &Catalog, leaving: &BTreeSet<usize>, bytes_per_s: Option<u64>) -> Result<Option<Moved>> {
    if leaving.is_empty() {
        return Ok(None);
    }
    let Some(volumes) = volumes(catalog).await? else { return Ok(None) };
    volumes.move_off(leaving, catalog.deadline(), bytes_per_s).await.map(Some)
}
