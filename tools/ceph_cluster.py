#!/usr/bin/env python3
"""A Ceph cluster on loopback for tests: one monitor and some OSDs of Debian's packages.

The packages are unpacked and not installed.

    ceph_cluster.py fetch            downloads and unpacks the packages below the user's cache (needs apt-get)
    ceph_cluster.py where            prints the folder of the unpacked packages, or says why there is none
    ceph_cluster.py run DIR [OSDS]   starts a cluster in DIR, and ends it when standard input ends

`run` prints one line of JSON when the cluster is usable: `conf`, `libraries`, `root`. Next to `conf` are a folder of
object classes for each OSD (`osdN/classes`) and that of the engines' sockets (`sockets`). `run` then takes one command
a line and answers each with one line of JSON:

    kill N, start N      ends OSD N at once, as a loss of power would; starts it again, in memstore empty
    pause N, resume N    stops and continues it
    pool NAME SIZE       makes a replicated pool
    coded NAME           makes an erasure-coded pool (2+1)
    fs NAME              makes a file system with pools NAME-meta and NAME-data, and starts its metadata server
    user NAME JSON       makes a user with capabilities, and a configuration file that has its key; its path
    mon JSON             passes a command to the monitor

| variable | meaning |
|---|---|
| SKYTETHER_CEPH_STORE | `memstore`: OSDs store in memory; `bluestore`: as in a real cluster, in sparse files of DIR |
| SKYTETHER_CEPH_BYTES | bytes that an OSD in memory has room for |
| SKYTETHER_CEPH_ADDRESS | the address of this machine that daemons listen at, instead of 127.0.0.1 |

All daemons are children of this process, are ended by their own process ids, and die with it.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skytether" / "ceph"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
STORE = os.environ.get("SKYTETHER_CEPH_STORE", "memstore")
BYTES = int(os.environ.get("SKYTETHER_CEPH_BYTES", 1 << 30))
ADDRESS = os.environ.get("SKYTETHER_CEPH_ADDRESS", "127.0.0.1")
NETWORK = "127.0.0.0/8" if ADDRESS.startswith("127.") else f"{ADDRESS}/32"
# Seconds until a cluster must be usable, on a machine that compiles meanwhile.
PATIENCE = 120


def packages() -> list[str]:
    lines = (HERE / "ceph_packages.txt").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def root() -> Path:
    """The folder of the unpacked packages."""
    given = os.environ.get("SKYTETHER_CEPH_ROOT")
    found = Path(given) if given else CACHE / "root"
    if not (found / "usr/bin/ceph-osd").exists():
        raise SystemExit(f"there is no Ceph in {found}: run `python3 tools/ceph_cluster.py fetch` on Debian 12")
    return found


def fetch() -> None:
    there = CACHE / "root/usr/bin"
    if (there / "ceph-osd").exists() and (there / "ceph-mds").exists():
        return
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise SystemExit("Ceph's packages need apt-get and dpkg-deb, which this machine lacks")
    # An older version of this program fetched no metadata server.
    wanted = ["ceph-mds"] if (there / "ceph-osd").exists() else packages()
    work = CACHE / f"new-{os.getpid()}"
    (work / "root").mkdir(parents=True)
    try:
        subprocess.run(["apt-get", "-qq", "-o", "Acquire::Retries=5", "download", *wanted], cwd=work, check=True, stdout=subprocess.DEVNULL)
        for package in sorted(work.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, work / "root"], check=True)
        # Whole or not at all: another run may fetch at the same time.
        if not (CACHE / "root").exists():
            (work / "root").rename(CACHE / "root")
        elif not (there / "ceph-mds").exists():
            (work / "root/usr/bin/ceph-mds").rename(there / "ceph-mds")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def with_libraries(at: Path) -> None:
    """Starts this program again where the loader does not look into the folder yet: it reads the variable once."""
    paths = [at / LIBRARIES, at / LIBRARIES / "ceph", at / "lib/x86_64-linux-gnu"]
    wanted = ":".join(map(str, paths))
    if os.environ.get("LD_LIBRARY_PATH") != wanted:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "LD_LIBRARY_PATH": wanted})


def free_ports(number: int) -> list[int]:
    held = [socket.socket() for _ in range(number)]
    for one in held:
        one.bind((ADDRESS, 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def dies_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def states(process: int) -> list[str]:
    """What each thread of a process does; T: it is stopped."""
    stats = [task.read_text() for task in Path(f"/proc/{process}/task").glob("*/stat")]
    return [stat.rpartition(")")[2].split()[0] for stat in stats]


class Cluster:
    def __init__(self, at: Path, where: Path, osds: int):
        self.at, self.root, self.osds = at, where, osds
        self.daemons: dict[str, subprocess.Popen] = {}
        self.conf = at / "ceph.conf"
        self.rados = None
        self.uuids = [str(uuid.uuid4()) for _ in range(osds)]

    def tool(self, name: str, *arguments: object) -> None:
        done = subprocess.run([self.root / "usr/bin" / name, *map(str, arguments)], capture_output=True, text=True, cwd=self.at, timeout=PATIENCE)
        if done.returncode != 0:
            raise RuntimeError(f"{name} {' '.join(map(str, arguments))}: {done.stdout}{done.stderr}")

    def configure(self) -> None:
        self.fsid = str(uuid.uuid4())
        v2, v1 = free_ports(2)
        self.mon = f"[v2:{ADDRESS}:{v2},v1:{ADDRESS}:{v1}]"
        for name in ["run", "mon", "sockets", *(f"osd{i}" for i in range(self.osds))]:
            (self.at / name).mkdir(parents=True, exist_ok=True)
        lib = self.root / LIBRARIES
        # Folders of their own, as on as many machines: tests put an object class there.
        for i in range(self.osds):
            (classes := self.at / f"osd{i}/classes").mkdir(parents=True)
            for file in (lib / "rados-classes").iterdir():
                (classes / file.name).symlink_to(file)
        self.conf.write_text(f"""[global]
