//! A link: bytes of messages in each direction at a rate, and a latency for each message in addition. Messages travel
//! in frames, and streams take turns, as in HTTP/2.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::Stream;
use parking_lot::{Mutex, MutexGuard};
use skytether_scheduler::profile::Profile;

use crate::booking::{Accounted, Servers, takes};
use crate::timer::{Sleep, sleep_until};

/// A message this soon after the last one has followed it without a gap, because threads wake with a delay.
const FOLLOWS: Duration = Duration::from_micros(200);

/// The largest frame, bytes: HTTP/2's, unless more is agreed on.
const FRAME: u64 = 16_384;

/// The most messages of one stream that are under way.
const UNDER_WAY: usize = 64;

/// Which way a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the device.
    Down,
    /// From the device.
    Up,
}

/// A device's link to its parent.
#[derive(Debug)]
pub struct Link {
    start: Instant,
    bytes_per_s: f64,
    latency: Duration,
    down: Mutex<Way>,
    up: Mutex<Way>,
}

/// One direction.
#[derive(Debug)]
struct Way {
    /// All bytes.
    all: Servers,
    /// Messages that have not left yet, each with how long the link takes for its bytes.
    under_way: Vec<(Duration, Sent)>,
}

/// A message on its way; times since the link's start. Messages that overtake it delay it, so its time is read again
/// when it was due.
#[derive(Debug, Clone)]
struct Sent {
    /// When its last byte has left, nanoseconds.
    left: Arc<AtomicU64>,
    /// When it was sent.
    at: Duration,
    latency: Duration,
}

impl Sent {
    /// When its last byte has left, and the next message may, as far as is known now.
    fn left(&self) -> Duration {
        Duration::from_nanos(self.left.load(Ordering::Relaxed))
    }

    /// When it is there, as far as is known now.
    fn arrives(&self) -> Duration {
        self.left().max(self.at) + self.latency
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Link {
    /// The link of `profile`.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        let [down, up] = [(); 2].map(|()| Mutex::new(Way { all: Servers::new(1), under_way: Vec::new() }));
        Self { start: Instant::now(), bytes_per_s: profile.link_bytes_per_s(), latency: takes(profile.link_latency_s, 1.0), down, up }
    }

    fn way(&self, direction: Direction) -> MutexGuard<'_, Way> {
        let way = match direction {
            Direction::Down => &self.down,
            Direction::Up => &self.up,
        };
        // A booking is whole or was not begun.
        way.lock()
    }

    /// Books a message of `bytes` that is ready at `now`. It waits for what is under way, of each message for no more
    /// than it has bytes itself, or for a frame if it has less: they take turns. Those that it overtakes are put off by
    /// its bytes, so that no more ever leave than the link moves.
    fn send(&self, direction: Direction, now: Duration, bytes: u64) -> Sent {
        let (ready, takes_of) = (now.saturating_sub(FOLLOWS), |bytes: u64| takes(bytes as f64, self.bytes_per_s));
        let (own, turn) = (takes_of(bytes), takes_of(bytes.max(FRAME)));
        let mut way = self.way(direction);
        way.under_way.retain(|(_, sent)| sent.left() > ready);
        let others = way.under_way.iter().fold(Duration::ZERO, |sum, (takes, sent)| sum.saturating_add((*takes).min(sent.left() - ready).min(turn)));
        let overtakes = way.under_way.iter().any(|(takes, _)| *takes > own);
        let (last, first) = (way.all.book(ready, own), ready.saturating_add(own).saturating_add(others));
        let left = if overtakes && first < last { first } else { last };
        if left < last {
            // Not all of the messages that leave at about that time are through in time.
            for (_, sent) in way.under_way.iter().filter(|(_, sent)| sent.left() > now.max(left - own)) {
                sent.left.store(nanos(sent.left().saturating_add(own)), Ordering::Relaxed);
            }
        }
        let sent = Sent { left: Arc::new(AtomicU64::new(nanos(left))), at: now, latency: self.latency };
        way.under_way.push((own, sent.clone()));
        sent
    }

    /// What was booked in `direction` so far: messages, and the time that their bytes take.
    #[must_use]
    pub fn accounted(&self, direction: Direction) -> Accounted {
        self.way(direction).all.accounted()
    }

    /// Ready when a message of `bytes` that goes off now is there.
    pub async fn pass(&self, direction: Direction, bytes: u64) {
        let sent = self.send(direction, self.start.elapsed(), bytes);
        while self.start.elapsed() < sent.arrives() {
            sleep_until(self.start + sent.arrives()).await;
        }
    }

