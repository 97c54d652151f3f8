"""A real Linux kernel in QEMU as a client: Debian's kernel, an initramfs of busybox, and a program of ours.

`python -m block.guest nvme-tcp PORT [WRITES]` (from python/tests) runs the checks of NVMe/TCP against a server on the
loopback device, which the guest reaches as 10.0.2.2. `nvme-tcp-restarts` is for a server that is ended and started
again meanwhile, over the same volumes. Exit status 3 says that the machine lacks something.

`scsi_disk` gives a guest volumes as SCSI disks: QEMU passes the commands of its SCSI layer to an iSCSI target.

Kernel and busybox are fetched with `apt-get download`, once, into `~/.cache/skytether/guest` (or
`SKYTETHER_GUEST`), and are never installed. Without acceleration a guest takes about ten seconds to boot: KVM is not
used, because it hangs in some virtual machines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

#: What a guest needs of the machine, each with its Debian package.
PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "apt-get": "apt", "dpkg": "dpkg", "gcc": "gcc", "mke2fs": "e2fsprogs", "mkfs.xfs": "xfsprogs", "ldd": "libc-bin"}

#: The machine: no network but that of the tests, which reaches the loopback device of this machine.
QEMU = ["-accel", "tcg", "-m", "512", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"]
NETWORK = ["-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,romfile="]

FILE_SYSTEMS = ["crc32c_generic", "libcrc32c", "ext4"]
NVME_TCP = ["virtio_pci", "virtio_net", "nvme-tcp", *FILE_SYSTEMS]
SCSI = ["virtio_pci", "crct10dif_generic", "crc64_rocksoft_generic", "virtio_scsi", "sd_mod", "sg", *FILE_SYSTEMS, "xfs"]

#: What every guest does first.
PREAMBLE = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in $(cat /modules); do insmod /lib/modules/$module.ko || echo "FAILED insmod $module"; done
"""

#: What it does last: `DONE` says that the script came to its end.
EPILOGUE = """
echo DONE
poweroff -f
"""


class Missing(Exception):
    """The machine lacks something that a guest needs."""


def cache() -> Path:
    """Where packages are kept."""
    return Path(os.environ.get("SKYTETHER_GUEST") or Path.home() / ".cache" / "skytether" / "guest")


