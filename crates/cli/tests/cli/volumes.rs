//! `skytether volume` over a drive that is not served.

use std::path::Path;
use std::sync::Arc;

use skytether_drive::{Drive, DriveOptions};
use skytether_iscsi::RESERVATIONS;
use skytether_store::disk::DriveIdentity;
use skytether_volume::{BlockDevice, Options, StorageBacking, Volumes};
use uuid::Uuid;

use crate::util::run;

/// The volumes of the drive in `data`, which is made where there is none. Its directory is theirs until they are
/// dropped.
async fn opened(data: &Path) -> Arc<Volumes> {
    let identity = (!data.exists()).then(|| DriveIdentity { id: Uuid::from_u128(1), name: "drive-0".to_owned() });
    let drive = Drive::open(data, identity, DriveOptions::default()).unwrap();
    Volumes::open(Arc::new(StorageBacking::new(drive).unwrap()), &data.join("volumes"), Options::default()).await.unwrap()
}

/// What no version can read is given up by name. Other volumes keep theirs.
#[test]
fn reservations_of_a_volume_are_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("d");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let volumes = opened(&data).await;
        for name in ["disk", "other"] {
            let volume = volumes.ensure(&format!("{name}=1MiB").parse().unwrap()).await.unwrap();
            volume.keep_note(RESERVATIONS, Some("in no form".into())).await.unwrap();
        }
        volumes.close().await.unwrap();
    });
    // The drive is closed once all of its tasks are.
    drop(runtime);
    let at = data.to_str().unwrap();
    let done = run(&["volume", "forget-reservations", "disk", "--data", at]).code(0);
    assert!(done.out.contains("volume disk") && done.out.contains("register again"), "{done:?}");
    let error = run(&["volume", "forget-reservations", "none", "--data", at]).fails(1);
    assert!(error.contains("volume none"), "{error}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let volumes = opened(&data).await;
        for (name, kept) in [("disk", None), ("other", Some("in no form".into()))] {
            assert_eq!(volumes.device(name).await.unwrap().note(RESERVATIONS).await.unwrap(), kept, "{name}");
        }
        volumes.close().await.unwrap();
    });
}
