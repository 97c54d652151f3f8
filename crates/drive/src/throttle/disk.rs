//! A store on an emulated disk with a rate and a seek time.
//!
//! There is one disk with one head, and one request at a time. The slices of a partition lie one behind the other, as
//! they were written.
//! - Reading ahead of the head costs the bytes in between, at the disk's rate, or a seek if that is less. Other moves
//!   cost a seek.
//! - A slice at most [`NEAR`] from the last one costs no move, in either direction. So does a slice that is asked for
//!   while a slice that near still waits: it is read with that one. Requests come in any order, and a disk's own queue
//!   and read-ahead compensate for that.
//! - Only reading costs: writes, the index and its listings are free.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Key, PartitionName, Result};
use skytether_emulation::booking::{Accounted, Servers, takes};
use skytether_emulation::wait::owe;
use skytether_scheduler::profile::Profile;
use skytether_store::{SliceStore, StoreLayer};

/// A disk reads a slice at most this many before or behind the last one without a seek.
const NEAR: u32 = 2;

/// The most requests out of order that share one move: the length of a disk's queue.
const QUEUE: u32 = 16;

/// Shorter waits are not worth a timer; they add up and are not forgotten.
const WORTH_WAITING: Duration = Duration::from_micros(100);

/// A read that comes so soon after the last one was done has followed it without a gap: threads don't wake at once.
const FOLLOWS: Duration = Duration::from_micros(200);

/// Where the head is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// A partition, or whatever else has a key.
    file: String,
    slice: u32,
    offset: u64,
}

impl Place {
    fn of(key: &Key) -> Self {
        let text = key.as_str();
        let slice = PartitionName::parse(key).and_then(|(_, slice)| slice);
        // A metadata slice is written after its slices, whose keys begin with its own.
        let file = if slice.is_some() { text.split_inclusive(';').next().unwrap_or(text) } else { text };
        Self { file: file.to_owned(), slice: slice.unwrap_or(0), offset: 0 }
    }

    fn is_near(&self, other: &Self) -> bool {
        self.file == other.file && self.slice.abs_diff(other.slice) <= NEAR
    }
}

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    place: Place,
    /// When the disk comes to it.
    begins: Duration,
    /// How many are read with the same way before it.
    behind: u32,
}

/// Where the head is, and when the disk is free.
#[derive(Debug)]
struct Head {
    at: Option<Place>,
    busy: Servers,
    /// What waits.
    waiting: VecDeque<Waiting>,
    seeks: u64,
}

impl Head {
    /// Books `cost` for a request that came at `now`. Returns when the disk is done.
    fn book(&mut self, place: Place, now: Duration, cost: Duration, behind: u32) -> Duration {
        let done = self.busy.book(now.saturating_sub(FOLLOWS), cost);
        self.waiting.push_back(Waiting { place, begins: done.saturating_sub(cost), behind });
        done
    }
}

/// A store whose reads take as long as on a disk; see [the module](self).
#[derive(Debug)]
pub struct SlowDisk {
    inner: Arc<dyn SliceStore>,
    start: Instant,
    bytes_per_s: f64,
    seek: Duration,
    head: Mutex<Head>,
}

impl SlowDisk {
    /// `inner` on the disk of `profile`.
    #[must_use]
    pub fn new(inner: Arc<dyn SliceStore>, profile: &Profile) -> Self {
        let head = Mutex::new(Head { at: None, busy: Servers::new(1), waiting: VecDeque::new(), seeks: 0 });
        Self { inner, start: Instant::now(), bytes_per_s: profile.disk_bytes_per_s, seek: takes(profile.disk_seek_s, 1.0), head }
    }

    fn head(&self) -> MutexGuard<'_, Head> {
        // Whatever a panic left, the head is somewhere.
        self.head.lock()
    }

    /// What was booked so far, and the number of seeks in it.
    #[must_use]
    pub fn accounted(&self) -> (Accounted, u64) {
        let head = self.head();
        (head.busy.accounted(), head.seeks)
    }

    /// Books a read of `ranges` of the value of `key` that came at `now`. Returns when the disk is done.
    fn book(&self, key: &Key, ranges: &[Range<u64>], now: Duration) -> Duration {
        let place = Place::of(key);
        let mut head = self.head();
        let over = head.waiting.iter().take_while(|waits| waits.begins <= now).count();
        head.waiting.drain(..over);
        let follows = head.at.as_ref().is_some_and(|at| at.is_near(&place));
        if let (false, [range]) = (follows, ranges)
            && range.start == 0
            && let Some(behind) = head.waiting.iter().filter(|waits| waits.place.is_near(&place)).map(|waits| waits.behind + 1).max()
            && behind < QUEUE
        {
            return head.book(place, now, takes(range.end as f64, self.bytes_per_s), behind);
        }
        let mut cost = Duration::ZERO;
        for range in ranges {
            let to = Place { offset: range.start, ..place.clone() };
            let way = match &head.at {
                Some(at) if !at.is_near(&to) => self.seek,
                Some(at) if at.slice == to.slice && to.offset < at.offset => self.seek,
                Some(at) if at.slice == to.slice => self.seek.min(takes((to.offset - at.offset) as f64, self.bytes_per_s)),
                Some(_) => self.seek.min(takes(to.offset as f64, self.bytes_per_s)),
                None => self.seek,
            };
            head.seeks += u64::from(way == self.seek);
            cost += way + takes(range.end.saturating_sub(range.start) as f64, self.bytes_per_s);
            head.at = Some(Place { offset: range.end, ..to });
        }
        head.book(place, now, cost, 0)
    }

    /// Waits until the disk would have read `ranges` for a request that came at `asked`. Within a
    /// [deferred](skytether_emulation::wait::deferred) call, its caller waits instead.
    fn pay(&self, key: &Key, ranges: &[Range<u64>], asked: Duration) {
        owe(self.start + self.book(key, ranges, asked), WORTH_WAITING);
    }
}

