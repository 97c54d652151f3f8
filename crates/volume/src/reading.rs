//! Reads of a volume: from its journal, from its extents, and zeros.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::future::try_join_all;
use skytether_common::{Error, Kind, Result};
use tokio::task::spawn_blocking;

use crate::files::FileIo;
use crate::index::{Piece, Source};
use crate::volume::{BLOCK, Volume, read_journal};

/// How often an extent is read that moves meanwhile.
const ATTEMPTS: u32 = 32;

impl Volume {
    /// The content of some blocks.
    pub(crate) async fn read_blocks(&self, blocks: Range<u64>) -> Result<Bytes> {
        let per_extent = self.extent / BLOCK;
        let first = blocks.start / per_extent;
        let within = |extent: u64| {
            let begin = extent * per_extent;
            (blocks.start.max(begin) - begin) as u32..(blocks.end.min(begin + per_extent) - begin) as u32
        };
        if blocks.end <= (first + 1) * per_extent {
            let mut pieces = self.index.read().resolve(first, within(first));
            if let (1, Some(piece)) = (pieces.len(), pieces.pop()) {
                return self.read_piece(first, piece).await;
            }
        }
        // One look for all: what is in the journal stays readable.
        let pieces: Vec<(u64, Piece)> = {
            let index = self.index.read();
            (first..blocks.end.div_ceil(per_extent)).flat_map(|extent| index.resolve(extent, within(extent)).into_iter().map(move |p| (extent, p))).collect()
        };
        let mut out = BytesMut::zeroed(((blocks.end - blocks.start) * BLOCK) as usize);
        let mut loads = Vec::new();
        for (extent, piece) in pieces {
            let from = ((extent * per_extent + u64::from(piece.blocks.start) - blocks.start) * BLOCK) as usize;
            let len = piece.blocks.len() * BLOCK as usize;
            match &piece.source {
                Source::Zeros => {}
                Source::Journal { file, at, crcs } => {
                    let to = &mut out[from..from + len];
                    if self.read_journal(file, *at, crcs, to, self.place(extent, &piece))? {
                        continue;
                    }
                    loads.push((from, extent, piece));
                }
                Source::Stored => loads.push((from, extent, piece)),
            }
        }
        let read = try_join_all(loads.into_iter().map(|(from, extent, piece)| async move { Ok::<_, Error>((from, self.read_piece(extent, piece).await?)) }));
        for (from, bytes) in read.await? {
            out[from..from + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(out.freeze())
    }

    fn place(&self, extent: u64, piece: &Piece) -> u64 {
        extent * self.extent + u64::from(piece.blocks.start) * BLOCK
    }

    async fn read_piece(&self, extent: u64, piece: Piece) -> Result<Bytes> {
        let place = self.place(extent, &piece);
        let len = piece.blocks.len() * BLOCK as usize;
        match piece.source {
            Source::Zeros => Ok(BytesMut::zeroed(len).freeze()),
            Source::Stored => self.read_stored(extent, piece.blocks).await,
            Source::Journal { file, at, crcs } => {
                let mut to = BytesMut::zeroed(len);
                if self.read_journal(&file, at, &crcs, &mut to, place)? {
                    return Ok(to.freeze());
                }
                let what = self.what();
                let read = spawn_blocking(move || read_journal(&what, &file, at, &crcs, &mut to, (place, true)).map(|_| to.freeze())).await;
                read.map_err(|e| Error::internal(format!("{}: a read ended early", self.what())).with_source(e))?
            }
        }
    }

    /// The content of blocks that the index had in the store. A merge may have deleted the extent since then, and
    /// others may have written and deleted it again: what is not there is damage only where no extent moved meanwhile.
    async fn read_stored(&self, extent: u64, blocks: Range<u32>) -> Result<Bytes> {
        let range = blocks.start as usize * BLOCK as usize..blocks.end as usize * BLOCK as usize;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let moves = self.index.read().moves();
            let error = match self.extents.read(extent, range.clone()).await {
                Err(error) if error.kind() == Kind::Corrupt => error,
                read => return read,
            };
            let index = self.index.read();
            if !index.is_stored(extent) {
                // It was unmapped since the index was asked, so this read is one after that.
                return Ok(BytesMut::zeroed(range.len()).freeze());
            }
            if index.moves() == moves || attempts == ATTEMPTS {
                return Err(error);
            }
        }
    }

    /// Whether `to` has the bytes: it has not where the disk would have to be waited for.
    fn read_journal(&self, file: &Arc<dyn FileIo>, at: u64, crcs: &[u32], to: &mut [u8], place: u64) -> Result<bool> {
        read_journal(&self.name, file, at, crcs, to, (place, false))
    }
}
