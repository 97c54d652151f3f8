use super::*;
use proptest::prelude::*;

fn vlq(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

/// Encodes by the format's definition, bit by bit; at least `min_width` bits a value.
fn encode(values: &[u32], min_width: u32) -> Vec<u8> {
    let mut out = Vec::new();
    vlq(&mut out, 128);
    vlq(&mut out, 4);
    vlq(&mut out, values.len() as u64);
    vlq(&mut out, zigzag(i64::from(values.first().map_or(0, |&v| v as i32))));
    let deltas: Vec<i32> = values.windows(2).map(|w| w[1].wrapping_sub(w[0]) as i32).collect();
    for block in deltas.chunks(128) {
        let min = *block.iter().min().unwrap();
        vlq(&mut out, zigzag(i64::from(min)));
        let widths: Vec<u32> =
            block.chunks(32).map(|m| m.iter().map(|d| 32 - (d.wrapping_sub(min) as u32).leading_zeros()).max().unwrap().max(min_width)).collect();
        out.extend((0..4).map(|i| widths.get(i).map_or(77, |&w| w as u8)));
        for (mini, &width) in block.chunks(32).zip(&widths) {
            let mut bits = vec![false; 32 * width as usize];
            for (i, d) in mini.iter().enumerate() {
                for b in 0..width {
                    bits[i * width as usize + b as usize] = (d.wrapping_sub(min) as u32) >> b & 1 == 1;
                }
            }
            out.extend(bits.chunks(8).map(|c| c.iter().enumerate().fold(0u8, |a, (i, &b)| a | u8::from(b) << i)));
        }
    }
    out
}

fn engines() -> Vec<Engine> {
    let mut all = vec![Engine::Scalar];
    if Engine::best() != Engine::Scalar {
        all.push(Engine::best());
    }
    all
}

/// The whole page, taken `run` values at a time.
fn decode_in_runs<T: Target>(page: &[u8], expected: usize, engine: Engine, run: usize) -> Result<Option<Column<T>>> {
    let Some(mut stream) = Stream::<T>::open_with(Bytes::copy_from_slice(page), expected, engine)? else { return Ok(None) };
    let mut all = Column { values: Vec::new(), descents: 0, max: 0 };
    loop {
        let Some(part) = stream.take(run)? else { return Ok(None) };
        assert!(part.values.iter().all(|v| v.to_u32() <= part.max));
        let from = all.values.len().saturating_sub(1);
        all.values.extend_from_slice(&part.values);
        let descents = all.values[from..].windows(2).filter(|w| w[1].to_u32().wrapping_sub(w[0].to_u32()) as i32 <= 0).count();
        assert_eq!(part.descents, descents, "of this run");
        all.descents += part.descents;
        all.max = part.max;
        if part.values.len() < run || all.values.len() == expected {
            assert!(stream.take(run)?.is_some_and(|c| c.values.is_empty() && c.descents == 0));
            return Ok(Some(all));
        }
    }
}

fn decode_with<T: Target>(page: &[u8], expected: usize, engine: Engine) -> Result<Option<Column<T>>> {
    decode_in_runs(page, expected, engine, usize::MAX)
}

fn decode<T: Target>(page: &[u8], expected: usize) -> Result<Option<Column<T>>> {
    decode_with(page, expected, Engine::best())
}

fn check(values: &[u32], min_width: u32) {
    let (page, len) = (encode(values, min_width).into_boxed_slice(), values.len());
    let max = values.iter().copied().max().unwrap_or(0);
    let descents = values.windows(2).filter(|w| w[1].wrapping_sub(w[0]) as i32 <= 0).count();
    for engine in engines() {
        let wide = decode_with::<u32>(&page, values.len(), engine).unwrap();
        assert_eq!(wide, Some(Column { values: values.to_vec(), descents, max }), "{engine:?}");
        for run in [1, 5, 127, 128, 129, 300] {
            assert_eq!(decode_in_runs::<u32>(&page, values.len(), engine, run).unwrap(), wide, "{engine:?} in runs of {run}");
        }
        let narrow = decode_with::<u16>(&page, values.len(), engine);
        if max > 0xffff {
            assert_eq!(narrow.unwrap_err().kind(), skytether_common::Kind::Corrupt);
        } else {
            let values = values.iter().map(|&v| v as u16).collect();
            let whole = Some(Column { values, descents, max });
            assert_eq!(narrow.unwrap(), whole, "{engine:?}");
            assert_eq!(decode_in_runs::<u16>(&page, len, engine, 100).unwrap(), whole, "{engine:?} in runs");
        }
    }
}

#[test]
fn every_width_and_every_length_around_a_block() {
    let mut random = fastrand::Rng::with_seed(1);
    for width in 0..=32 {
        for len in [0, 1, 2, 32, 33, 34, 127, 128, 129, 130, 256, 257, 258, 700] {
            let values: Vec<u32> = (0..len).map(|_| random.u64(..1 << width) as u32).collect();
            check(&values, 0);
            check(&values, width);
        }
    }
}

#[test]
fn small_steps_up_and_down() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut below = |n: u64| random.u64(..n);
    for width in 0..=10 {
        // Beginnings at the ends of what fits 15, 16, 31 and 32 bits, so that some go beyond, and values below zero.
        for start in [0u32, 3, 60, 0x1f80, 0x2000, 0x7ff0, 0xff80, 0xffff, 0x7fff_ff00, 0xffff_ff00] {
            for (least, len) in [(1i32, 700), (0, 300), (5, 300), (-1, 300), (-(1 << width) / 2, 700), (-70, 200), (400, 300)] {
                let mut value = start;
                let values: Vec<u32> = (0..len)
                    .map(|_| {
                        let before = value;
                        value = value.wrapping_add_signed(least + below(1 << width) as i32);
                        before
                    })
                    .collect();
                check(&values, 0);
            }
        }
    }
}

