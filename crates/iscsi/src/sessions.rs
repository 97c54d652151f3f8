//! The sessions of a target by their identifiers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::login::{Established, Status};

/// How long a session that is replaced may take to end.
const REPLACING: Duration = Duration::from_secs(10);

/// What names a session: the initiator and its part of the identifier. All portals are one group.
type Name = (String, [u8; 6]);

#[derive(Debug)]
struct Entry {
    tsih: u16,
    replaced: CancellationToken,
    ended: CancellationToken,
}

/// All sessions that are not for discovery.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    state: Mutex<(u16, HashMap<Name, Entry>)>,
}

/// The place of a session. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    sessions: Arc<Sessions>,
    name: Name,
    /// The target's part of the session identifier.
    pub(crate) tsih: u16,
    /// Cancelled when the initiator logs in again.
    pub(crate) replaced: CancellationToken,
    ended: CancellationToken,
}

impl Sessions {
    /// The place of the session that `login` makes. A former session of the same name ends first (RFC 7143, 6.3.5).
    pub(crate) async fn enter(self: &Arc<Self>, login: &Established) -> Result<Place, Status> {
        let name = (login.initiator.clone(), login.isid);
        if login.tsih != 0 {
            // A session has one connection, and connections are not reinstated at error recovery level 0.
            let exists = self.state.lock().1.get(&name).is_some_and(|entry| entry.tsih == login.tsih);
            return Err(if exists { Status::TooManyConnections } else { Status::NoSession });
        }
        let entering = async {
            loop {
                let ended = match self.try_enter(&name) {
                    Ok(place) => return place,
                    Err(ended) => ended,
                };
                ended.cancelled().await;
            }
        };
        tokio::time::timeout(REPLACING, entering).await.map_err(|_| Status::Unavailable)
    }

    /// Ends all sessions.
    pub(crate) fn end_all(&self) {
        self.state.lock().1.values().for_each(|entry| entry.replaced.cancel());
    }

    fn try_enter(self: &Arc<Self>, name: &Name) -> Result<Place, CancellationToken> {
        let mut state = self.state.lock();
        if let Some(former) = state.1.get(name) {
            former.replaced.cancel();
            return Err(former.ended.clone());
        }
        let next = loop {
            state.0 = state.0.wrapping_add(1).max(1);
            if state.1.values().all(|entry| entry.tsih != state.0) {
                break state.0;
            }
        };
        let (replaced, ended) = (CancellationToken::new(), CancellationToken::new());
        state.1.insert(name.clone(), Entry { tsih: next, replaced: replaced.clone(), ended: ended.clone() });
        Ok(Place { sessions: Arc::clone(self), name: name.clone(), tsih: next, replaced, ended })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sessions.state.lock().1.remove(&self.name);
        self.ended.cancel();
    }
}
