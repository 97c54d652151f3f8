//! What doors with a protocol of their own do with connections: a task for each, and replies that are written together.

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connection::Connection;
use crate::context::ServeContext;
use crate::listener::Incoming;

/// Pieces of a reply of at least this many bytes are written alone; shorter ones are copied together.
const APART: usize = 16 << 10;

/// Conversations that are under way. Dropping them ends them.
#[derive(Debug)]
pub struct Conversations(JoinSet<()>);

impl Conversations {
    /// Waits until all have ended, for `grace` at most.
    pub async fn end(mut self, grace: Duration) {
        let _ = timeout(grace, async { while self.0.join_next().await.is_some() {} }).await;
    }
}

impl Incoming {
    /// Gives each connection a task of its own, until the shutdown of `context`. Then no more are accepted, and those
    /// that are under way are given back: they see the same shutdown.
    pub async fn converse<F>(mut self, context: &ServeContext, mut talk: impl FnMut(Connection) -> F) -> Conversations
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut conversations = JoinSet::new();
        loop {
            tokio::select! {
                () = context.shutdown.cancelled() => return Conversations(conversations),
                Some(_) = conversations.join_next() => {}
                Some(connection) = self.next_connection() => {
                    conversations.spawn(talk(connection));
                }
            }
        }
    }
}

/// Writes replies in the order in which they come, several at once where they are short, until no more can come; then
/// it shuts `writing` down. `open` gives a reply's pieces, and what it holds until they are written, such as room in
/// memory.
///
/// # Errors
/// Those of `writing`; `TimedOut` where it takes nothing for `patience`.
pub async fn write_replies<R, P, H>(
    mut replies: mpsc::Receiver<R>,
    mut writing: impl AsyncWrite + Unpin,
    patience: Duration,
    mut open: impl FnMut(R) -> (P, H),
) -> io::Result<()>
where
    P: IntoIterator<Item = Bytes>,
{
    let mut together = BytesMut::with_capacity(APART);
    while let Some(first) = replies.recv().await {
        let mut next = Some(first);
        while let Some(reply) = next.take() {
            let (pieces, held) = open(reply);
            for piece in pieces {
                if piece.len() < APART {
                    together.put_slice(&piece);
                }
                if piece.len() >= APART || together.len() >= APART {
                    timeout(patience, writing.write_all(&together)).await??;
                    together.clear();
                }
                if piece.len() >= APART {
                    timeout(patience, writing.write_all(&piece)).await??;
                }
            }
            drop(held);
            next = replies.try_recv().ok();
        }
        let rest = async {
            writing.write_all(&together).await?;
            writing.flush().await
        };
        timeout(patience, rest).await??;
        together.clear();
    }
    timeout(patience, writing.shutdown()).await?
}
