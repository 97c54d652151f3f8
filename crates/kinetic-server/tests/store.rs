//! A host's store over a drive that speaks nothing but Kinetic.

use skytether_kinetic::KineticDrive;
use skytether_kinetic_server::Profile;
use skytether_store::contract;
use tokio::runtime::Handle;

use crate::blocking::Blocking;
use crate::{Served, serve};

async fn keeps_the_contract(profile: Profile, at: impl Fn(&Served) -> skytether_transport::Endpoint + Send + 'static) {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), profile).await;
    let runtime = Handle::current();
    let checked = tokio::task::spawn_blocking(move || {
        contract::check(|| {
            runtime.block_on(served.keys.erase(false)).unwrap();
            let drive = runtime.block_on(KineticDrive::connect(&at(&served), served.options.as_ref().clone())).unwrap();
            Box::new(Blocking { drive, runtime: runtime.clone() })
        });
    });
    checked.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn store_over_large_batches_keeps_the_contract() {
    keeps_the_contract(Profile::Drive, |served| served.plain.clone()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_over_batches_of_15_keeps_the_contract() {
    keeps_the_contract(Profile::Java, |served| served.plain.clone()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_over_tls_keeps_the_contract() {
    keeps_the_contract(Profile::Drive, |served| served.tls.clone()).await;
}