def search_path() -> str:
    """Where programs are found: administrators' directories as well."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def check_programs() -> None:
    """Raises `Missing` with the first program that is not installed."""
    for program, package in PROGRAMS.items():
        if shutil.which(program, path=search_path()) is None:
            raise Missing(f"{program} is not installed (Debian: {package})")


def unpacked(package: str) -> Path:
    """The directory with the files of a Debian package, which is fetched where it is not there."""
    directory = cache() / package
    if directory.is_dir():
        return directory
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        fetched = subprocess.run(["apt-get", "download", package], cwd=scratch, capture_output=True, text=True)
        archives = list(Path(scratch).glob("*.deb"))
        if fetched.returncode or len(archives) != 1:
            raise Missing(f"apt-get download {package} failed: {fetched.stderr.strip()[-300:]}")
        subprocess.run(["dpkg", "-x", archives[0], Path(scratch) / "root"], check=True)
        # Another process may have been faster.
        if not directory.is_dir():
            (Path(scratch) / "root").rename(directory)
    return directory


def kernel_package() -> str:
    """The package with the kernel that Debian has now, or one that was fetched before."""
    kept = sorted(path.name for path in cache().glob("linux-image-*"))
    if kept:
        return kept[-1]
    asked = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True)
    found = re.search(r"Depends: (linux-image-\S+)", asked.stdout)
    if found is None:
        raise Missing("apt-cache knows no linux-image-amd64: run apt-get update")
    return found[1]


def modules_in_order(kernel: Path, wanted: list[str]) -> dict[str, Path]:
    """The files of modules, each after those that it depends on, by the names that they say themselves."""
    files = {path.name.removesuffix(".ko").replace("-", "_"): path for path in kernel.rglob("*.ko")}
    order: dict[str, Path] = {}

    def add(name: str) -> None:
        name = name.replace("-", "_")
        if name in order:
            return
        file = files[name]
        depends = re.search(rb"\0depends=([^\0]*)\0", file.read_bytes())
        for other in filter(None, depends[1].decode().split(",") if depends else []):
            add(other)
        order[name] = file

    for name in wanted:
        # What a kernel has built in has no file.
        if name.replace("-", "_") in files:
            add(name)
    return order


def with_libraries(program: str) -> list[Path]:
    """A program of this machine and the libraries that it needs."""
    path = shutil.which(program, path=search_path())
    if path is None:
        raise Missing(f"{program} is not installed")
    said = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    return [Path(path), *(Path(word) for word in re.findall(r"(/\S+)", said))]


def image(script: str, modules: list[str], programs: list[str], scratch: Path) -> tuple[Path, Path]:
    """The kernel, and an initramfs in `scratch` that runs `script`."""
    check_programs()
    kernel = unpacked(kernel_package())
    busybox = unpacked("busybox-static") / "bin" / "busybox"
    root = scratch / "root"
    for directory in ["bin", "opt", "lib/modules", "proc", "sys", "dev", "mnt", "etc", "tmp"]:
        (root / directory).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    order = modules_in_order(kernel, modules)
    for name, file in order.items():
        shutil.copy(file, root / "lib/modules" / f"{name}.ko")
    (root / "modules").write_text("\n".join(order))
    for path in (path for program in programs for path in with_libraries(program)):
        # Libraries are where the loader looks for them. Busybox has programs of the same names, in another directory.
        to = root / "opt" / path.name if ".so" not in path.name else root / path.relative_to("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path.resolve(), to)
    subprocess.run(["gcc", "-O2", "-Wall", "-static", "-o", root / "bin/guest", HERE / "guest.c"], check=True)
    init = root / "init"
    init.write_text(PREAMBLE + script + EPILOGUE)
    init.chmod(0o755)
    archive = scratch / "initramfs"
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    with archive.open("wb") as out:
        subprocess.run([busybox, "cpio", "-o", "-H", "newc"], cwd=root, input=names.encode(), stdout=out, stderr=subprocess.DEVNULL, check=True)
    return next((kernel / "boot").glob("vmlinuz-*")), archive


def run(script: str, modules: list[str], programs: list[str], devices: list[str], seconds: int) -> list[str]:
    """Boots a guest that runs `script`; what it printed. It must come to its end without a line that says `FAILED`."""
    with tempfile.TemporaryDirectory() as scratch:
        kernel, initramfs = image(script, modules, programs, Path(scratch))
        call = ["qemu-system-x86_64", *QEMU, *devices, "-kernel", kernel, "-initrd", initramfs]
        call += ["-append", "console=ttyS0 quiet panic=-1 oops=panic"]
        try:
            output = subprocess.run(call, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds).stdout
        except subprocess.TimeoutExpired as late:
            text = (late.stdout or b"").decode(errors="replace")
            raise AssertionError(f"the guest did not end within {seconds} s:\n{text}") from None
    text = output.decode(errors="replace").replace("\r", "")
    lines = text.split("\n")
    assert "DONE" in lines and not any("FAILED" in line for line in lines), text
    return lines


def nvme_tcp_start(port: int) -> str:
    """How a guest reaches the server, and shell functions to connect."""
    return f"""
ifconfig lo 127.0.0.1 up; ifconfig eth0 10.0.2.15 up
AT=transport=tcp,traddr=10.0.2.2,trsvcid={port},hostnqn=nqn.2014-08.org.nvmexpress:uuid:8a1b4ad0-2f33-4a4b-9a0e-5f0a7f6f1d11
AT=$AT,hostid=8a1b4ad0-2f33-4a4b-9a0e-5f0a7f6f1d11

# A controller that is there counts: its name, and that of its namespaces.
connect() {{
  echo "$1" > /dev/nvme-fabrics || echo "FAILED connect $1"
  for wait in $(seq 100); do
    NAME=$(ls /sys/class/nvme-fabrics/ctl | grep '^nvme' | head -1)
    [ -n "$NAME" ] && [ "$(cat /sys/class/nvme/$NAME/state)" = live ] && break
    usleep 100000
  done
  [ -n "$NAME" ] || echo "FAILED no controller"
}}
disconnect() {{
  echo 1 > /sys/class/nvme/$NAME/delete_controller
}}
wait_for() {{
  for wait in $(seq 100); do [ -b $1 ] && return; usleep 100000; done
  echo "FAILED $1 did not come"; ls /dev
}}
"""


def nvme_tcp_script(port: int, writes: int) -> str:
    """Discovery, connect, checks of both namespaces, a file system, all again with digests."""
    return f"""{nvme_tcp_start(port)}
