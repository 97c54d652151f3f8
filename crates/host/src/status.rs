//! How the drives are.

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use skytether_store::Usage;
use skytether_wire::CseInfo;

use crate::catalog::within;
use crate::session::Host;

/// One drive as the host sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriveStatus {
    /// Who it is.
    pub info: CseInfo,
    /// What it holds, if it answers.
    pub usage: Option<Usage>,
    /// Why it does not.
    pub error: Option<String>,
}

impl Host {
    /// All drives, each with its usage or the reason why it does not tell.
    pub async fn status(&self) -> Vec<DriveStatus> {
        join_all(self.drives().iter().map(|drive| async move {
            let info = drive.info().clone();
            match within(self.options().storage_deadline, &info.name, "say how much it holds", drive.usage()).await {
                Ok(usage) => DriveStatus { info, usage: Some(usage), error: None },
                Err(e) => DriveStatus { info, usage: None, error: Some(e.full_text()) },
            }
        }))
        .await
    }
}
