//! Reading objects: from begin to end with reads ahead, or anywhere.
//!
//! Reads run on the runtime, computations on threads of their own, so that both go on at once. What is read ahead is at
//! most `ahead` blocks, and one that waits.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use skytether_common::{Error, Result};
use skytether_volume::BlockDevice;
use skytether_volume::device::LOGICAL;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::descriptor::Object;
use crate::limits::{Limits, Stop};

const BLOCK: u64 = LOGICAL as u64;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes of an object that one read gives.
#[derive(Debug, Clone, Copy)]
struct Piece {
    object: usize,
    /// The first byte that is read, of whole blocks; `None` for zeros.
    place: Option<u64>,
    /// Bytes before those that count.
    skip: u32,
    /// Bytes that count.
    take: u32,
    /// Whether the object ends with it.
    last: bool,
}

/// The pieces of a range of an object.
struct Pieces {
    number: usize,
    range: Range<u64>,
    extent: usize,
    /// The object's byte with which the extent begins.
    start: u64,
    most: u64,
    done: bool,
}

impl Pieces {
    fn new(number: usize, range: Range<u64>, most: u32) -> Self {
        Self { number, range, extent: 0, start: 0, most: u64::from(most).max(BLOCK), done: false }
    }

    fn piece(&mut self, object: &Object) -> Option<Piece> {
        if self.range.is_empty() {
            return Some(Piece { object: self.number, place: None, skip: 0, take: 0, last: true });
        }
        let at = self.range.start;
        let extent = loop {
            let extent = object.extents.get(self.extent)?;
            if at < self.start + extent.length {
                break extent;
            }
            self.start += extent.length;
            self.extent += 1;
        };
        let within = at - self.start;
        if extent.is_hole() {
            let take = (extent.length - within).min(self.range.end - at).min(ZEROS.len() as u64);
            self.range.start += take;
            return Some(Piece { object: self.number, place: None, skip: 0, take: take as u32, last: self.range.is_empty() });
        }
        let skip = within % BLOCK;
        let place = extent.place + within - skip;
        // Neighbours on the device are read together.
        let (mut next, mut end) = (self.extent, self.start + extent.length);
        while end - at + skip < self.most {
            next += 1;
            match object.extents.get(next) {
                Some(follows) if !follows.is_hole() && follows.place == place + (end - at + skip) => end += follows.length,
                _ => break,
            }
        }
        let take = (end.min(self.range.end) - at).min(self.most - skip);
        self.range.start += take;
        Some(Piece { object: self.number, place: Some(place), skip: skip as u32, take: take as u32, last: self.range.is_empty() })
    }
}

impl Pieces {
    /// The next piece of the object, which is the same in each call.
    fn next(&mut self, object: &Object) -> Option<Piece> {
        if self.done {
            return None;
        }
        let piece = self.piece(object);
        self.done = piece.is_none_or(|piece| piece.last);
        piece
    }
}

/// The pieces of all objects, without those of objects that are not wanted any more.
struct AllPieces {
    objects: Arc<[Object]>,
    at: Pieces,
    most: u32,
    wanted: Arc<AtomicUsize>,
}

impl AllPieces {
    fn new(objects: Arc<[Object]>, most: u32, wanted: Arc<AtomicUsize>) -> Self {
        let at = Self::pieces(&objects, 0, most);
        Self { objects, at, most, wanted }
    }

    fn pieces(objects: &[Object], number: usize, most: u32) -> Pieces {
        Pieces::new(number, objects.get(number).map_or(0..0, |object| object.begin..object.length), most)
    }
}

impl Iterator for AllPieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        loop {
            let object = self.objects.get(self.at.number)?;
            if self.at.number >= self.wanted.load(Ordering::Relaxed)
                && let Some(piece) = self.at.next(object)
            {
                return Some(piece);
            }
            self.at = Self::pieces(&self.objects, self.at.number + 1, self.most);
        }
    }
}

async fn read(device: &dyn BlockDevice, piece: Piece) -> Result<Bytes> {
    let Some(place) = piece.place else { return Ok(Bytes::from_static(&ZEROS[..piece.take as usize])) };
    let bytes = device.read(place, (piece.skip + piece.take).next_multiple_of(LOGICAL)).await?;
    if bytes.len() < (piece.skip + piece.take) as usize {
        return Err(Error::internal(format!("{}: {} bytes at {place} came for {}", device.info().name, bytes.len(), piece.skip + piece.take)));
    }
    Ok(bytes.slice(piece.skip as usize..(piece.skip + piece.take) as usize))
}