connect $AT,nqn=nqn.2014-08.org.nvmexpress.discovery
FOUND=$(guest discover /dev/$NAME); echo "FOUND $FOUND"
NQN=${{FOUND%% *}}
disconnect

for OPTIONS in "" ",hdr_digest,data_digest,nr_io_queues=2"; do
  connect "$AT,nqn=$NQN$OPTIONS"
  DISK=/dev/$(ls /sys/block | grep '^nvme[0-9]*n1$' | head -1)
  wait_for $DISK; wait_for ${{DISK%1}}2
  echo "MODEL $(cat /sys/class/nvme/$NAME/model) SIZE $(blockdev --getsize64 $DISK) $(blockdev --getsize64 ${{DISK%1}}2)"
  for page in 01 02 03 04 05; do guest log /dev/$NAME $page 512; done
  guest log /dev/$NAME c0 64
  guest zeroes $DISK
  guest io $DISK 1
  guest exec $DISK 1
  guest exec ${{DISK%1}}2 2
  guest verify $DISK {writes} 5
  /opt/mke2fs -q -F -t ext4 $DISK || echo "FAILED mke2fs"
  mount -t ext4 -o discard $DISK /mnt || echo "FAILED mount"
  cp -r /lib /bin /opt /mnt/ && (cd / && find lib bin opt -type f | xargs sha256sum) > /tmp/sums
  dd if=/dev/zero of=/mnt/gone bs=1M count=40 2> /dev/null; sync; rm /mnt/gone
  sync; umount /mnt || echo "FAILED umount"
  /opt/e2fsck -fn $DISK > /tmp/fsck 2>&1 || {{ echo "FAILED e2fsck"; cat /tmp/fsck; }}
  disconnect

  # What is on it is read by another association.
  connect "$AT,nqn=$NQN$OPTIONS"
  DISK=/dev/$(ls /sys/block | grep '^nvme[0-9]*n1$' | head -1)
  wait_for $DISK
  mount -t ext4 -o ro $DISK /mnt || echo "FAILED mount again"
  (cd /mnt && sha256sum -c /tmp/sums > /tmp/said 2>&1) && echo "OK files $(wc -l < /tmp/sums)" || {{ echo "FAILED files"; head /tmp/said; }}
  umount /mnt
  disconnect
done
"""


def restarts_script(port: int, writes: int) -> str:
    """A file system and random writes while the server goes away and comes back."""
    return f"""{nvme_tcp_start(port)}
connect "$AT,nqn=nqn.2014-08.org.nvmexpress.discovery"
FOUND=$(guest discover /dev/$NAME)
disconnect
connect "$AT,nqn=${{FOUND%% *}},reconnect_delay=1,ctrl_loss_tmo=600"
DISK=/dev/$(ls /sys/block | grep '^nvme[0-9]*n1$' | head -1)
wait_for $DISK; wait_for ${{DISK%1}}2
/opt/mke2fs -q -F -t ext4 $DISK || echo "FAILED mke2fs"
mount -t ext4 $DISK /mnt || echo "FAILED mount"
guest verify ${{DISK%1}}2 {writes} 6 &
cp -r /lib /bin /opt /mnt/ && (cd / && find lib bin opt -type f | xargs sha256sum) > /tmp/sums
sync
wait $!
umount /mnt || echo "FAILED umount"
/opt/e2fsck -fn $DISK > /tmp/fsck 2>&1 || {{ echo "FAILED e2fsck"; cat /tmp/fsck; }}
mount -t ext4 -o ro $DISK /mnt || echo "FAILED mount again"
(cd /mnt && sha256sum -c /tmp/sums > /tmp/said 2>&1) && echo "OK files $(wc -l < /tmp/sums)" || {{ echo "FAILED files"; head /tmp/said; }}
umount /mnt
echo "LOST $(dmesg | grep -c 'Reconnecting in')"
"""


def scsi_script(writes: int) -> str:
    """Random writes, zeros, and both file systems on two disks: filled, checked, and read again. EXEC over the extents
    of a file, through the disk and through its generic device."""
    return f"""
for wait in $(seq 100); do [ -b /dev/sdb ] && break; usleep 100000; done
for disk in sda sdb; do
  echo "DISK $(cat /sys/block/$disk/device/vendor) SIZE $(blockdev --getsize64 /dev/$disk) CACHE $(cat /sys/block/$disk/queue/write_cache)"
