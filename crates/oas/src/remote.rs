//! A logical unit that is reached over TCP, through connections that are made again when they break.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::{Error, Kind, Result};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::iscsi::Connection;
use crate::scsi::{Command, Reply, Scsi};
use crate::url::Iscsi;

/// Between a connection that could not be made and the next try.
const PAUSE: Duration = Duration::from_millis(200);

/// An iSCSI logical unit.
#[derive(Debug)]
pub struct Remote {
    url: Iscsi,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl Remote {
    /// It connects with the first command.
    #[must_use]
    pub fn new(url: Iscsi) -> Self {
        Self { url, connection: Mutex::new(None) }
    }

    async fn connection(&self, deadline: Instant) -> Result<Arc<Connection>> {
        // Others wait here, and find the connection that the first one makes.
        let mut there = timeout_at(deadline, self.connection.lock()).await.map_err(|_| self.late())?;
        if let Some(connection) = there.as_ref().filter(|connection| !connection.is_broken()) {
            return Ok(connection.clone());
        }
        let made = Arc::new(Connection::open(&self.url, deadline).await?);
        *there = Some(made.clone());
        Ok(made)
    }

    fn late(&self) -> Error {
        Error::unavailable(format!("{} did not answer in time", self.url))
    }

    async fn carry_out(&self, command: Command, deadline: Instant) -> Result<Reply> {
        // A result of EXEC OUT goes with its session, so that EXEC IN may not find it: the pair is repeated above.
        let mut again = true;
        loop {
            let connection = match self.connection(deadline).await {
                Ok(connection) => connection,
                Err(error) if error.kind() == Kind::Unavailable && again && Instant::now() + PAUSE < deadline => {
                    again = false;
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let done = timeout_at(deadline, connection.execute(command.clone())).await.map_err(|_| self.late())?;
            match done {
                Err(error) if error.kind() == Kind::Unavailable && again && connection.is_broken() => again = false,
                done => return done,
            }
        }
    }
}

impl Scsi for Remote {
    fn execute(&self, command: Command, deadline: Instant) -> BoxFuture<'_, Result<Reply>> {
        self.carry_out(command, deadline).boxed()
    }

    fn most_data(&self) -> usize {
        // What our initiator keeps of one command.
        4 << 20
    }

    fn name(&self) -> String {
        self.url.to_string()
    }
}
