//! A run: entries of one value form, as a stream of records per gene, in memory.
//!
//! Each gene has a *tail*, one cache line that new records go into; full tails move to the gene's chain of chunks in a
//! common arena. So an entry touches one cache line, nothing is ever reallocated, and a run's memory is that of its
//! records plus half a chunk per gene.

use skytether_common::{Detail, Error, Result};

use crate::numbers::Form;
use crate::records::{self, Code, Decoded, RECORD, Stop};

/// Bytes of records in a tail, and in a piece of a chunk.
const PIECE: usize = 48;
/// Pieces in a chunk.
const PIECES: usize = 5;
/// Bytes of records in a chunk.
const DATA: usize = PIECE * PIECES;
/// A chunk: records and the number of the gene's next chunk.
const CHUNK_BYTES: usize = DATA + 4;
/// Chunks allocated at once.
const SLAB: usize = 4096;
/// Instead of a chunk's number: there is none, or the tail.
const NONE: u32 = u32::MAX;
/// Bytes decoded at once.
const DECODE_BYTES: usize = 16 * 1024;
/// Bytes of untidy streams sorted per round and thread.
const SORT_BYTES: usize = 4 << 20;

/// What a gene costs besides its records.
pub(crate) const BYTES_PER_GENE: usize = size_of::<Tail>() + size_of::<u32>();

/// Genes and their sorted streams.
type Sorted = Vec<(u32, Vec<u8>)>;

#[derive(Debug, Clone)]
#[repr(C, align(64))]
struct Tail {
    /// The smallest cell that can follow without a jump backwards.
    next: u32,
    /// Entries so far.
    count: u32,
    /// The chunk being filled, or [`NONE`].
    chunk: u32,
    /// Bytes in use here.
    len: u8,
    /// Pieces in use in `chunk`.
    used: u8,
    /// Whether cells are out of order or repeated.
    untidy: bool,
    bytes: [u8; PIECE],
}

const EMPTY: Tail = Tail { next: 0, count: 0, chunk: NONE, len: 0, used: 0, untidy: false, bytes: [0; PIECE] };

#[derive(Debug, Default)]
struct Arena {
    slabs: Vec<Vec<[u8; CHUNK_BYTES]>>,
    len: usize,
    budget: usize,
}

impl Arena {
    #[inline]
    fn chunk(&self, number: u32) -> &[u8; CHUNK_BYTES] {
        &self.slabs[number as usize / SLAB][number as usize % SLAB]
    }

    #[inline]
    fn chunk_mut(&mut self, number: u32) -> &mut [u8; CHUNK_BYTES] {
        &mut self.slabs[number as usize / SLAB][number as usize % SLAB]
    }

    fn next(&self, number: u32) -> u32 {
        let c = self.chunk(number);
        u32::from_le_bytes([c[DATA], c[DATA + 1], c[DATA + 2], c[DATA + 3]])
    }

    /// A new chunk, unless the budget is used up.
    fn allocate(&mut self) -> Option<u32> {
        if self.len >= self.budget {
            return None;
        }
        if self.len.is_multiple_of(SLAB) {
            self.slabs.push(Vec::with_capacity(SLAB.min(self.budget - self.len)));
        }
        let number = u32::try_from(self.len).ok().filter(|n| *n != NONE)?;
        self.slabs.last_mut()?.push([0; CHUNK_BYTES]);
        self.len += 1;
        Some(number)
    }
}

/// Whether an entry was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Yes,
    /// The budget is used up and nothing was changed: spill and try again.
    Full,
    /// The gene has more entries than there are cells.
    TooMany,
}

/// The place at which reading a gene's stream continues.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor {
    chunk: u32,
    at: u32,
    next: u32,
    /// No cell below this one remains (`u32::MAX`: none at all).
    pub(crate) pending: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) form: Form,
    n_cells: u32,
    tails: Vec<Tail>,
    heads: Vec<u32>,
    arena: Arena,
}

impl Run {
    /// An empty run that may use `budget` bytes for chunks (at least a few chunks).
    pub(crate) fn new(form: Form, n_cells: u32, n_genes: u32, budget: usize) -> Self {
        let genes = n_genes as usize;
        let arena = Arena { budget: (budget / CHUNK_BYTES).max(8), ..Arena::default() };
        Self { form, n_cells, tails: vec![EMPTY; genes], heads: vec![NONE; genes], arena }
    }

    /// Forgets all entries and keeps the gene table; the form may change.
    pub(crate) fn reset(&mut self, form: Form, budget: usize) {
        self.form = form;
        self.tails.fill(EMPTY);
        self.arena = Arena { budget: (budget / CHUNK_BYTES).max(8), ..Arena::default() };
    }

