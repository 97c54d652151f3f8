//! Which block device carries a file, and where on it the file system begins.

use std::fs;
use std::path::{Path, PathBuf};

use skytether_common::{Error, Result};

/// Bytes of the unit of sysfs, whatever the device has.
const SECTOR: u64 = 512;

/// A block device below a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carrier {
    /// The kernel's name of the whole disk: `sda`, `loop0`, `nvme0n1`.
    pub name: String,
    /// What must be added to places on the file system's device: the begin of a partition, the offset of a loop device.
    pub base: u64,
    /// What it is.
    pub disk: Disk,
}

/// Kinds of disks, by the way to the target that has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disk {
    /// A loop device. Its places are those of the file behind it.
    Loop {
        /// The file, as sysfs names it.
        file: PathBuf,
    },
    /// A SCSI disk: commands can be passed through its node.
    Scsi {
        /// The device node.
        node: PathBuf,
        /// The iSCSI target's name, where the kernel's initiator has it.
        target: Option<String>,
    },
    /// An NVMe name space: commands can be passed through its node.
    Nvme {
        /// The device node.
        node: PathBuf,
    },
    /// Another one: the caller must know the target.
    Other,
}

/// The carrier of the file system with the device number `st_dev`.
///
/// # Errors
/// `Unsupported` where there is no single disk: file systems in memory, over a network or over others, device mapper,
/// software RAID.
pub fn carrier(st_dev: u64) -> Result<Carrier> {
    carrier_below(Path::new("/sys"), rustix::fs::major(st_dev), rustix::fs::minor(st_dev))
}

fn carrier_below(sys: &Path, major: u32, minor: u32) -> Result<Carrier> {
    if major == 0 {
        return Err(Error::unsupported("the file system is not on a block device of its own"));
    }
    let mut at = fs::canonicalize(sys.join(format!("dev/block/{major}:{minor}")))
        .map_err(|cause| Error::io("look up", format!("block device {major}:{minor}"), cause))?;
    let mut base = 0;
    if at.join("partition").exists() {
        base = number(&at.join("start"))?.saturating_mul(SECTOR);
        at.pop();
    }
    let name = at.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if at.join("dm").exists() {
        return Err(Error::unsupported(format!("{name} is made by the device mapper (LVM, encryption), whose places are not those of a disk")));
    }
    if at.join("md").exists() {
        return Err(Error::unsupported(format!("{name} is a software RAID, whose places are not those of a disk")));
    }
    let node = Path::new("/dev").join(&name);
    if let Ok(file) = fs::read_to_string(at.join("loop/backing_file")) {
        base += number(&at.join("loop/offset"))?;
        let disk = Disk::Loop { file: PathBuf::from(file.trim_end_matches('\n')) };
        return Ok(Carrier { name, base, disk });
    }
    let disk = if name.starts_with("nvme") {
        Disk::Nvme { node }
    } else if at.join("device/scsi_device").exists() || at.join("device/scsi_level").exists() {
        let target = session(&at).and_then(|session| fs::read_to_string(sys.join("class/iscsi_session").join(session).join("targetname")).ok());
        Disk::Scsi { node, target: target.map(|name| name.trim().to_owned()) }
    } else {
        Disk::Other
    };
    Ok(Carrier { name, base, disk })
}

/// The part `sessionN` of a disk's path, which iSCSI disks have.
fn session(path: &Path) -> Option<String> {
    let name = |part: std::path::Component<'_>| part.as_os_str().to_string_lossy().into_owned();
    path.components().map(name).find(|name| name.strip_prefix("session").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_digit())))
}

fn number(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).map_err(|cause| Error::io("read", path, cause))?;
    text.trim().parse().map_err(|cause| Error::invalid(format!("{} has no number", path.display())).with_source(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(root: &Path, number: &str, to: &str) {
        fs::create_dir_all(root.join("dev/block")).unwrap();
        std::os::unix::fs::symlink(root.join(to), root.join("dev/block").join(number)).unwrap();
    }

    #[test]
    fn partitions_and_loop_offsets_add_up() {
        let sys = tempfile::tempdir().unwrap();
        let root = sys.path();
        put(root, "devices/loop0/loop/backing_file", "/images/a b.img\n");
        put(root, "devices/loop0/loop/offset", "4096\n");
        put(root, "devices/loop0/loop0p2/partition", "2\n");
        put(root, "devices/loop0/loop0p2/start", "2048\n");
        link(root, "7:0", "devices/loop0");
        link(root, "259:2", "devices/loop0/loop0p2");
        let disk = Disk::Loop { file: "/images/a b.img".into() };
        assert_eq!(carrier_below(root, 7, 0).unwrap(), Carrier { name: "loop0".into(), base: 4096, disk: disk.clone() });
        assert_eq!(carrier_below(root, 259, 2).unwrap(), Carrier { name: "loop0".into(), base: 4096 + 2048 * 512, disk });
    }

    #[test]
    fn disks_of_the_kernel_are_told_apart() {
        let sys = tempfile::tempdir().unwrap();
        let root = sys.path();
        put(root, "devices/host2/session7/target2:0:0/2:0:0:1/block/sdb/device/scsi_level", "6\n");
        put(root, "class/iscsi_session/session7/targetname", "iqn.2026-01.a:b\n");
        link(root, "8:16", "devices/host2/session7/target2:0:0/2:0:0:1/block/sdb");
        put(root, "devices/nvme0n1/size", "8\n");
        link(root, "259:0", "devices/nvme0n1");
        put(root, "devices/vda/size", "8\n");
        link(root, "254:0", "devices/vda");
        let disk = |major, minor| carrier_below(root, major, minor).unwrap().disk;
        assert_eq!(disk(8, 16), Disk::Scsi { node: "/dev/sdb".into(), target: Some("iqn.2026-01.a:b".into()) });
        assert_eq!((disk(259, 0), disk(254, 0)), (Disk::Nvme { node: "/dev/nvme0n1".into() }, Disk::Other));
    }

    #[test]
    fn devices_over_others_are_refused_by_name() {
        let sys = tempfile::tempdir().unwrap();
        put(sys.path(), "devices/dm-0/dm/name", "root\n");
        link(sys.path(), "253:0", "devices/dm-0");
        put(sys.path(), "devices/md0/md/level", "raid1\n");
        link(sys.path(), "9:0", "devices/md0");
        for (major, what) in [(253, "device mapper"), (9, "RAID"), (0, "block device")] {
            let error = carrier_below(sys.path(), major, 0).unwrap_err();
            assert_eq!(error.kind(), skytether_common::Kind::Unsupported);
            assert!(error.mentions(what), "{error}");
        }
    }
}