#[test]
fn wide_or_unusual_pages_are_left_to_others() {
    let mut page = encode(&[1, 5, 2, 9], 0);
    page[0] = 0x80;
    page[1] = 0x02; // blocks of 256
    assert_eq!(decode::<u32>(&page, 4).unwrap(), None);
    let mut page = encode(&[1, 5, 2, 9], 0);
    // Five bytes of header, one of least delta, then the widths.
    assert_eq!(page[6..10], [4, 77, 77, 77]);
    page[6] = 33;
    page.extend([0; 200]);
    assert_eq!(decode::<u32>(&page, 4).unwrap(), None);
}

#[test]
fn counts_and_lengths_are_checked_before_anything_is_allocated() {
    let page = encode(&(0..500).collect::<Vec<_>>(), 3);
    assert!(decode::<u32>(&page, 499).is_err());
    for len in 0..page.len() {
        assert!(decode::<u32>(&page[..len], 500).is_err(), "{len}");
    }
    let mut liar = vec![0x80, 0x01, 4];
    vlq(&mut liar, 1 << 40);
    liar.push(0);
    assert!(decode::<u32>(&liar, 1 << 40).is_err());
}

proptest! {
    #[test]
    fn any_values_come_back(values in prop::collection::vec(prop_oneof![0u32..40, any::<u32>(), 0u32..70_000], 0..600), width in 0u32..=32) {
        check(&values, width);
    }

    #[test]
    fn any_bytes_give_the_same_answer_from_both_engines(mut page in prop::collection::vec(any::<u8>(), 0..900), n in 0usize..700) {
        // Half of the time, a header that gets past the first checks.
        if n % 2 == 0 {
            let mut header = vec![0x80, 0x01, 4];
            vlq(&mut header, n as u64);
            header.extend(page);
            page = header;
            for b in page.iter_mut().skip(6) { *b &= 0x1f; }
        }
        let answers: Vec<_> = engines().into_iter().map(|e| decode_with::<u32>(&page, n, e).ok()).collect();
        prop_assert!(answers.windows(2).all(|w| w[0] == w[1]));
        let answers: Vec<_> = engines().into_iter().map(|e| decode_with::<u16>(&page, n, e).map_err(|e| e.to_string())).collect();
        prop_assert!(answers.windows(2).all(|w| w[0] == w[1]));
    }
}