    /// `messages` as they arrive at the other end; `bytes` gives the length of each. The next one is taken when the
    /// last one has left, so latencies do not add up.
    pub fn stream<S, B>(self: &Arc<Self>, direction: Direction, messages: S, bytes: B) -> Passing<S, B>
    where
        S: Stream + Unpin,
        B: Fn(&S::Item) -> u64,
    {
        Passing { link: Arc::clone(self), direction, messages: Some(messages), bytes, last: None, under_way: VecDeque::new(), waiting: None }
    }
}

/// See [`Link::stream`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Passing<S: Stream, B> {
    link: Arc<Link>,
    direction: Direction,
    /// Nothing after its end.
    messages: Option<S>,
    bytes: B,
    last: Option<Sent>,
    under_way: VecDeque<(Sent, S::Item)>,
    waiting: Option<(Duration, Sleep)>,
}

impl<S: Stream, B> Unpin for Passing<S, B> {}

impl<S, B> Stream for Passing<S, B>
where
    S: Stream + Unpin,
    B: Fn(&S::Item) -> u64,
{
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.get_mut();
        loop {
            let now = this.link.start.elapsed();
            let mut more = this.under_way.len() < UNDER_WAY;
            let left = this.last.as_ref().map_or(Duration::ZERO, Sent::left);
            if more
                && left <= now
                && let Some(messages) = &mut this.messages
            {
                match Pin::new(messages).poll_next(context) {
                    Poll::Ready(Some(message)) => {
                        let sent = this.link.send(this.direction, now, (this.bytes)(&message));
                        this.last = Some(sent.clone());
                        this.under_way.push_back((sent, message));
                        continue;
                    }
                    Poll::Ready(None) => this.messages = None,
                    // It wakes us by itself.
                    Poll::Pending => more = false,
                }
            }
            let Some(arrives) = this.under_way.front().map(|(sent, _)| sent.arrives()) else {
                return if this.messages.is_none() { Poll::Ready(None) } else { Poll::Pending };
            };
            if arrives <= now {
                return Poll::Ready(this.under_way.pop_front().map(|(_, message)| message));
            }
            let until = if more && this.messages.is_some() { arrives.min(left) } else { arrives };
            if this.waiting.as_ref().is_none_or(|(of, _)| *of != until) {
                this.waiting = Some((until, sleep_until(this.link.start + until)));
            }
            if let Some((_, sleep)) = &mut this.waiting
                && Pin::new(sleep).poll(context).is_pending()
            {
                return Poll::Pending;
            }
            this.waiting = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, stream};

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn link(bits_per_s: f64, latency_s: f64) -> Arc<Link> {
        Arc::new(Link::new(&Profile { link_bits_per_s: bits_per_s, link_latency_s: latency_s, ..Profile::shipped("server").unwrap() }))
    }

    #[test]
    fn bytes_follow_one_another_and_latency_does_not() {
        // 1 MB per second.
        let link = link(8e6, 0.005);
        let first = link.send(Direction::Up, MS(1000), 10_000);
        assert_eq!((first.left(), first.arrives()), (MS(1010) - FOLLOWS, MS(1015) - FOLLOWS));
        let second = link.send(Direction::Up, MS(1000), 10_000);
        assert_eq!((second.left(), second.arrives()), (MS(1020) - FOLLOWS, MS(1025) - FOLLOWS));
        let other = link.send(Direction::Down, MS(1000), 0);
        assert_eq!(other.arrives(), MS(1005), "the other direction is free");
        assert_eq!(link.send(Direction::Up, MS(5000), 1000).left(), MS(5001) - FOLLOWS, "idle time is not saved up");
        assert_eq!((link.accounted(Direction::Up).jobs, link.accounted(Direction::Up).busy), (3, MS(21)));
    }

    /// A large message is delayed by the bytes of the small ones, and by no more.
    #[test]
    fn small_messages_interleave_with_frames_of_large_ones() {
        // A second for the large one, a millisecond for a small one, 16.384 for a frame.
        let link = link(8e6, 0.0);
        let frame = takes(FRAME as f64, 1e6);
        let large = link.send(Direction::Up, MS(1000), 1_000_000);
        let small = link.send(Direction::Up, MS(1000), 1000);
        let next = link.send(Direction::Up, MS(1000), 1000);
        assert_eq!([&large, &small, &next].map(|sent| sent.left() + FOLLOWS), [MS(2002), MS(1001) + frame, MS(1002) + frame]);
        let last = link.send(Direction::Up, MS(1000), 1_000_000);
        assert_eq!(last.left() + FOLLOWS, MS(3002));
        assert_eq!(link.accounted(Direction::Up).busy, MS(2002));
    }

    #[test]
    fn messages_take_turns() {
        // Three of a second each, and one of a tenth: it is there after as much of each.
        let link = link(8e6, 0.0);
        let large = [(); 3].map(|()| link.send(Direction::Up, MS(1000), 1_000_000));
        assert_eq!(large.each_ref().map(|sent| sent.left() + FOLLOWS), [MS(2000), MS(3000), MS(4000)]);
        let rows = link.send(Direction::Up, MS(1000), 100_000);
        assert_eq!(rows.left() + FOLLOWS, MS(1400));
        assert_eq!(large.each_ref().map(|sent| sent.left() + FOLLOWS), [MS(2100), MS(3100), MS(4100)], "they are put off");
        // A message that has almost left only waits for its rest, and is not delayed.
        let more = link.send(Direction::Up, MS(2050), 100_000);
        assert_eq!(more.left() + FOLLOWS, MS(2050 + 50 + 100 + 100 + 100));
        assert_eq!(large.each_ref().map(|sent| sent.left() + FOLLOWS), [MS(2100), MS(3200), MS(4200)]);
        // All bytes count in the end.
        assert_eq!(link.send(Direction::Up, MS(2050), 1_000_000).left() + FOLLOWS, MS(1000 + 3000 + 200 + 1000));
    }

    #[test]
    fn overtaking_messages_are_paid_for_at_once_and_only_once() {
        // While a second's worth is under way, half as much overtakes it.
        let link = link(8e6, 0.0);
        let large = link.send(Direction::Up, MS(1000), 1_000_000);
        let mut now = MS(1000);
        for n in 1..=5 {
            let small = link.send(Direction::Up, now, 100_000);
            assert_eq!(small.left() + FOLLOWS, now + MS(200), "it takes turns with the large one");
            assert_eq!(large.left() + FOLLOWS, MS(2000 + 100 * n));
            now = small.left() + FOLLOWS;
        }
        let (now, frame) = (MS(2001), takes(FRAME as f64, 1e6));
        let last = link.send(Direction::Up, now, 100);
        assert!(last.left() <= now + frame + takes(100.0, 1e6), "{last:?}");
        assert_eq!(large.left() + FOLLOWS, MS(2500) + takes(100.0, 1e6));
    }

    #[test]
    fn link_sends_no_more_than_its_rate() {
        // Whatever is sent when: of each moment's messages, those that have left by then had the time for it.
        let mut random = fastrand::Rng::with_seed(7);
        let mut draw = |below: u64| random.u64(..below);
        for _ in 0..50 {
            let link = link(8e6, 0.0);
            let (mut now, mut all) = (MS(1000), Vec::new());
            for _ in 0..60 {
                let bytes = [100, 2000, 16_000, 60_000, 100_000, 900_000][draw(6) as usize] + draw(100);
                all.push((takes(bytes as f64, 1e6), link.send(Direction::Up, now, bytes)));
                now += Duration::from_micros(draw(4) * draw(60_000));
            }
            for (_, at) in &all {
                let moved: Duration = all.iter().filter(|(_, sent)| sent.left() <= at.left()).map(|(takes, _)| *takes).sum();
                // The next message begins earlier by that time.
                assert!(moved <= at.left() + 2 * FOLLOWS - MS(1000), "{moved:?} by {:?}", at.left());
            }
            let sum: Duration = all.iter().map(|(takes, _)| *takes).sum();
            assert_eq!(link.accounted(Direction::Up).busy, sum);
        }
    }

    #[tokio::test]
    async fn a_stream_passes_in_order_and_pays_for_its_bytes() {
        let (link, start) = (link(8e6, 0.003), Instant::now());
        let came: Vec<u64> = link.stream(Direction::Up, stream::iter((0..8).map(|n| n * 500)), |n| *n).collect().await;
        assert_eq!(came, (0..8).map(|n| n * 500).collect::<Vec<_>>());
        let accounted = link.accounted(Direction::Up);
        assert_eq!((accounted.jobs, accounted.busy), (8, MS(14)));
        assert!(start.elapsed() + FOLLOWS >= MS(14 + 3), "bytes and one latency");
        // Two streams share it.
        let both = || link.stream(Direction::Up, stream::iter([1000u64; 3]), |n| *n).collect::<Vec<_>>();
        let start = Instant::now();
        futures::join!(both(), both());
        assert_eq!(link.accounted(Direction::Up).busy, MS(20));
        assert!(start.elapsed() + FOLLOWS >= MS(6 + 3));
    }

    #[tokio::test]
    async fn idle_stream_does_not_delay_messages_in_flight() {
        let link = link(1e9, 0.001);
        let (sender, receiver) = futures::channel::mpsc::unbounded();
        let mut passing = link.stream(Direction::Down, receiver, |_: &u8| 100);
        sender.unbounded_send(1).unwrap();
        assert_eq!(passing.next().await, Some(1));
        sender.unbounded_send(2).unwrap();
        drop(sender);
        assert_eq!((passing.next().await, passing.next().await), (Some(2), None));
        link.pass(Direction::Down, 5).await;
        assert_eq!(link.accounted(Direction::Down).jobs, 3);
    }
}
