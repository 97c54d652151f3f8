//! `skytether ls`: the data sets.

use skytether_common::Error;
use skytether_common::lost::{phrase, without_name};

use crate::common_args::{ListArgs, ListFormat};
use crate::context::{Failure, fleet, print_line};
use crate::listing;

/// Lists the data sets.
pub(crate) async fn run(args: ListArgs) -> Result<(), Failure> {
    let found = fleet(&args.fleet).await?.listing().await?;
    let text = match args.format {
        // "no data sets" would be wrong where a drive did not answer.
        ListFormat::Table if found.datasets.is_empty() && !found.silent.is_empty() && !found.whole => String::new(),
        ListFormat::Table => listing::datasets(&found.datasets),
        ListFormat::Json => listing::json(&found.datasets)?,
    };
    if !text.is_empty() {
        print_line(text.trim_end())?;
    }
    if found.silent.is_empty() {
        return Ok(());
    }
    let drives: Vec<_> = found.silent.keys().map(String::as_str).collect();
    let (drives, are) = (drives.join(", "), if drives.len() == 1 { "is" } else { "are" });
    if found.whole {
        eprintln!("skytether: {drives} {are} lost; the list is whole, since the other drives have all root records (`skytether status` says what to do)");
        return Ok(());
    }
    let told = match found.silent.iter().collect::<Vec<_>>().as_slice() {
        [(name, reason)] => format!("{name} is lost: {}", without_name(name, reason)),
        _ => {
            let (told, advice) = phrase(found.silent.iter().map(|(name, reason)| (name.as_str(), reason.as_str())));
            format!("{told} are lost{}", advice.map(|advice| format!(": {advice}")).unwrap_or_default())
        }
    };
    Err(Failure::Work(Error::unavailable(format!("this list may lack data sets, since {told}"))))
}