    /// Bytes of chunks in use.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.arena.len * CHUNK_BYTES
    }

    /// Whether there is no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.tails.iter().all(|t| t.count == 0)
    }

    /// Entries of a gene.
    pub(crate) fn count(&self, gene: u32) -> u32 {
        self.tails[gene as usize].count
    }

    /// Adds an entry; `gene` is below the number of genes.
    #[inline(always)]
    pub(crate) fn push<C: Code>(&mut self, gene: u32, cell: u32, code: C) -> Taken {
        let tail = &mut self.tails[gene as usize];
        // A jump backwards wraps around to a large gap.
        let gap = cell.wrapping_sub(tail.next);
        let len = tail.len as usize;
        if gap < 0x80 && code.is_short() && len < PIECE - C::SHORT {
            #[allow(clippy::cast_possible_truncation)]
            {
                tail.bytes[len] = gap as u8;
                code.put_short(&mut tail.bytes[len + 1..]);
                tail.len += 1 + C::SHORT as u8;
            }
            tail.next = cell + 1;
            tail.count = tail.count.wrapping_add(1);
            return Taken::Yes;
        }
        self.push_slowly(gene, cell, code)
    }

    #[inline(never)]
    #[allow(clippy::cast_possible_truncation)]
    fn push_slowly<C: Code>(&mut self, gene: u32, cell: u32, code: C) -> Taken {
        let mut record = [0; RECORD];
        let tail = &mut self.tails[gene as usize];
        let (n, back) = records::put(&mut record, tail.next, cell, code);
        let len = tail.len as usize;
        // All copies are of fixed length, which makes them single instructions instead of calls.
        if len + RECORD <= PIECE {
            tail.bytes[len..len + RECORD].copy_from_slice(&record);
            tail.len += n as u8;
        } else {
            let mut joined = [0; PIECE + RECORD];
            joined[..PIECE].copy_from_slice(&tail.bytes);
            joined[len..len + RECORD].copy_from_slice(&record);
            if len + n > PIECE {
                if tail.count > self.n_cells {
                    return Taken::TooMany;
                }
                if tail.chunk == NONE || tail.used as usize == PIECES {
                    let Some(new) = self.arena.allocate() else { return Taken::Full };
                    match tail.chunk {
                        NONE => self.heads[gene as usize] = new,
                        old => self.arena.chunk_mut(old)[DATA..].copy_from_slice(&new.to_le_bytes()),
                    }
                    (tail.chunk, tail.used) = (new, 0);
                }
                let at = tail.used as usize * PIECE;
                self.arena.chunk_mut(tail.chunk)[at..at + PIECE].copy_from_slice(&joined[..PIECE]);
                tail.used += 1;
                tail.bytes[..RECORD].copy_from_slice(&joined[PIECE..]);
                tail.len = (len + n - PIECE) as u8;
            } else {
                tail.bytes.copy_from_slice(&joined[..PIECE]);
                tail.len += n as u8;
            }
        }
        tail.next = cell + 1;
        tail.count = tail.count.wrapping_add(1);
        tail.untidy |= back;
        Taken::Yes
    }

    /// The start of a gene's stream.
    pub(crate) fn start(&self, gene: u32) -> Cursor {
        let tail = &self.tails[gene as usize];
        let chunk = if tail.chunk == NONE { NONE } else { self.heads[gene as usize] };
        Cursor { chunk, at: 0, next: 0, pending: if tail.count == 0 { u32::MAX } else { 0 } }
    }

    /// The rest of the chunk (or tail) at a place of a gene's stream, and the place after it.
    fn piece(&self, tail: &Tail, chunk: u32, at: u32) -> (&[u8], Option<u32>) {
        if chunk == NONE {
            return (&[], None);
        }
        if chunk == tail.chunk {
            (&self.arena.chunk(chunk)[at as usize..tail.used as usize * PIECE], Some(NONE))
        } else {
            (&self.arena.chunk(chunk)[at as usize..DATA], Some(self.arena.next(chunk)))
        }
    }

    /// Copies up to about `most` bytes of the stream from the cursor on; returns whether that is all there is.
    fn copy(&self, gene: u32, cursor: &Cursor, most: usize, out: &mut Vec<u8>) -> bool {
        let tail = &self.tails[gene as usize];
        let (mut chunk, mut at) = (cursor.chunk, cursor.at);
        out.clear();
        while out.len() < most {
            match self.piece(tail, chunk, at) {
                (bytes, Some(next)) => {
                    out.extend_from_slice(bytes);
                    (chunk, at) = (next, 0);
                }
                (_, None) => {
                    out.extend_from_slice(&tail.bytes[at as usize..tail.len as usize]);
                    return true;
                }
            }
        }
        false
    }

    /// Moves the cursor on.
    fn advance(&self, gene: u32, cursor: &mut Cursor, mut by: usize) {
        let tail = &self.tails[gene as usize];
        while by > 0 {
            match self.piece(tail, cursor.chunk, cursor.at) {
                (bytes, Some(next)) if bytes.len() <= by => {
                    by -= bytes.len();
                    (cursor.chunk, cursor.at) = (next, 0);
                }
                _ => {
                    cursor.at += u32::try_from(by).unwrap_or(0);
                    by = 0;
                }
            }
        }
    }

    /// Appends the entries of a tidy gene with cells below `end`, from the cursor on.
    pub(crate) fn read<T: Decoded>(
        &self,
        gene: u32,
        cursor: &mut Cursor,
        end: u32,
        scratch: &mut Vec<u8>,
        cells: &mut Vec<u32>,
        values: &mut Vec<T>,
    ) -> Result<()> {
        while cursor.pending < end {
            let last = self.copy(gene, cursor, DECODE_BYTES, scratch);
            let (used, stop) = records::decode(scratch, last, self.form, &mut cursor.next, end, cells, values)?;
            self.advance(gene, cursor, used);
            match stop {
                Stop::Beyond(cell) => cursor.pending = cell,
                Stop::Piece if last => cursor.pending = u32::MAX,
                Stop::Piece => {}
            }
        }
        Ok(())
    }

    /// Sorts the genes whose cells did not come in order, on up to `threads` threads.
    ///
    /// # Errors
    /// A cell that occurs twice in a gene.
    pub(crate) fn tidy(&mut self, threads: usize) -> Result<()> {
        let untidy: Vec<u32> = (0..).zip(&self.tails).filter(|(_, t)| t.untidy).map(|(g, _)| g).collect();
        let mut rest = untidy.as_slice();
        while !rest.is_empty() {
            // Rounds have a bounded size, because sorted streams take memory in addition to the run until they are
            // written back.
            let mut rounds = Vec::new();
            for _ in 0..threads.max(1) {
                let mut bytes = 0;
                let n = rest.iter().take_while(|g| {
                    let before = bytes;
                    bytes += self.count(**g) as usize * 2;
                    before < SORT_BYTES
                });
                let n = n.count();
                let (round, after) = rest.split_at(n);
                rest = after;
                if !round.is_empty() {
                    rounds.push(round);
                }
            }
            let this = &*self;
            let sorted: Vec<Result<Sorted>> = if let [only] = rounds[..] {
                vec![this.sort_all(only)]
            } else {
                std::thread::scope(|scope| {
                    let started: Vec<_> = rounds.iter().map(|round| scope.spawn(|| this.sort_all(round))).collect();
                    let lost = || Err(Error::internal("a sorting thread of the transposition ended early"));
                    started.into_iter().map(|t| t.join().unwrap_or_else(|_| lost())).collect()
                })
            };
            for round in sorted {
                for (gene, bytes) in round? {
                    self.rewrite(gene, &bytes);
                }
            }
        }
        Ok(())
    }

    fn sort_all(&self, genes: &[u32]) -> Result<Sorted> {
        let (mut scratch, mut entries) = (Vec::new(), Vec::new());
        genes.iter().map(|gene| Ok((*gene, self.sorted(*gene, &mut scratch, &mut entries)?))).collect()
    }

    fn sorted(&self, gene: u32, scratch: &mut Vec<u8>, entries: &mut Vec<(u32, u64)>) -> Result<Vec<u8>> {
        self.copy(gene, &self.start(gene), usize::MAX, scratch);
        entries.clear();
        records::decode_untidy(scratch, self.form, entries)?;
        entries.sort_unstable_by_key(|e| e.0);
        if let Some(pair) = entries.windows(2).find(|w| w[0].0 == w[1].0) {
            return Err(repeated(gene, pair[0].0));
        }
        let mut out = Vec::with_capacity(scratch.len());
        let mut next = 0;
        for &(cell, bits) in &*entries {
            records::push_bits(&mut out, self.form, cell - next, bits);
            next = cell + 1;
        }
        Ok(out)
    }

    /// Puts a sorted stream in an untidy one's place. It is never longer: sorting only narrows the gaps, and what was a
    /// jump backwards took the length of the longest gap.
    fn rewrite(&mut self, gene: u32, bytes: &[u8]) {
        let head = self.heads[gene as usize];
        let tail = &mut self.tails[gene as usize];
        tail.untidy = false;
        let (mut chunk, mut rest) = (if tail.chunk == NONE { NONE } else { head }, bytes);
        // A full last piece stays in the tail, as it does when records are added.
        let mut last = (NONE, 0u8);
        while rest.len() > PIECE {
            let pieces = ((rest.len() - 1) / PIECE).min(PIECES);
            let (now, after) = rest.split_at(pieces * PIECE);
            self.arena.chunk_mut(chunk)[..now.len()].copy_from_slice(now);
            last = (chunk, u8::try_from(pieces).unwrap_or(0));
            chunk = self.arena.next(chunk);
            rest = after;
        }
        (tail.chunk, tail.used) = last;
        tail.bytes[..rest.len()].copy_from_slice(rest);
        tail.len = u8::try_from(rest.len()).unwrap_or(0);
    }
}

/// The error for a repeated entry.
pub(crate) fn repeated(gene: u32, cell: u32) -> Error {
    Error::invalid(format!("gene {gene}, cell {cell}: there is more than one entry; sum duplicates first (in scipy: sum_duplicates)"))
        .with_detail(Detail::UnfitEntry { gene, cell: cell.into() })
}
