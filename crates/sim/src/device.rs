//! Models of devices: cores, a disk, a link.

use std::collections::VecDeque;

#[derive(Debug, Clone)]
struct Running<J> {
    job: J,
    left: f64,
    metered: bool,
}

/// Cores that running jobs share equally, none more than one core.
#[derive(Debug, Clone)]
pub struct Cores<J> {
    cores: f64,
    speed: f64,
    jobs: Vec<Running<J>>,
    at: f64,
    /// Seconds in which metered jobs ran, and the work that was done of them, since [`Self::meter`].
    passed: f64,
    worked: f64,
    /// Counts changes, so that a completion that was predicted before a change is known to be void.
    pub change: u64,
}

impl<J> Cores<J> {
    /// `cores` cores of `speed`.
    #[must_use]
    pub fn new(cores: u32, speed: f64) -> Self {
        Self { cores: f64::from(cores), speed, jobs: Vec::new(), at: 0.0, passed: 0.0, worked: 0.0, change: 0 }
    }

    /// Work that a job gets done in a second.
    fn rate(&self) -> f64 {
        self.speed * (self.cores / (self.jobs.len() as f64).max(1.0)).min(1.0)
    }

    fn advance(&mut self, now: f64) {
        let (rate, time) = (self.rate(), now - self.at);
        for job in &mut self.jobs {
            job.left -= time * rate;
            if job.metered {
                self.passed += time;
                self.worked += time * rate;
            }
        }
        self.at = now;
        self.change += 1;
    }

    /// Begins a job of `work` seconds of a core of speed 1.
    pub fn begin(&mut self, now: f64, job: J, work: f64, metered: bool) {
        self.advance(now);
        self.jobs.push(Running { job, left: work, metered });
    }

    /// Changes the speed.
    pub fn set_speed(&mut self, now: f64, speed: f64) {
        self.advance(now);
        self.speed = speed;
    }

    /// When the next job is done, if nothing changes before.
    #[must_use]
    pub fn next(&self) -> Option<f64> {
        let rate = self.rate();
        self.jobs.iter().map(|job| job.left.max(0.0) / rate).reduce(f64::min).map(|least| self.at + least)
    }

    /// Takes out a job that is done.
    pub fn take(&mut self, now: f64) -> Option<J> {
        self.advance(now);
        let at = self.jobs.iter().position(|job| job.left <= 1e-12)?;
        Some(self.jobs.remove(at).job)
    }

    /// The jobs that run, and how much of their work is left now.
    pub fn jobs(&self, now: f64) -> impl Iterator<Item = (&J, f64)> {
        let rate = self.rate();
        self.jobs.iter().map(move |job| (&job.job, job.left - (now - self.at) * rate))
    }

    /// Seconds that metered jobs have run since the last call, summed, and the work that was done of them. `None` where
    /// that is too little to mean something.
    pub fn meter(&mut self, now: f64) -> Option<(f64, f64)> {
        let (rate, time) = (self.rate(), now - self.at);
        let metered = self.jobs.iter().filter(|job| job.metered).count() as f64;
        let (passed, worked) = (self.passed + metered * time, self.worked + metered * time * rate);
        if worked <= 0.0 || passed < 1e-4 {
            return None;
        }
        (self.passed, self.worked) = (-metered * time, -metered * time * rate);
        Some((passed, worked))
    }

    /// Drops jobs.
    pub fn retain(&mut self, now: f64, keep: impl Fn(&J) -> bool) {
        self.advance(now);
        self.jobs.retain(|job| keep(&job.job));
    }
}

/// A disk that reads what is nearest ahead of its head, and starts over at the beginning.
#[derive(Debug, Clone)]
pub struct Disk {
    bytes_per_s: f64,
    seek: f64,
    head: u32,
    waiting: Vec<(u32, f64)>,
    reading: Option<u32>,
}

impl Disk {
    /// An idle disk.
    #[must_use]
    pub fn new(bytes_per_s: f64, seek: f64) -> Self {
        Self { bytes_per_s, seek, head: 0, waiting: Vec::new(), reading: None }
    }

    /// Asks for the slice at place `place`.
    pub fn ask(&mut self, place: u32, bytes: f64) {
        self.waiting.push((place, bytes));
    }

    /// How many reads wait or are under way.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.waiting.len() + usize::from(self.reading.is_some())
    }

    /// Begins the next read, if none is under way; how long it takes.
    pub fn start(&mut self) -> Option<f64> {
        if self.reading.is_some() {
            return None;
        }
        let head = self.head;
        let (at, _) = self.waiting.iter().enumerate().min_by_key(|(_, (place, _))| (*place < head, *place))?;
        let (place, bytes) = self.waiting.swap_remove(at);
        // A gap is read over where that is quicker than a seek.
        let gap = if place >= head { f64::from(place - head) * bytes / self.bytes_per_s } else { f64::INFINITY };
        self.head = place + 1;
        self.reading = Some(place);
        Some(gap.min(self.seek) + bytes / self.bytes_per_s)
    }

    /// The read under way is done.
    pub fn done(&mut self) -> Option<u32> {
        self.reading.take()
    }

    /// Forgets everything, as when the power goes.
    pub fn reset(&mut self) {
        self.waiting.clear();
        self.reading = None;
        self.head = 0;
    }
}

