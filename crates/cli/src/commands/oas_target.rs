//! Where `skytether oas` computes.

use std::path::Path;

use clap::Args;
use oas::{Access, OpenFile, Session, Settings};
use skytether_common::Result;

/// Where to compute.
#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    /// The target that has the disk below the files: iscsi://[USER%SECRET@]HOST[:PORT]/IQN/LUN, or the node of a SCSI
    /// disk (/dev/sdb). Default: the disk below the first file, where the kernel can tell it.
    #[arg(long, value_name = "URL", env = "SKYTETHER_TARGET")]
    target: Option<String>,
    /// Fail where the target can't do it. Otherwise it is done here, with the reason on stderr.
    #[arg(long, conflicts_with = "here")]
    there: bool,
    /// Do it here.
    #[arg(long)]
    here: bool,
}

impl TargetArgs {
    /// The session for files; this is the first one.
    ///
    /// # Errors
    /// Those of [`Session::open`], and of [`Session::of_file`] where nothing may be done here.
    pub(crate) fn session(&self, first: &Path) -> Result<Session> {
        let settings = Settings { here: !self.there, ..Settings::default() };
        if self.here {
            return Session::local(settings);
        }
        if let Some(url) = &self.target {
            return Session::open(url, settings);
        }
        match OpenFile::open(first, Access::Read) {
            Ok(file) => Session::below(&file, settings),
            // Each file's own error is told later.
            Err(_) if !self.there => Session::local(settings),
            Err(error) => Err(error),
        }
    }
}
