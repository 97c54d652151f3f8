//! How busy, warm and full the machine is, as far as the system tells.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use skytether_kinetic_protocol::log::{Interface, Temperature, Utilization};

/// The network interface with this address. Its name is the address, unless it is that of loopback: the Java client
/// needs one, and the system's is not known here.
pub(crate) fn interface(address: std::net::IpAddr) -> Interface {
    let text = address.to_string();
    let name = if address.is_loopback() { "lo".to_owned() } else { text.clone() };
    let (named, text) = (Interface { name: Some(name), ..Interface::default() }, Some(Bytes::from(text)));
    if address.is_ipv4() { Interface { ipv4_address: text, ..named } } else { Interface { ipv6_address: text, ..named } }
}

/// How busy the machine's parts are, measured between two questions.
#[derive(Debug)]
pub(crate) struct Usage {
    directory: Option<PathBuf>,
    last: Mutex<Sample>,
}

/// What was counted at a moment.
#[derive(Debug, Clone)]
struct Sample {
    at: Instant,
    /// Time of all processors, and the part of it that they were busy, in ticks.
    processors: Option<(u64, u64)>,
    /// How long the disk had something to do, in milliseconds.
    disk_ms: Option<u64>,
}

impl Usage {
    pub(crate) fn new(directory: Option<PathBuf>) -> Self {
        let last = Mutex::new(sample(directory.as_deref()));
        Self { directory, last }
    }

    /// Free bytes and size of the file system below the store.
    pub(crate) fn disk(&self) -> Option<(u64, u64)> {
        let disk = rustix::fs::statvfs(self.directory.as_ref()?).ok()?;
        Some((disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize)))
    }

    /// The shares of time in which processors and disk were busy since the last question. A part that the system does
    /// not count is left out.
    pub(crate) fn utilizations(&self) -> Vec<Utilization> {
        let now = sample(self.directory.as_deref());
        let before = std::mem::replace(&mut *self.last.lock(), now.clone());
        busy(&before, &now)
    }
}

/// The shares of time in which processors and disk were busy between two samples.
fn busy(before: &Sample, now: &Sample) -> Vec<Utilization> {
    let processors = now.processors.zip(before.processors).and_then(|(now, before)| Some(share(now.1.checked_sub(before.1)?, now.0.checked_sub(before.0)?)));
    let passed = now.at.saturating_duration_since(before.at);
    let disk = now.disk_ms.zip(before.disk_ms).and_then(|(now, before)| {
        let busy = Duration::from_millis(now.checked_sub(before)?);
        (!passed.is_zero()).then(|| (busy.as_secs_f64() / passed.as_secs_f64()).min(1.0) as f32)
    });
    let named = |name: &str, value| Utilization { name: Some(name.to_owned()), value };
    vec![named("HDA", disk), named("CPU", processors)].into_iter().filter(|part| part.value.is_some()).collect()
}

fn share(part: u64, whole: u64) -> f32 {
    // Between two ticks nothing was done.
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64) as f32 }
}

fn sample(directory: Option<&Path>) -> Sample {
    let processors = std::fs::read_to_string("/proc/stat").ok().and_then(|text| processor_ticks(&text));
    Sample { at: Instant::now(), processors, disk_ms: directory.and_then(disk_busy_ms) }
}

/// All ticks and busy ticks of `/proc/stat`: proc(5) names the columns; the fourth and fifth are idle.
fn processor_ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // Guest time, after the eighth column, is part of the first two.
    let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|ticks| ticks.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (ticks.len() >= 5).then(|| (all, all.saturating_sub(idle)))
}

/// How long the disk of `directory` had requests in flight: the tenth column of its `stat` (Documentation/block/stat).
fn disk_busy_ms(directory: &Path) -> Option<u64> {
    let device = rustix::fs::stat(directory).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    stat.split_whitespace().nth(9)?.parse().ok()
}

/// The sensors of the machine, in degrees Celsius. A machine without sensors has an entry without values.
pub(crate) fn temperatures(sensors: &Path) -> Vec<Temperature> {
    let read = |path: PathBuf| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let degrees = |path: PathBuf| read(path)?.parse::<f32>().ok().map(|millidegrees| millidegrees / 1000.0);
    let mut found = Vec::new();
    for sensor in std::fs::read_dir(sensors).into_iter().flatten().flatten().take(16) {
        let path = sensor.path();
        let Some(current) = degrees(path.join("temp1_input")) else { continue };
        found.push(Temperature {
            name: read(path.join("name")),
            current: Some(current),
            minimum: degrees(path.join("temp1_min")),
            maximum: degrees(path.join("temp1_max")),
            target: None,
        });
    }
    if found.is_empty() {
        found.push(Temperature { name: Some("HDA".to_owned()), ..Temperature::default() });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_ticks_leave_out_idle_and_waiting_time() {
        let stat = "cpu  10 1 5 100 20 2 3 4 7 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(processor_ticks(stat), Some((145, 25)));
        assert_eq!(processor_ticks("cpu 1 2\n"), None);
        assert_eq!(processor_ticks(""), None);
    }

    #[test]
    fn sensors_are_read_in_degrees() {
        let dir = tempfile::tempdir().unwrap();
        let sensor = dir.path().join("hwmon0");
        std::fs::create_dir(&sensor).unwrap();
        for (name, text) in [("name", "drivetemp\n"), ("temp1_input", "41500\n"), ("temp1_max", "60000\n")] {
            std::fs::write(sensor.join(name), text).unwrap();
        }
        let found = temperatures(dir.path());
        assert_eq!((found[0].name(), found[0].current, found[0].maximum, found[0].minimum), ("drivetemp", Some(41.5), Some(60.0), None));
        let none = temperatures(&dir.path().join("absent"));
        assert_eq!((none[0].name(), none[0].current), ("HDA", None));
    }

    #[test]
    fn utilization_is_the_busy_share_between_samples() {
        let at = Instant::now();
        let sample = |ms: u64, processors, disk_ms| Sample { at: at + Duration::from_millis(ms), processors, disk_ms };
        let shares = |before, now| busy(&before, &now).into_iter().map(|part| (part.name().to_owned(), part.value())).collect::<Vec<_>>();
        let named = |disk: f32, processors: f32| vec![("HDA".to_owned(), disk), ("CPU".to_owned(), processors)];
        assert_eq!(shares(sample(0, Some((1000, 400)), Some(50)), sample(2000, Some((1400, 700)), Some(550))), named(0.25, 0.75));
        assert_eq!(shares(sample(0, Some((1000, 400)), Some(50)), sample(1000, Some((1400, 400)), Some(50))), named(0.0, 0.0));
        // Requests in flight are counted in whole milliseconds, which may be more than have passed.
        assert_eq!(shares(sample(0, Some((8, 8)), Some(0)), sample(10, Some((8, 8)), Some(11))), named(1.0, 0.0));
        // Counters of another boot, or of none, tell nothing.
        assert_eq!(shares(sample(0, Some((1000, 400)), Some(50)), sample(1000, Some((10, 4)), None)), []);
    }

    #[test]
    fn utilization_is_a_share_or_is_not_told() {
        let usage = Usage::new(Some(std::env::temp_dir()));
        for part in usage.utilizations().iter().chain(&usage.utilizations()) {
            assert!((0.0..=1.0).contains(&part.value()), "{part:?}");
        }
        assert!(Usage::new(None).utilizations().iter().all(|part| part.name() != "HDA"));
    }
}
