//! The task that runs programs for watches, one after the other.
//!
//! A run has the rights that the watch's identity has when it begins. An identity that is gone, or that may run no
//! programs any more, loses its watches.

use std::sync::Arc;

use bytes::Bytes;
use skytether_kinetic_protocol::Permission;
use skytether_kinetic_protocol::access::Target;
use skytether_kinetic_protocol::command::{Body, Command, Header};
use skytether_kinetic_protocol::program::{ManageApplet, Notification};
use tokio::task::JoinSet;

use crate::admission::Caller;
use crate::program_bytes::interrupted;
use crate::programs::{self, Ended, Run};
use crate::shared::Shared;
use crate::watches::{Due, Watch, name};

/// Runs the programs of watches until it is dropped. Of several calls, one does, and the others wait.
pub(crate) async fn work(shared: Arc<Shared>) {
    let _alone = shared.watches.working.lock().await;
    loop {
        let due = shared.watches.next().await;
        run(&shared, due).await;
    }
}

/// Runs the program of one change.
async fn run(shared: &Arc<Shared>, due: Due) {
    let Due { watch, key, kind, chain, number } = due;
    if shared.is_locked() || shared.is_asleep() {
        shared.watches.miss_all();
        return;
    }
    let caller = Caller::of_watch(shared.settings(), &watch.owner, chain).filter(|caller| caller.may(Permission::ManageApplet, Target::Drive));
    let Some(caller) = caller else {
        shared.note(&format!("a watch with the program {} ended: its identity may not run programs", name(&watch.program)));
        shared.watches.keep(|other| !std::ptr::eq(other, Arc::as_ptr(&watch)));
        return;
    };
    if !caller.may(Permission::Read, Target::Key(&key)) {
        return;
    }
    let mut asked = watch.program.clone();
    asked.program_param.extend([key.clone(), Bytes::from_static(kind.name().as_bytes())]);
    let run =
        Run { caller: &caller, asked: &asked, keys: watch.program.program_key.clone(), value: Some(Bytes::new()), priority: watch.priority, watched: true };
    let ended = match programs::start(shared, run) {
        // A task of its own: one that is interrupted does not end the watches. It ends with this one.
        Ok(running) => {
            let mut task = JoinSet::new();
            task.spawn(running);
            task.join_next().await.and_then(Result::ok).unwrap_or_else(|| Err(interrupted()))
        }
        Err(why) => Err(why),
    };
    let refused = ended.as_ref().err().map(ToString::to_string);
    for said in shared.watches.ended(number, refused.as_deref()) {
        shared.note(&said);
    }
    tell(shared, &watch, Notification { key: Some(key), mtype: Some(kind.into()) }, ended);
}

/// Tells the watch's connection how a run ended. One that does not read misses it.
fn tell(shared: &Shared, watch: &Watch, change: Notification, ended: Ended) {
    let Some(teller) = watch.teller.as_ref().filter(|teller| !teller.is_closed()) else { return };
    let (status, _) = programs::end_of(ended);
    let header = Header { cluster_version: Some(shared.settings().cluster_version), ..watch.header.clone() };
    let applet = ManageApplet { program_key: watch.program.program_key.clone(), notification: Some(change), ..ManageApplet::default() };
    let command = Command { header: Some(header), body: Some(Body { manage_applet: Some(applet), ..Body::default() }), status: Some(status) };
    if teller.try_send((command, Bytes::new())).is_err() {
        shared.watches.untold();
    }
}

#[cfg(test)]
mod tests {
    use skytether_device::StorageOnly;
    use skytether_kinetic_protocol::kinds::Priority;
    use skytether_kv::{Change, KeyValues};
    use uuid::Uuid;

    use super::*;
    use crate::chain::Chain;
    use crate::options::Options;
    use crate::watches::{Owner, Scope, Totals};

    /// A drive with a watch of identity 1, and two changes that wait.
    async fn watched() -> Arc<Shared> {
        let drive = Arc::new(StorageOnly::in_memory(Uuid::from_u128(1), "drive"));
        let shared = Arc::new(Shared::open(Arc::new(KeyValues::in_memory()), drive, Options::default()).unwrap());
        let watch = Watch {
            owner: Owner { identity: 1, key: Bytes::from_static(b"asdfasdf"), tls: false },
            scope: Scope { first: Bytes::new(), last: Bytes::new(), puts: true, deletes: true },
            program: ManageApplet { program_key: vec![Bytes::from_static(b"absent")], ..ManageApplet::default() },
            priority: Priority::NORMAL,
            header: Header::default(),
            teller: None,
        };
        assert!(shared.watches.set(watch));
        for key in ["a", "b"] {
            shared.write_of_program(&Chain::default(), Change::put(Bytes::from_static(key.as_bytes()), Bytes::new()), 0).await.unwrap();
        }
        shared
    }

    #[tokio::test]
    async fn locked_or_sleeping_drive_runs_no_watched_program() {
        for sleeps in [false, true] {
            let shared = watched().await;
            if sleeps {
                shared.set_asleep(true)
            } else {
                shared.set_locked(true)
            };
            run(&shared, shared.watches.next().await).await;
            assert_eq!(shared.watches.totals(), Totals { watches: 1, runs: 0, missed: 2, untold: 0 });
        }
    }

    #[tokio::test]
    async fn program_that_does_not_run_is_noted_once() {
        let shared = watched().await;
        for _ in 0..2 {
            run(&shared, shared.watches.next().await).await;
        }
        assert_eq!(shared.watches.totals(), Totals { watches: 1, runs: 2, missed: 0, untold: 0 });
        assert_eq!(shared.log_text().matches("the watched program absent does not run").count(), 1);
    }
}