/// Messages in parts through a pipe of some rate, one after the other.
#[derive(Debug, Clone)]
pub struct Link<M> {
    bytes_per_s: f64,
    waiting: VecDeque<(f64, Option<M>)>,
    moving: Option<(f64, Option<M>)>,
    queued: f64,
}

/// The largest part, bytes: parts of several senders take turns on a shared link.
const PART: f64 = 262_144.0;

impl<M> Link<M> {
    /// An idle link.
    #[must_use]
    pub fn new(bytes_per_s: f64) -> Self {
        Self { bytes_per_s, waiting: VecDeque::new(), moving: None, queued: 0.0 }
    }

    /// Queues a message of `bytes` in parts; the last part carries the message.
    pub fn send(&mut self, mut bytes: f64, message: M) {
        self.queued += bytes;
        while bytes > PART {
            self.waiting.push_back((PART, None));
            bytes -= PART;
        }
        self.waiting.push_back((bytes, Some(message)));
    }

    /// Puts a part into the queue.
    pub fn pass(&mut self, bytes: f64, message: Option<M>) {
        self.queued += bytes;
        self.waiting.push_back((bytes, message));
    }

    /// Begins the next part, if none moves; how long it takes.
    pub fn start(&mut self) -> Option<f64> {
        if self.moving.is_some() {
            return None;
        }
        let part = self.waiting.pop_front()?;
        let time = part.0 / self.bytes_per_s;
        self.moving = Some(part);
        Some(time)
    }

    /// The part that moved has arrived.
    pub fn done(&mut self) -> Option<(f64, Option<M>)> {
        let part = self.moving.take()?;
        self.queued -= part.0;
        Some(part)
    }

    /// Bytes that wait or move.
    #[must_use]
    pub fn queued(&self) -> f64 {
        self.queued
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.waiting.clear();
        self.moving = None;
        self.queued = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_jobs_on_two_cores_take_turns() {
        let mut cores = Cores::new(2, 0.5);
        for job in 0..3 {
            cores.begin(0.0, job, 1.0, false);
        }
        assert!((cores.next().unwrap() - 3.0).abs() < 1e-9, "three seconds of work at a third of half of two cores each");
        cores.set_speed(1.5, 1.0);
        assert!((cores.next().unwrap() - 2.25).abs() < 1e-9, "the second half at twice the speed");
        assert_eq!(cores.take(2.0), None);
        assert!(cores.take(2.25).is_some());
    }

    #[test]
    fn jobs_share_and_meters_tell_how_long_they_took() {
        let mut cores = Cores::new(1, 0.5);
        cores.begin(0.0, "lane", 1.0, true);
        cores.begin(1.0, "send", 0.5, false);
        assert_eq!(cores.meter(1.0), Some((1.0, 0.5)));
        assert!((cores.next().unwrap() - 3.0).abs() < 1e-9, "both have half of the core");
        assert_eq!(cores.meter(2.0), Some((1.0, 0.25)), "with what nobody has counted yet");
        assert!(cores.take(3.0).is_some() && cores.take(3.0).is_some());
        let (passed, worked) = cores.meter(3.0).unwrap();
        assert!((passed - 1.0).abs() < 1e-9 && (worked - 0.25).abs() < 1e-9, "{passed} {worked}");
        assert_eq!(cores.meter(9.0), None, "nothing has run");
    }

    #[test]
    fn reading_in_order_costs_no_seek() {
        let mut disk = Disk::new(1e6, 0.01);
        for place in [1, 0, 2] {
            disk.ask(place, 1e4);
        }
        for expected in 0..3 {
            assert!((disk.start().unwrap() - 0.01).abs() < 1e-9);
            assert_eq!(disk.start(), None, "one at a time");
            assert_eq!(disk.done(), Some(expected));
        }
        disk.ask(100, 1e4);
        assert!((disk.start().unwrap() - 0.02).abs() < 1e-9, "a seek");
        disk.done();
        disk.ask(0, 1e4);
        assert!((disk.start().unwrap() - 0.02).abs() < 1e-9, "back as well");
    }

    #[test]
    fn parts_of_a_message_arrive_with_its_last() {
        let mut link = Link::new(PART);
        link.send(2.5 * PART, "a");
        let mut time = 0.0;
        let mut arrived = None;
        while let Some(part) = link.start() {
            time += part;
            arrived = link.done().unwrap().1.or(arrived);
        }
        assert_eq!((arrived, time), (Some("a"), 2.5));
        assert_eq!(link.queued(), 0.0);
    }
}
