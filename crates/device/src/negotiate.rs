//! Calls that ask a CSE for its [`Capabilities`](crate::Capabilities) first, and take another way where one is missing.

use skytether_common::Result;

use crate::cse::{Cse, Storage};
use crate::session::OpenReply;
use crate::subplan::SubPlan;
use crate::verify::{Pace, Verified, Verify, Verifying};

/// Opens `plan` at `cse`, or runs it there as a whole where `cse` has no sessions.
///
/// # Errors
/// As [`Cse::open`] and [`Cse::execute`].
pub async fn open_or_execute(cse: &dyn Cse, plan: SubPlan) -> Result<OpenReply> {
    if cse.capabilities().sessions { cse.open(plan).await } else { Ok(OpenReply::Whole(cse.execute(plan).await?)) }
}

/// Reads the values that `asked` names with [`Storage::get`], one after the other, and verifies them here.
///
/// # Errors
/// `Unavailable`; a damaged value is no error.
pub async fn verify_by_reading(storage: &dyn Storage, asked: &Verify) -> Result<Verified> {
    let (mut verifying, mut pace) = (Verifying::new(asked), Pace::new(asked.bytes_per_s));
    for (at, item) in asked.items.iter().enumerate() {
        let read = storage.get(&item.key).await;
        pace.passed(verifying.take(at as u32, item, read)?).await;
    }
    Ok(verifying.finish())
}

/// Verifies values at `storage` where it can, and by [`verify_by_reading`] where it can't.
///
/// # Errors
/// As [`Storage::verify`], but for the capability.
pub async fn verify_or_read(storage: &dyn Storage, asked: Verify) -> Result<Verified> {
    if storage.capabilities().verify { storage.verify(asked).await } else { verify_by_reading(storage, &asked).await }
}
