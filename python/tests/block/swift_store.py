"""An object store of OpenStack Swift on mounted disks: its configuration, objects, and its auditor.

Programs of Swift read `/etc/swift/swift.conf`, so they run in a mount name space of their own. `python swift_store.py
CONF DEVICE SIZE...`, in one, writes objects of these sizes by Swift's own disk-file classes, without any server.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import subprocess
import sys
import time
from pathlib import Path

SWIFT_CONF = """
[swift-hash]
swift_hash_path_suffix = tests

[storage-policy:0]
name = disks
default = yes
diskfile_module = {diskfile}
"""

SERVER_CONF = """
[DEFAULT]
devices = {devices}
mount_check = false
user = root

[object-auditor]
recon_cache_path = {recon}
files_per_second = 100000
bytes_per_second = 1000000000000
{targets}
"""

#: Swift's own class, and ours.
PLAIN, OFFLOADED = "egg:swift#replication.fs", "egg:skytether#oas"


class Store:
    """A store whose devices are directories below `devices`. Its files are in `place`."""

    def __init__(self, place: Path, devices: Path) -> None:
        self.place, self.devices = place, devices

    def configure(self, diskfile: str, targets: dict[str, str] | None = None) -> Path:
        """Writes the configuration, and gives the object server's."""
        (self.place / "etc").mkdir(parents=True, exist_ok=True)
        (self.place / "recon").mkdir(exist_ok=True)
        (self.place / "etc" / "swift.conf").write_text(SWIFT_CONF.format(diskfile=diskfile))
        lines = "\n".join(f"oas_target_{device} = {target}" for device, target in (targets or {}).items())
        conf = self.place / "object-server.conf"
        conf.write_text(SERVER_CONF.format(devices=self.devices, recon=self.place / "recon", targets=lines))
        return conf

    def run(self, *words: object) -> str:
        """Runs a program that sees our `/etc/swift`; what it prints."""
        etc = self.place / "all-etc"
        etc.mkdir(exist_ok=True)
        # `/etc/swift` need not exist on this machine, so a copy of all of `/etc` lies over it.
        script = f'mount -t tmpfs tmpfs {etc} && cp -a /etc/. {etc} && mkdir -p {etc}/swift && cp {self.place}/etc/swift.conf {etc}/swift && mount --bind {etc} /etc && exec "$@"'
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script.replace("\n", " "), "sh", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (shlex.join(command[-3:]), done.stdout[-2000:], done.stderr[-4000:])
        return done.stdout + done.stderr

    def write(self, device: str, sizes: list[int]) -> dict[str, Path]:
        """Writes objects of random bytes; the file of each, by the object's name."""
        conf = self.configure(PLAIN)
        return {name: Path(path) for name, path in json.loads(self.run(sys.executable, __file__, conf, device, *sizes)).items()}

    def audit(self) -> str:
        """Runs the object auditor once over all devices; what it prints."""
        return self.run(Path(sys.executable).parent / "swift-object-auditor", self.place / "object-server.conf", "once", "--verbose")

    def quarantined(self, device: str) -> set[str]:
        """The hashes of objects that were put aside."""
        place = self.devices / device / "quarantined" / "objects"
        return {path.name for path in place.iterdir()} if place.exists() else set()

    def restore(self, device: str, files: dict[str, Path]) -> None:
        """Puts objects back that were put aside."""
        for path in files.values():
            aside = self.devices / device / "quarantined" / "objects" / path.parent.name
            if aside.exists():
                # The store removes directories that have become empty.
                path.parent.parent.mkdir(parents=True, exist_ok=True)
                aside.rename(path.parent)


def main(conf: str, device: str, sizes: list[int]) -> None:
    """Writes objects, and prints their files as JSON."""
    from swift.common.storage_policy import POLICIES
    from swift.common.utils import Timestamp, get_logger, hash_path, readconf
    from swift.obj.diskfile import DiskFileRouter

    options = readconf(conf, "object-auditor")
    manager = DiskFileRouter(options, get_logger(options))[POLICIES[0]]
    files = {}
    for number, size in enumerate(sizes):
        name = f"object-{number}"
        data = random.Random(number).randbytes(size)
        partition = str(int(hash_path("account", "container", name)[:2], 16))
        file = manager.get_diskfile(device, partition, "account", "container", name, policy=POLICIES[0])
        timestamp = Timestamp(time.time())
        with file.create(size=size) as writer:
            writer.write(data)
            metadata = {"Content-Type": "application/octet-stream", "Content-Length": str(size), "ETag": hashlib.md5(data).hexdigest()}
            writer.put({**metadata, "X-Timestamp": timestamp.internal})
            writer.commit(timestamp)
        with file.open():
            files[name] = file._data_file
    os.sync()
    print(json.dumps(files))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3:]])
