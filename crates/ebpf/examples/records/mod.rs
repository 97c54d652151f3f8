//! What the measurements of eBPF and of WebAssembly share: a million records, and the native filter over them.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_common::{Error, Result};
use skytether_ebpf::Host;

const RECORDS: usize = 1_000_000;

fn native(records: &[u8], above: u32) -> u64 {
    let field = |record: &[u8]| record.get(20..24).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
    records.chunks_exact(48).map(|record| u64::from(field(record) > above)).sum()
}

/// The shortest of 60 runs.
pub(crate) fn best(mut work: impl FnMut() -> Result<u64>, expected: u64) -> Result<Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..60 {
        let begun = Instant::now();
        let counted = work()?;
        shortest = shortest.min(begun.elapsed());
        if counted != expected {
            return Err(Error::internal(format!("{counted} records were counted, and {expected} are above the constant")));
        }
    }
    Ok(shortest)
}

pub(crate) fn counted(output: &[u8]) -> Result<u64> {
    let wrong = || Error::internal(format!("the program wrote {} bytes instead of a number of eight", output.len()));
    Ok(u64::from_le_bytes(output.try_into().map_err(|_| wrong())?))
}

/// A drive with one value, under every key.
#[derive(Clone)]
pub(crate) struct OneValue(Bytes);

impl Host for OneValue {
    fn get(&mut self, _: &[u8]) -> Result<Option<Bytes>> {
        Ok(Some(self.0.clone()))
    }

    fn next(&mut self, _: &[u8]) -> Result<Option<Bytes>> {
        Ok(None)
    }

    fn put(&mut self, key: &[u8], _: &[u8]) -> Result<()> {
        Err(Error::unsupported(format!("this drive is read only, and the program puts {key:?}")))
    }
}

/// What a filter is measured with.
pub(crate) struct Filter {
    /// Has the records.
    pub(crate) host: OneValue,
    /// The key of the records, and the constant: what programs are called with.
    pub(crate) arguments: [Bytes; 2],
    /// How many records are above the constant.
    pub(crate) expected: u64,
    /// How long the native filter takes.
    pub(crate) baseline: Duration,
}

impl Filter {
    /// Makes the records, and measures the native filter.
    pub(crate) fn new() -> Result<Filter> {
        let mut random = fastrand::Rng::with_seed(1);
        let records = Bytes::from((0..RECORDS * 12).flat_map(|_| random.u32(..).to_le_bytes()).collect::<Vec<u8>>());
        let above = 3_000_000_000u32;
        let expected = native(&records, above);
        let baseline = best(|| Ok(native(black_box(&records), black_box(above))), expected)?;
        println!("native {baseline:?}");
        Ok(Filter { host: OneValue(records), arguments: [Bytes::from_static(b"r"), Bytes::copy_from_slice(&above.to_le_bytes())], expected, baseline })
    }

    /// The native filter's time as a percentage of `time`.
    pub(crate) fn share(&self, time: Duration) -> f64 {
        100.0 * self.baseline.as_secs_f64() / time.as_secs_f64()
    }
}
