//! `skytether status`: the drives.

use std::path::Path;

use skytether::Fleet;
use skytether::address::is_host;
use skytether_common::{Error, Kind, Result};
use skytether_host::DriveStatus;

use crate::common_args::{FleetArg, ListArgs, ListFormat};
use crate::context::{Failure, fleet, print_line};
use crate::listing;
use crate::stores::is_store;

/// The status of the drives. If too many are lost to open the fleet of a directory, it comes with the error.
async fn drives_of(at: &FleetArg) -> Result<(Vec<DriveStatus>, Option<Error>)> {
    let error = match fleet(at).await {
        Ok(fleet) => return Ok((fleet.status().await?, None)),
        Err(e) => e,
    };
    if is_host(&at.fleet) || is_store(&at.fleet) || !matches!(error.kind(), Kind::Unavailable | Kind::Corrupt | Kind::NotFound) {
        return Err(error);
    }
    match Fleet::offline_status(Path::new(&at.fleet)).await {
        Ok(found) if found.iter().any(|drive| drive.error.is_some()) => Ok((found, Some(error))),
        _ => Err(error),
    }
}

/// Shows the drives.
pub(crate) async fn run(args: ListArgs) -> Result<(), Failure> {
    let (found, unopened) = drives_of(&args.fleet).await?;
    let text = match args.format {
        ListFormat::Table => listing::drives(&found),
        ListFormat::Json => listing::json(&found)?,
    };
    print_line(text.trim_end())?;
    if let Some(error) = unopened {
        return Err(Failure::Work(error));
    }
    let trouble = listing::trouble(&found);
    if !trouble.is_empty() {
        return Err(Failure::Each(trouble.into_iter().map(Error::unavailable).collect()));
    }
    let unreadable: Vec<_> = found.iter().flat_map(|d| d.unreadable.iter().map(|u| u.name.to_string())).collect();
    if unreadable.is_empty() {
        return Ok(());
    }
    Err(Failure::Work(Error::corrupt(format!("{} can't be read: `skytether ls` says why", unreadable.join(", ")))))
}