/// An object of a device, to be read anywhere.
#[derive(Debug, Clone)]
pub struct ObjectReader {
    device: Arc<dyn BlockDevice>,
    object: Arc<Object>,
    most: u32,
}

impl ObjectReader {
    /// Reads `object` of `device`, at most `most` bytes at once.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, object: Object, most: u32) -> Self {
        Self { device, object: Arc::new(object), most }
    }

    /// Bytes that there are, from `begin` on.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.object.seen()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same object, cut to `range`.
    #[must_use]
    pub fn within(&self, range: Range<u64>) -> Self {
        let begin = self.object.begin;
        let end = (begin + range.end.min(self.len())).max(begin);
        let object = Object { begin: (begin + range.start).min(end), length: end, ..(*self.object).clone() };
        Self { object: Arc::new(object), ..self.clone() }
    }

    /// The bytes in `range`, counted from `begin`. The caller bounds their number.
    ///
    /// # Errors
    /// Those of the device; `Invalid` for a range that ends beyond the object.
    pub async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        let begin = self.object.begin;
        if range.start > range.end || range.end > self.len() {
            return Err(Error::invalid(format!("bytes {} to {} are not in an object of {}", range.start, range.end, self.len())));
        }
        let mut pieces = Pieces::new(0, begin + range.start..begin + range.end, self.most);
        let first = pieces.next(&self.object).ok_or_else(|| Error::internal("an object has no pieces"))?;
        let bytes = read(&*self.device, first).await?;
        if first.last {
            return Ok(bytes);
        }
        let mut all = BytesMut::with_capacity((range.end - range.start) as usize);
        all.extend_from_slice(&bytes);
        while let Some(piece) = pieces.next(&self.object) {
            all.extend_from_slice(&read(&*self.device, piece).await?);
        }
        Ok(all.freeze())
    }
}

/// A block of an object, or why it could not be read.
type Block = (usize, Result<Bytes>, bool);

/// The bytes of all objects, one object after the other, in blocks that are read ahead.
#[derive(Debug)]
pub(crate) struct Blocks {
    received: mpsc::Receiver<Block>,
    /// A block of a later object.
    kept: Option<Block>,
    /// Objects before it are not wanted any more.
    wanted: Arc<AtomicUsize>,
    ended: bool,
    at: usize,
    stop: Stop,
}

impl Blocks {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, objects: Arc<[Object]>, limits: &Limits, stop: Stop, tasks: (&TaskTracker, &Handle)) -> Self {
        let (sender, received) = mpsc::channel(1);
        let wanted = Arc::new(AtomicUsize::new(0));
        let (asked, ended, ahead, most) = (wanted.clone(), stop.clone(), limits.ahead, limits.block);
        let reading = async move {
            let pieces = AllPieces::new(objects, most, asked);
            let reads = pieces.map(move |piece| {
                let device = device.clone();
                async move { (piece.object, read(&*device, piece).await, piece.last) }
            });
            let mut reads = futures::stream::iter(reads).buffered(ahead);
            let all = async {
                while let Some(block) = reads.next().await {
                    if sender.send(block).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = all => {}
                // The receiver finds the channel closed and asks why.
                _ = ended.stopped() => {}
                () = sender.closed() => {}
            }
        };
        tasks.0.spawn_on(reading, tasks.1);
        Self { received, kept: None, wanted, ended: false, at: 0, stop }
    }

    /// The next block of an object; `None` at its end. Objects are asked for in ascending order.
    pub(crate) fn next(&mut self, object: usize) -> Result<Option<Bytes>> {
        if object != self.at {
            self.at = object;
            self.ended = false;
            self.wanted.store(object, Ordering::Relaxed);
        }
        if self.ended {
            return Ok(None);
        }
        loop {
            self.stop.check()?;
            let Some((of, bytes, last)) = self.kept.take().or_else(|| self.received.blocking_recv()) else {
                self.stop.check()?;
                return Err(Error::internal("reads ended before the object did"));
            };
            if of < object {
                continue;
            }
            if of > object {
                self.kept = Some((of, bytes, last));
                self.ended = true;
                return Ok(None);
            }
            self.ended = last || bytes.is_err();
            match bytes {
                Ok(bytes) if bytes.is_empty() => {
                    if self.ended {
                        return Ok(None);
                    }
                }
                done => return done.map(Some),
            }
        }
    }
}