fsid = {self.fsid}
mon host = {self.mon}
public network = {NETWORK}
ms bind ipv6 = false
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {self.at}/keyring
run dir = {self.at}/run
admin socket = {self.at}/run/$name.asok
pid file = {self.at}/run/$name.pid
log file = {self.at}/run/$name.log
osd objectstore = {STORE}
memstore device bytes = {BYTES}
bluestore block size = 8589934592
bluestore cache autotune = false
bluestore cache size = 134217728
osd pool default size = 3
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
osd class dir = {self.at}/osd$id/classes
osd class load list = *
erasure code dir = {lib}/ceph/erasure-code
plugin dir = {lib}/ceph
mon data avail crit = 1
mon data avail warn = 1
mon allow pool delete = true
mon allow pool size one = true
mon osd min down reporters = 1
osd heartbeat grace = 6
osd heartbeat interval = 1
[mon.a]
mon data = {self.at}/mon
[mds.a]
mds data = {self.at}/mds
keyring = {self.at}/mds/keyring
[osd]
osd data = {self.at}/osd$id
keyring = {self.at}/osd$id/keyring
""")

    def daemon(self, name: str, program: str, number: str) -> None:
        log = (self.at / "run" / f"{name}.out").open("ab")
        command = [self.root / "usr/bin" / program, "-f", "-i", number, "-c", self.conf]
        # Where the object class finds the engine next to its OSD.
        environment = {**os.environ, "SKYTETHER_CEPH_SOCKETS": str(self.at / "sockets")}
        self.daemons[name] = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.at, env=environment, preexec_fn=dies_with_parent
        )

    def connect(self) -> None:
        lib = ctypes.CDLL(str(self.root / LIBRARIES / "librados.so.2"))
        self.lib, self.rados = lib, ctypes.c_void_p()
        lib.rados_create2(ctypes.byref(self.rados), b"ceph", b"client.admin", ctypes.c_uint64(0))
        lib.rados_conf_read_file(self.rados, str(self.conf).encode())
        for key in (b"rados_mon_op_timeout", b"rados_osd_op_timeout", b"client_mount_timeout"):
            lib.rados_conf_set(self.rados, key, b"30")
        found = lib.rados_connect(self.rados)
        if found != 0:
            raise RuntimeError(f"no connection to the monitor: {os.strerror(-found)}")

    def command(self, data: bytes = b"", /, **words: object) -> str:
        text = json.dumps(words).encode()
        commands = (ctypes.c_char_p * 1)(text)
        out, out_len, say, say_len = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_size_t()
        done = self.lib.rados_mon_command(self.rados, commands, ctypes.c_size_t(1), data, ctypes.c_size_t(len(data)), ctypes.byref(out),
                                          ctypes.byref(out_len), ctypes.byref(say), ctypes.byref(say_len))
        text, said = (ctypes.string_at(p, n.value).decode() if p.value else "" for p, n in ((out, out_len), (say, say_len)))
        for p in (out, say):
            if p.value:
                self.lib.rados_buffer_free(p)
        if done != 0:
            raise RuntimeError(f"{words}: {os.strerror(-done)}: {said}")
        return text

    def key(self, path: Path) -> str:
        lines = path.read_text().splitlines()
        return next(line.split("=", 1)[1].strip() for line in lines if "key =" in line)

    def make_osd(self, i: int) -> None:
        self.tool("ceph-osd", "--mkfs", "-i", i, "--osd-uuid", self.uuids[i], "-c", self.conf)

    def start(self) -> None:
        self.configure()
        keyring, monmap = self.at / "keyring", self.at / "monmap"
        self.tool("monmaptool", "--create", "--clobber", "--fsid", self.fsid, "--addv", "a", self.mon, monmap)
        self.tool("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        self.tool("ceph-authtool", keyring, "--gen-key", "-n", "client.admin", "--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mds", "allow *")
        self.tool("ceph-mon", "--mkfs", "--keyring", keyring, "-i", "a", "--monmap", monmap, "-c", self.conf)
        self.daemon("mon.a", "ceph-mon", "a")
        self.connect()
        for i in range(self.osds):
            own = self.at / f"osd{i}/keyring"
            self.command(prefix="osd new", uuid=self.uuids[i], id=i)
            self.tool("ceph-authtool", "--create-keyring", own, "--gen-key", "-n", f"osd.{i}")
            entry = f"[osd.{i}]\n\tkey = {self.key(own)}\n".encode()
            self.command(entry, prefix="auth add", entity=f"osd.{i}", caps=["osd", "allow *", "mon", "allow profile osd"])
            self.make_osd(i)
            self.daemon(f"osd.{i}", "ceph-osd", str(i))
        self.wait_up(self.osds)

    def up(self) -> int:
        return json.loads(self.command(prefix="osd stat", format="json"))["num_up_osds"]

    def wait_up(self, number: int) -> None:
        until = time.monotonic() + PATIENCE
        while self.up() < number:
            if time.monotonic() > until:
                raise RuntimeError(f"only {self.up()} of {number} OSDs are up after {PATIENCE} s; logs are in {self.at}/run")
            for name, one in self.daemons.items():
                if one.poll() is not None:
                    raise RuntimeError(f"{name} ended: {(self.at / 'run' / f'{name}.out').read_text()[-2000:]}")
            time.sleep(0.05)

    def file_system(self, name: str) -> None:
        if not (self.root / "usr/bin/ceph-mds").exists():
            raise RuntimeError("there is no ceph-mds: run `python3 tools/ceph_cluster.py fetch`")
        for kind in ("meta", "data"):
            self.command(prefix="osd pool create", pool=f"{name}-{kind}", pg_num=8, pgp_num=8)
        self.command(prefix="fs new", fs_name=name, metadata=f"{name}-meta", data=f"{name}-data")
        own = self.at / "mds/keyring"
        own.parent.mkdir(exist_ok=True)
        self.tool("ceph-authtool", "--create-keyring", own, "--gen-key", "-n", "mds.a")
        entry = f"[mds.a]\n\tkey = {self.key(own)}\n".encode()
        self.command(entry, prefix="auth add", entity="mds.a", caps=["mon", "allow profile mds", "osd", "allow *", "mds", "allow *"])
        self.daemon("mds.a", "ceph-mds", "a")
        until = time.monotonic() + PATIENCE
        while "up:active" not in self.command(prefix="mds stat", format="json"):
            if time.monotonic() > until or self.daemons["mds.a"].poll() is not None:
                raise RuntimeError(f"the metadata server did not start: {(self.at / 'run/mds.a.out').read_text()[-2000:]}")
            time.sleep(0.05)

    def user(self, name: str, capabilities: list[str]) -> str:
        entry = self.command(prefix="auth get-or-create", entity=f"client.{name}", caps=capabilities)
        keyring, conf = self.at / f"{name}.keyring", self.at / f"{name}.conf"
        keyring.write_text(entry)
        conf.write_text(self.conf.read_text().replace(f"keyring = {self.at}/keyring\n", f"keyring = {keyring}\n", 1))
        return str(conf)

    def obey(self, line: str) -> object:
        word, _, rest = line.strip().partition(" ")
        if word in ("kill", "pause", "resume"):
            sent = {"kill": signal.SIGKILL, "pause": signal.SIGSTOP, "resume": signal.SIGCONT}[word]
            one = self.daemons[f"osd.{rest}"]
            one.send_signal(sent)
            if word == "kill":
                one.wait()
            # The signal reaches one thread after the other.
            while word == "pause" and any(state != "T" for state in states(one.pid)):
                pass
        elif word == "start":
            self.daemon(f"osd.{rest}", "ceph-osd", rest)
            self.wait_up(sum(one.poll() is None for name, one in self.daemons.items() if name.startswith("osd.")))
        elif word == "pool":
            name, size = rest.split()
            self.command(prefix="osd pool create", pool=name, pg_num=8, pgp_num=8, size=int(size), yes_i_really_mean_it=True)
            if size == "1":
                self.command(prefix="osd pool set", pool=name, var="size", val="1", yes_i_really_mean_it=True)
        elif word == "coded":
            self.command(prefix="osd erasure-code-profile set", name="k2m1", profile=["k=2", "m=1", "crush-failure-domain=osd"])
            self.command(prefix="osd pool create", pool=rest, pg_num=8, pgp_num=8, pool_type="erasure", erasure_code_profile="k2m1")
        elif word == "fs":
            self.file_system(rest)
        elif word == "user":
            name, _, capabilities = rest.partition(" ")
            return self.user(name, json.loads(capabilities))
        elif word == "mon":
            return self.command(**json.loads(rest))
        else:
            raise RuntimeError(f"{word!r} is no command")
        return True

    def stop(self) -> None:
        for one in self.daemons.values():
            if one.poll() is None:
                one.kill()
        for one in self.daemons.values():
            one.wait()


def run(at: Path, osds: int) -> None:
    where = root()
    with_libraries(where)
    at.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(at.resolve(), where, osds)
    try:
        cluster.start()
        libraries = os.environ["LD_LIBRARY_PATH"]
        print(json.dumps({"conf": str(cluster.conf), "libraries": libraries, "root": str(where)}), flush=True)
        for line in sys.stdin:
            try:
                answer = {"done": cluster.obey(line)}
            except (RuntimeError, KeyError, ValueError) as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)
    finally:
        cluster.stop()


def main() -> None:
    match sys.argv[1:]:
        case ["fetch"]:
            fetch()
        case ["where"]:
            print(root())
        case ["run", at, *osds]:
            run(Path(at), int(osds[0]) if osds else 3)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
