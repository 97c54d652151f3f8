//! The tasks of a connection that send: requests in order, and a noop when there was nothing for a while.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skytether_common::Kind;
use skytether_kinetic_protocol::command::{Command, Header};
use skytether_kinetic_protocol::frame::{encode_head, encode_into};
use skytether_kinetic_protocol::{Message, MessageType};
use skytether_transport::tls::Stream;
use tokio::io::{AsyncWriteExt, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::connection::{Request, Shared};
use crate::options::Identity;

/// Values up to this many bytes are copied behind their message, so that many requests go in one write.
const COPIED: usize = 16 << 10;

/// Requests are collected up to this many bytes.
const COLLECTED: usize = 64 << 10;

/// What proves who sends a request.
#[derive(Debug)]
pub(crate) enum Proof {
    /// The identity's HMAC.
    Hmac,
    /// A PIN.
    Pin(Bytes),
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) command: Command,
    pub(crate) value: Bytes,
    pub(crate) proof: Proof,
}

/// The task that writes.
pub(crate) async fn write(mut to: WriteHalf<Box<dyn Stream>>, mut requests: mpsc::UnboundedReceiver<Outgoing>, identity: Identity, shared: Arc<Shared>) {
    let mut collected = BytesMut::new();
    while let Some(first) = requests.recv().await {
        let mut next = Some(first);
        while let Some(Outgoing { command, value, proof }) = next {
            let message = match proof {
                Proof::Hmac => Message::signed(identity.number, &identity.key, &command),
                Proof::Pin(pin) => Message::with_pin(pin, &command),
            };
            let written = if value.len() <= COPIED {
                encode_into(&message, &value, &mut collected).map_err(|e| (Kind::Invalid, e.to_string()))
            } else {
                match encode_head(&message, value.len()) {
                    Ok(head) => {
                        collected.extend_from_slice(&head);
                        send(&mut to, &mut collected, &value).await
                    }
                    Err(e) => Err((Kind::Invalid, e.to_string())),
                }
            };
            if let Err((kind, text)) = written {
                return shared.end(kind, &text);
            }
            next = if collected.len() < COLLECTED { requests.try_recv().ok() } else { None };
        }
        if let Err((kind, text)) = send(&mut to, &mut collected, &[]).await {
            return shared.end(kind, &text);
        }
    }
}

/// Sends what was collected, and `value` behind it. A drive that does not take it makes the requests' deadlines pass.
async fn send(to: &mut WriteHalf<Box<dyn Stream>>, collected: &mut BytesMut, value: &[u8]) -> Result<(), (Kind, String)> {
    let sent = async {
        to.write_all(collected).await?;
        to.write_all(value).await?;
        to.flush().await
    };
    sent.await.map_err(|error| (Kind::Unavailable, format!("the connection broke ({error})")))?;
    collected.clear();
    Ok(())
}

/// The task that sends a noop after `interval` without traffic, so that a connection to a dead drive ends.
pub(crate) async fn probe(shared: Weak<Shared>, to: mpsc::WeakUnboundedSender<Outgoing>, header: Header, interval: Duration, patience: Duration) {
    let mut next = Instant::now() + interval;
    loop {
        sleep(next.saturating_duration_since(Instant::now()).max(Duration::from_millis(10))).await;
        let (Some(shared), Some(to)) = (shared.upgrade(), to.upgrade()) else { return };
        next = match shared.idle_since() {
            Some(since) if since.elapsed() < interval => since + interval,
            idle => {
                // Requests under way have deadlines of their own.
                let asks = idle.is_some();
                if asks && !answers_noop(&shared, &to, header.clone(), patience).await {
                    return;
                }
                Instant::now() + interval
            }
        };
    }
}

/// Whether a noop is answered; the connection ends if not.
async fn answers_noop(shared: &Shared, to: &mpsc::UnboundedSender<Outgoing>, header: Header, patience: Duration) -> bool {
    let (reply, answer) = oneshot::channel();
    let noop = Request { header: Header { message_type: Some(MessageType::Noop.into()), ..header }, ..Request::default() };
    if shared.enqueue(to, noop, Proof::Hmac, Some(reply), None).is_err() {
        return false;
    }
    let answered = timeout(patience, answer).await.is_ok();
    if !answered {
        shared.end(Kind::Unavailable, &format!("did not answer a noop for {:.1} s", patience.as_secs_f64()));
    }
    answered
}