done
guest zeroes /dev/sda
guest verify /dev/sda {writes} 5
fill() {{
  mount -t $1 -o discard $2 /mnt || echo "FAILED mount $1"
  cp -r /lib /bin /opt /mnt/ && (cd / && find lib bin opt -type f | xargs sha256sum) > /tmp/sums
  dd if=/dev/zero of=/mnt/gone bs=1M count=40 2> /dev/null; sync; rm /mnt/gone
  for generic in $2 $3; do
    for file in /mnt/bin/busybox /mnt/opt/$4; do guest scsi-exec $generic $file; done
  done
  sync; umount /mnt || echo "FAILED umount"
  # What the kernel kept in memory is read from the disk again.
  echo 3 > /proc/sys/vm/drop_caches; blockdev --flushbufs $2
}}
again() {{
  mount -t $1 -o ro $2 /mnt || echo "FAILED mount $1 again"
  (cd /mnt && sha256sum -c /tmp/sums > /tmp/said 2>&1) && echo "OK files $(wc -l < /tmp/sums)" || {{ echo "FAILED files"; head /tmp/said; }}
  umount /mnt
}}
/opt/mke2fs -q -F -t ext4 /dev/sda || echo "FAILED mke2fs"
fill ext4 /dev/sda /dev/$(ls /sys/block/sda/device/scsi_generic) mke2fs
/opt/e2fsck -fn /dev/sda > /tmp/fsck 2>&1 || {{ echo "FAILED e2fsck"; cat /tmp/fsck; }}
again ext4 /dev/sda
/opt/mkfs.xfs -q -f /dev/sdb || echo "FAILED mkfs.xfs"
fill xfs /dev/sdb /dev/$(ls /sys/block/sdb/device/scsi_generic) mkfs.xfs
/opt/xfs_repair -n /dev/sdb > /tmp/fsck 2>&1 || {{ echo "FAILED xfs_repair"; cat /tmp/fsck; }}
again xfs /dev/sdb
"""


def scsi_restarts_script(writes: int) -> str:
    """A file system and random writes while the target goes away and comes back: QEMU connects again by itself."""
    return f"""
for wait in $(seq 100); do [ -b /dev/sdb ] && break; usleep 100000; done
/opt/mke2fs -q -F -t ext4 /dev/sda || echo "FAILED mke2fs"
mount -t ext4 /dev/sda /mnt || echo "FAILED mount"
guest verify /dev/sdb {writes} 6 &
cp -r /lib /bin /opt /mnt/ && (cd / && find lib bin opt -type f | xargs sha256sum) > /tmp/sums
sync
wait $!
umount /mnt || echo "FAILED umount"
echo 3 > /proc/sys/vm/drop_caches; blockdev --flushbufs /dev/sda
/opt/e2fsck -fn /dev/sda > /tmp/fsck 2>&1 || {{ echo "FAILED e2fsck"; cat /tmp/fsck; }}
mount -t ext4 -o ro /dev/sda /mnt || echo "FAILED mount again"
(cd /mnt && sha256sum -c /tmp/sums > /tmp/said 2>&1) && echo "OK files $(wc -l < /tmp/sums)" || {{ echo "FAILED files"; head /tmp/said; }}
umount /mnt
"""


def scsi_disk(script: str, urls: list[str], seconds: int = 900) -> list[str]:
    """Runs `script` in a guest that has the volumes at these iSCSI addresses as disks."""
    devices = ["-device", "virtio-scsi-pci,id=s0"]
    for unit, url in enumerate(urls):
        devices += ["-drive", f"file={url},if=none,id=d{unit},format=raw,cache=none", "-device", f"scsi-block,drive=d{unit},bus=s0.0,scsi-id={unit}"]
    return run(script, SCSI, ["mke2fs", "e2fsck", "mkfs.xfs", "xfs_repair"], devices, seconds)


#: What a guest does, by name.
CHECKS = {"nvme-tcp": nvme_tcp_script, "nvme-tcp-restarts": restarts_script}


def check(name: str, port: int, writes: int = 40, seconds: int = 900) -> list[str]:
    """Runs one of `CHECKS` in a guest against a server on the loopback device. Each process of a guest writes `writes`
    times at random places."""
    return run(CHECKS[name](port, writes), NVME_TCP, ["mke2fs", "e2fsck"], NETWORK, seconds)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[1] not in CHECKS:
        sys.exit(f"say: {'|'.join(CHECKS)} PORT [WRITES]")
    try:
        print("\n".join(check(sys.argv[1], *map(int, sys.argv[2:]))))
    except Missing as missing:
        print(missing, file=sys.stderr)
        sys.exit(3)
