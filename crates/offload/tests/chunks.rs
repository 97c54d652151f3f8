//! Chunks of a whole: what they answer, put together, equals what the whole answers, for any cut.

use fastrand::Rng;
use skytether_offload::chunks::straddling;
use skytether_offload::codes::{item_flag, mode, opcode, tag};
use skytether_offload::operations::Counts;
use skytether_offload::{Descriptor, Item, Object};

use crate::util::{Disk, exec, text, wait};

/// The whole cut at random places, or after each byte.
fn cuts(rng: &mut Rng, len: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> =
        if rng.u8(..4) == 0 { (0..len).step_by(rng.usize(1..40)).collect() } else { (0..rng.usize(..6)).map(|_| rng.usize(..=len)).collect() };
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts
}

struct Chunks {
    disk: Disk,
    whole: Object,
    parts: Vec<(u64, u64, Object)>,
}

async fn chunks(rng: &mut Rng, bytes: &[u8]) -> Chunks {
    let mut disk = Disk::new(16 << 20);
    let whole = disk.scatter(bytes, rng).await;
    let cuts = cuts(rng, bytes.len());
    let mut parts = Vec::new();
    for (number, cut) in cuts.windows(2).enumerate() {
        let object = disk.scatter(&bytes[cut[0]..cut[1]], rng).await;
        parts.push((cut[0] as u64, (cut[1] - cut[0]) as u64, object.chunk(cut[0] as u64, number > 0, number + 2 < cuts.len())));
    }
    Chunks { disk, whole, parts }
}

impl Chunks {
    async fn items(&self, ask: &Descriptor) -> Vec<Item> {
        let ask = self.parts.iter().fold(ask.clone(), |ask, (_, _, object)| ask.input(object.clone()));
        self.disk.items(&exec(), &ask).await
    }

    fn with<'a>(&self, items: &'a [Item]) -> Vec<(u64, u64, &'a Item)> {
        self.parts.iter().zip(items).map(|((at, length, _), item)| (*at, *length, item)).collect()
    }

    /// Objects of the elements that straddle chunks, at their places in the whole.
    async fn straddles(&mut self, items: &[Item]) -> Vec<Object> {
        let mut objects = Vec::new();
        for straddle in straddling(self.with(items)) {
            objects.push(self.disk.put(&straddle.bytes).await.chunk(straddle.at, false, false));
        }
        objects
    }
}

fn offsets(items: &[Item]) -> Vec<u64> {
    let mut all: Vec<u64> = items.iter().flat_map(|item| item.data.chunks(8)).map(|at| u64::from_le_bytes(at.try_into().unwrap())).collect();
    all.sort_unstable();
    all
}

/// Matches and lines of chunks and straddling lines are those of the whole.
#[test]
fn searches_of_chunks_give_those_of_the_whole() {
    wait(async {
        for seed in 0..150 {
            let mut rng = Rng::with_seed(seed);
            let len = rng.usize(..3000);
            let bytes = text(&mut rng, len);
            let mut chunks = chunks(&mut rng, &bytes).await;
            let ask = Descriptor::new(opcode::SEARCH);
            let ask = match rng.u8(..3) {
                0 => ask.bytes(tag::STRING, &b"ab"[..]).bytes(tag::STRING, &b"abc"[..]),
                1 => ask.text(tag::REGEX, "^[a-z ]+"),
                _ => ask.text(tag::REGEX, "(a|ab)+|é.*$"),
            };
            let find = ask.clone().number(tag::MODE, mode::OFFSETS);
            let whole = chunks.disk.items(&exec(), &find.clone().input(chunks.whole.clone())).await;
            let mut items = chunks.items(&find).await;
            let straddles = chunks.straddles(&items).await;
            if !straddles.is_empty() {
                let ask = straddles.iter().fold(find, |ask, object| ask.input(object.clone()));
                items.extend(chunks.disk.items(&exec(), &ask).await);
            }
            assert_eq!(offsets(&items), offsets(&whole), "seed {seed}");
            let count = ask.number(tag::MODE, mode::COUNT_LINES);
            let whole = chunks.disk.items(&exec(), &count.clone().input(chunks.whole.clone())).await[0].values[0];
            let items = chunks.items(&count).await;
            let straddles = chunks.straddles(&items).await;
            let ask = straddles.iter().fold(count, |ask, object| ask.input(object.clone()));
            let sum = items.iter().chain(&chunks.disk.items(&exec(), &ask).await).map(|item| item.values[0]).sum::<u64>();
            assert_eq!(sum, whole, "seed {seed}");
        }
    });
}

#[test]
fn counts_of_chunks_give_those_of_the_whole() {
    wait(async {
        for seed in 0..300 {
            let mut rng = Rng::with_seed(seed);
            let len = rng.usize(..3000);
            let bytes = text(&mut rng, len);
            let utf8 = rng.bool();
            let chunks = chunks(&mut rng, &bytes).await;
            let items = chunks.items(&Descriptor::new(opcode::WORD_COUNT).number(tag::LOCALE, utf8.into())).await;
            let counted = items.iter().map(|item| {
                let [lines, words, characters, bytes] = item.values[..] else { panic!("{item:?}") };
                Counts { lines, words, characters, bytes }
            });
            let counted = counted.chain(straddling(chunks.with(&items)).into_iter().map(|straddle| Counts::of(&straddle.bytes, utf8)));
            assert_eq!(counted.fold(Counts::default(), Counts::plus), Counts::of(&bytes, utf8), "seed {seed}");
        }
    });
}

/// Sorted chunks and straddling elements, merged, are the sorted whole.
#[test]
fn sorts_of_chunks_merge_to_that_of_the_whole() {
    wait(async {
        for seed in 0..150 {
            let mut rng = Rng::with_seed(seed);
            let record = rng.usize(1..30);
            let lines = rng.bool();
            let len = rng.usize(..200) * record;
            let bytes = text(&mut rng, len);
            let mut chunks = chunks(&mut rng, &bytes).await;
            let order = |opcode| if lines { Descriptor::new(opcode) } else { Descriptor::new(opcode + 1).number(tag::RECORD, record as u64) };
            let sort = order(opcode::SORT_LINES);
            let whole = chunks.disk.items(&exec(), &sort.clone().input(chunks.whole.clone())).await.remove(0).data;
            let mut merge = order(opcode::MERGE_LINES);
            let (mut items, parts) = (Vec::new(), chunks.parts.clone());
            for (_, _, object) in parts {
                let item = chunks.disk.items(&exec(), &sort.clone().input(object)).await.remove(0);
                merge = merge.input(chunks.disk.put(&item.data).await);
                items.push(item);
            }
            for straddle in chunks.straddles(&items).await {
                merge = merge.input(Object { position: 0, ..straddle });
            }
            assert!(chunks.disk.items(&exec(), &merge).await[0].data == whole, "seed {seed} lines {lines} record {record}");
        }
    });
}

#[test]
fn a_chunk_within_one_line_is_all_head() {
    wait(async {
        let mut disk = Disk::new(1 << 20);
        let object = disk.put(b"no end of a line").await.chunk(100, true, true);
        let item = disk.items(&exec(), &Descriptor::new(opcode::SEARCH).text(tag::REGEX, "end").input(object)).await.remove(0);
        assert!(item.has(item_flag::NO_BREAK) && item.tail.is_empty());
        assert_eq!((&item.head[..], &item.values[..]), (&b"no end of a line"[..], &[0][..]));
    });
}