impl StoreLayer for SlowDisk {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(self.inner.as_ref())
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        let asked = self.start.elapsed();
        let value = self.inner.get(key)?;
        let all = 0..value.len() as u64;
        self.pay(key, std::slice::from_ref(&all), asked);
        Ok(value)
    }

    fn get_expected(&self, key: &Key, len: u64, crc32c: u32) -> Result<Option<Bytes>> {
        let asked = self.start.elapsed();
        let value = self.inner.get_expected(key, len, crc32c)?;
        let all = 0..value.as_ref().map_or(0, |value| value.len() as u64);
        self.pay(key, std::slice::from_ref(&all), asked);
        Ok(value)
    }

    fn get_ranges_unverified(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let asked = self.start.elapsed();
        let parts = self.inner.get_ranges_unverified(key, ranges)?;
        self.pay(key, ranges, asked);
        Ok(parts)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a read may well be of one range")]
mod tests {
    use super::*;
    use skytether_store::memory::MemoryStore;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// 1 MB/s, and 5 ms for a seek.
    fn disk() -> SlowDisk {
        let profile = Profile { disk_bytes_per_s: 1e6, disk_seek_s: 0.005, ..Profile::shipped("server").unwrap() };
        SlowDisk::new(Arc::new(MemoryStore::new()), &profile)
    }

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    /// How long each of some reads takes on an idle disk.
    fn costs(reads: &[(&str, Vec<Range<u64>>)]) -> Vec<Duration> {
        let disk = disk();
        let took = |(n, (at, ranges)): (usize, &(&str, Vec<Range<u64>>))| {
            let now = MS(1000 * (n as u64 + 1));
            disk.book(&key(at), ranges, now) + FOLLOWS - now
        };
        reads.iter().enumerate().map(took).collect()
    }

    /// Requests that follow one another on the disk share one seek, in whatever order they arrive.
    #[test]
    fn request_next_to_a_queued_one_is_read_with_it() {
        let slice = |n: u32| PartitionName::parse(&key("d/s/0000000000000001.data.0")).unwrap().0.slice_key(n).unwrap();
        let (disk, one) = (disk(), 0..1000u64);
        let book = |n: u32, now: Duration| disk.book(&slice(n), std::slice::from_ref(&one), now + FOLLOWS) - now;
        let begin = MS(1000);
        // Two partitions' worth of requests at once, out of order: three ways, and a millisecond each.
        assert_eq!([0, 40, 80].map(|n| book(n, begin)), [MS(6), MS(12), MS(18)]);
        assert_eq!([41, 82, 39, 43].map(|n| book(n, begin)), [MS(19), MS(20), MS(21), MS(22)]);
        assert_eq!(disk.accounted().1, 3);
        // What is being read does not wait any more; the head is where the last way led.
        assert_eq!(book(1, begin), MS(28));
        assert_eq!((book(81, begin + MS(17)), disk.accounted().1), (MS(12), 4));
        // A queue is not endless: two that go on side by side move it to and fro.
        let later = MS(2000);
        for n in 0..64 {
            book(100 + n, later);
            book(300 + n, later);
        }
        let seeks = disk.accounted().1 - 4;
        assert!((4..=12).contains(&seeks), "{seeks}");
        // One that goes on by itself does not.
        for n in 0..64 {
            book(500 + n, MS(4000));
        }
        assert_eq!(disk.accounted().1, 4 + seeks + 1);
    }

    #[test]
    fn a_seek_is_paid_where_a_read_does_not_follow() {
        let (generation, other) = ("d/s/0000000000000001.data.0", "d/s/0000000000000001.data.1");
        let slice = |n: u32| PartitionName::parse(&key(generation)).unwrap().0.slice_key(n).unwrap().to_string();
        let far = slice(9);
        let (first, second, third) = (slice(0), slice(1), slice(2));
        assert_eq!(
            costs(&[
                (&first, vec![0..10_000]),
                (&second, vec![0..10_000]),
                (&first, vec![10_000..20_000]),
                (&third, vec![0..1000]),
                (&third, vec![2000..3000, 4000..5000]),
                (&third, vec![0..1000]),
                (&far, vec![0..1000]),
                (other, vec![0..1000]),
                (generation, vec![0..1000]),
            ]),
            [5 + 10, 10, 5 + 10, 1, 2 + 2, 5 + 1, 5 + 1, 5 + 1, 5 + 1].map(MS)
        );
    }

    #[test]
    fn one_request_at_a_time() {
        let disk = disk();
        let (a, b) = (key("a/b"), key("c/d"));
        assert_eq!(disk.book(&a, &[0..10_000], MS(100)), MS(115) - FOLLOWS);
        assert_eq!(disk.book(&b, &[0..10_000], MS(101)), MS(130) - FOLLOWS);
        let (accounted, seeks) = disk.accounted();
        assert_eq!((accounted.jobs, accounted.busy, seeks), (2, MS(30), 2));
    }

    #[test]
    fn store_contract_holds() {
        skytether_store::contract::check(|| {
            let profile = Profile { disk_bytes_per_s: 1e12, ..Profile::shipped("unlimited").unwrap() };
            Box::new(SlowDisk::new(Arc::new(MemoryStore::new()), &profile))
        });
    }
}
