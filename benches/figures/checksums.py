"""Checksums of data on 1 to 8 drives, here and in the drives, behind one slow link: Figures 3 and 4 of the Virtual
Objects paper; and scrubs of other people's object stores over the same link."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import paper
import published

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent.parent / "python" / "tests"
sys.path.insert(0, str(HERE.parent))
import kinetic_fleets as fleets  # noqa: E402

#: Drives, objects of each and their bytes, objects of a drive that are under way, and how often each figure is taken.
FULL = {"drives": (1, 2, 3, 4, 6, 8), "objects": 8, "bytes": 16 << 20, "workers": 4, "times": 3}
TINY = {"drives": (1, 2), "objects": 2, "bytes": 1 << 20, "workers": 2, "times": 1}

#: Bits per second of the link, in each direction.
RATE = 1e9

#: Objects of 10 MiB in a store of Swift, and of MinIO's shards of 13 MiB.
STORES, STORES_TINY = 24, 2

#: Checksums: what they are called, and how they are drawn.
ALGORITHMS = {"crc32c": ("CRC-32C", paper.DRIVE), "highwayhash": ("HighwayHash-256", paper.BOTH), "md5": ("MD5", paper.CLIENT)}


def _of_tests() -> Any:
    """What the tests of volumes have: links, stores, mounts."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    try:
        from block import link, minio_store, servers, swift_store
    except ImportError as why:
        raise fleets.Skipped(f"{why}: install requirements-dev.txt") from None
    return link, minio_store, servers, swift_store


@contextlib.contextmanager
def _drives(place: Path, count: int, size: int) -> Iterator[list[tuple[int, str]]]:
    """Drives with a volume each: numbers of their processes, and addresses of their volumes."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(count):
            words = [fleets.SKYTETHER, "drive", "serve", "--data", place / f"drive-{number}", "--volume", f"disk={size}", "--listen", "iscsi://127.0.0.1:0"]
            process, addresses = stack.enter_context(fleets.serving(words, place / f"drive-{number}.log", ("iscsi",)))
            found.append((process, f"{addresses['iscsi']}/iqn.2024-01.io.skytether:drive-{number}/1"))
        yield found


def measure(out: Path, tiny: bool, say: Callable[[str], None], program: Path) -> paper.Result:
    size = TINY if tiny else FULL
    with tempfile.TemporaryDirectory() as place:
        taken = _checksums(Path(place), size, say, program)
    result = paper.Result(
        "checksums",
        "Virtual Objects, Figures 3 and 4: checksums over 1 to 8 drives",
        f"{size['objects']} objects of {size['bytes'] >> 20} MiB on a volume of each drive, {size['workers']} of them under way, as extents without a file system. "
        f"Here: read by iSCSI and computed in one process. In the drives: by EXEC. All drives are behind one link of {RATE / 1e9:g} Gb/s, a token bucket between sockets. "
        f"Drives are processes of this machine, so that all of them share its {os.cpu_count()} cores; the last column but one has what drives with a core each would reach, "
        f"by the processor time that they took. One run here, which the link decides; in the drives medians of {size['times']}. Both must give the same digests.",
    )
    result.tables.append(_table(taken, size))
    most, link_rate = size["drives"][-1], RATE / 8e6
    for algorithm, (name, _) in ALGORITHMS.items():
        here, there = taken[algorithm, most, "here"], taken[algorithm, most, "there"]
        result.says.append(
            f"{name} over {most} drives: {here['rate']:.0f} MB/s here, {there['rate']:.0f} MB/s in the drives, {there['rate'] / here['rate']:.1f} times, "
            f"with {1 - there['carried'] / here['carried']:.3%} less traffic (paper: more than {published.LESS_TRAFFIC:.0%} less; up to {published.SCRUB_FASTER:.0f} times as fast for scrubs of object stores)."
        )
    result.says.append(
        f"Here the link ends it at {taken['crc32c', most, 'here']['rate'] / link_rate:.0%} of its rate; the paper's at {published.LINK_REACHED_GB / (published.LINK_GBIT / 8):.0%} ({published.LINK_REACHED_GB} GB/s of {published.LINK_GBIT} GbE). "
        f"In its drives the paper passes {published.LINK_PASSED_GBIT / published.LINK_GBIT:g} times its link's rate."
    )
    result.plots.append(_draw(out, taken, size))
    rows, says = _scrubs(STORES_TINY if tiny else STORES, 1 if tiny else size["times"], say)
    result.tables.append(
        paper.Table(
            "scrubs",
            f"Scrubs of object stores, their disks mounted over a link of {RATE / 1e9:g} Gb/s; an object is damaged",
            ["store", "MB stored", "seconds, reading", "seconds, in the drive", "times", "MB carried, reading", "MB carried, in the drive", "less traffic", "the paper's", "not measured, because"],
            rows,
        )
    )
    result.says += says
    return result


def _checksums(place: Path, size: dict[str, Any], say: Callable[[str], None], program: Path) -> dict[tuple[str, int, str], dict[str, float]]:
    """Per algorithm, number of drives and place: MB/s, bytes carried, and processor seconds of the drives."""
    from importlib import util

    spec = util.spec_from_file_location("block_link", TESTS / "block" / "link.py")
    assert spec and spec.loader
    links = util.module_from_spec(spec)
    spec.loader.exec_module(links)
    most = size["drives"][-1]
    taken = {}
    with _drives(place, most, size["objects"] * size["bytes"] + (1 << 20)) as drives:
        say(f"checksums: writing to {most} drives")
        objects = [str(size["objects"]), str(size["bytes"])]
        subprocess.run([program, "fill", *objects, *[url for _, url in drives]], check=True)
        for algorithm in ALGORITHMS:
            for count in size["drives"]:
                say(f"checksums: {ALGORITHMS[algorithm][0]} over {count} drives")
                digests = set()
                for where in ("here", "there"):
                    runs = []
                    for _ in range(size["times"] if where == "there" else 1):
                        with links.link(RATE) as way:
                            urls = [way.to(url) for _, url in drives[:count]]
                            cpu = sum(fleets.processor_seconds(process) for process, _ in drives[:count])
                            told = fleets.told([program, where, algorithm, *objects, str(size["workers"]), *urls])
                            cpu = sum(fleets.processor_seconds(process) for process, _ in drives[:count]) - cpu
                            digests.add(told["digest"])
                            runs.append({"rate": told["bytes"] / told["seconds"] / 1e6, "carried": way.bytes(), "cpu": cpu, "bytes": told["bytes"]})
                    taken[algorithm, count, where] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
                if len(digests) != 1:
                    raise SystemExit(f"{algorithm} over {count} drives: digests here and in the drives differ")
    return taken


def _table(taken: dict[tuple[str, int, str], dict[str, float]], size: dict[str, Any]) -> paper.Table:
    rows = []
    for algorithm, (name, _) in ALGORITHMS.items():
        for count in size["drives"]:
            here, there = taken[algorithm, count, "here"], taken[algorithm, count, "there"]
            alone = count * there["bytes"] / there["cpu"] / 1e6
            rows.append(
                [name, count, here["rate"], there["rate"], there["rate"] / here["rate"], here["carried"] / 1e6, there["carried"] / 1e6, 1 - there["carried"] / here["carried"], alone, RATE / 8e6]
            )
    columns = ["checksum", "drives", "MB/s, here", "MB/s, in the drives", "times", "MB carried, here", "MB carried, in the drives", "less traffic", "MB/s with a core for each drive, by arithmetic", "MB/s of the link"]
    return paper.Table("checksums", "Checksums over a number of drives, behind one link", columns, rows)


def _draw(out: Path, taken: dict[tuple[str, int, str], dict[str, float]], size: dict[str, Any]) -> str:
    made, axes = paper.figure(9.5, 4.8, 2)
    for ax, where, title in zip(axes, ("here", "there"), ("here: all bytes come (Figure 3)", "in the drives: digests come (Figure 4)"), strict=True):
        for algorithm, (name, colour) in ALGORITHMS.items():
            of = [taken[algorithm, count, where] for count in size["drives"]]
            ax.plot(size["drives"], [point["rate"] for point in of], color=colour, marker="o", markersize=4, label=name)
            if where == "there":
                ax.plot(size["drives"], [n * p["bytes"] / p["cpu"] / 1e6 for n, p in zip(size["drives"], of)], color=colour, linestyle=":", linewidth=1.2)
        ax.axhline(RATE / 8e6, color=paper.PUBLISHED, linestyle="--", linewidth=1.2, label=f"the link, {RATE / 1e9:g} Gb/s")
        ax.set_title(title, fontsize=10, color=paper.INK)
        ax.set_xticks(size["drives"])
        ax.set_xlabel("drives")
        if where == "here":
            ax.set_ylim(bottom=0)
        else:
            ax.set_yscale("log")
            paper.plain_numbers(ax.yaxis)
        ax.legend(fontsize=8, **paper.BOX)
    axes[0].set_ylabel("MB/s")
    caption = (
        f"All drives are behind one link and share the {os.cpu_count()} cores of this machine. Dotted: what drives with a core each would reach, by the "
        "processor time that they took. The right scale is logarithmic."
    )
    return paper.save(out, made, "checksums", "Checksums over several drives, behind one link", caption)


def _scrubs(objects: int, times: int, say: Callable[[str], None]) -> tuple[list[list[Any]], list[str]]:
    """A row for each store, and what they say."""
    rows, says = [], []
    for name, scrub in (("Swift, object auditor (MD5)", _swift), ("MinIO's layout, skytether oas scrub (HighwayHash-256)", _minio)):
        say(f"scrubs: {name}")
        theirs = f"{published.LESS_TRAFFIC:.0%} less, {published.SCRUB_FASTER:.0f} times"
        try:
            with tempfile.TemporaryDirectory() as place:
                stored, runs = scrub(Path(place), objects, times)
        except fleets.Skipped as why:
            rows.append([name, *[None] * 7, theirs, str(why)])
            continue
        seconds, carried = [{where: statistics.median(run[where][at] for run in runs) for where in ("here", "there")} for at in (0, 1)]
        less = 1 - carried["there"] / carried["here"]
        faster = seconds["here"] / seconds["there"]
        rows.append([name, stored / 1e6, seconds["here"], seconds["there"], faster, carried["here"] / 1e6, carried["there"] / 1e6, less, theirs, None])
        says.append(f"{name}: {faster:.1f} times as fast with {less:.2%} less traffic, and the same object found (paper: {theirs}).")
    return rows, says


@contextlib.contextmanager
def _mounted(servers: Any, server: Any, place: Path, number: int, way: Any = None, make: bool = False) -> Iterator[Path]:
    """The volume's file system, mounted again, by way of a link."""
    url = server.volumes["nbd", "disk"]
    with servers.as_file(way.to(url) if way else url, place / f"fuse-{number}") as file, servers.as_loop(file) as device:
        if make:
            servers.run("mkfs.ext4", "-q", "-F", device)
        with servers.mounted(device, place / "devices" / "d1") as mounted:
            yield mounted


@contextlib.contextmanager
def _volume(place: Path, size: int) -> Iterator[tuple[Any, Any, Any, Any, Any]]:
    link, minio_store, servers, swift_store = _of_tests()
    import pytest

    try:
        servers.needs("nbdfuse", "losetup", "mkfs.ext4", root=True)
    except (pytest.skip.Exception, pytest.fail.Exception) as why:
        raise fleets.Skipped(str(why)) from None
    (place / "devices" / "d1").mkdir(parents=True)
    with servers.serve(place / "drive", "--volume", f"disk={size}") as server:
        yield link, minio_store, servers, swift_store, server


Runs = list[dict[str, tuple[float, int]]]


def _swift(place: Path, objects: int, times: int) -> tuple[int, Runs]:
    try:
        import swift  # noqa: F401
    except ImportError:
        raise fleets.Skipped("Swift is not installed (requirements-dev.txt)") from None
    each, runs = 10 << 20, []
    with _volume(place, (objects * each * 5 // 4 + (64 << 20)) >> 20 << 20) as (link, _, servers, swift_store, server):
        store = swift_store.Store(place / "swift", place / "devices")
        with _mounted(servers, server, place, 0, make=True):
            files = store.write("d1", [each] * objects)
            # Changed by the file system, which is as good: nothing of it is cached later.
            with files["object-1"].open("r+b") as file:
                file.seek(each // 2)
                file.write(b"rot")
        for run in range(times):
            runs.append({})
            for where, diskfile in (("there", swift_store.OFFLOADED), ("here", swift_store.PLAIN)):
                with link.link(RATE) as way, _mounted(servers, server, place, 1 + 2 * run + (where == "here"), way):
                    store.configure(diskfile, {"d1": way.to(server.volumes["iscsi", "disk"])} if where == "there" else None)
                    before, began = way.bytes(), time.perf_counter()
                    told = store.audit()
                    seconds, carried = _audited(told, time.perf_counter() - began), way.bytes() - before
                    if store.quarantined("d1") != {files["object-1"].parent.name}:
                        raise SystemExit(f"{diskfile} found {store.quarantined('d1')}:\n{told[-2000:]}")
                    store.restore("d1", files)
                runs[-1][where] = seconds, carried
    return objects * each, runs


def _audited(told: str, whole: float) -> float:
    """Seconds of the audit itself, as the auditor tells them: without the start of its process."""
    for line in told.splitlines():
        if '(ALL) "once" mode completed: ' in line:
            return float(line.split("completed: ")[1].split("s.")[0])
    return whole


def _minio(place: Path, objects: int, times: int) -> tuple[int, Runs]:
    runs = []
    # 14 MB a shard: an object of 200 MiB on 15 drives.
    with _volume(place, (objects * (18 << 20) + (64 << 20)) >> 20 << 20) as (link, minio_store, servers, _, server):
        with _mounted(servers, server, place, 0, make=True) as mounted:
            files = minio_store.make_drive(mounted / "minio", objects, 40)
            stored = sum(file.stat().st_size for file in files)
            with files[1].open("r+b") as file:
                file.seek(100_000)
                file.write(b"rot")
        for run in range(times):
            runs.append({})
            for where in ("there", "here"):
                with link.link(RATE) as way, _mounted(servers, server, place, 1 + 2 * run + (where == "here"), way) as mounted:
                    words = [fleets.SKYTETHER, "oas", "scrub", "--layout", "minio", mounted / "minio", "--quiet", "--format", "json"]
                    words += ["--here"] if where == "here" else ["--there", "--target", way.to(server.volumes["iscsi", "disk"])]
                    before, began = way.bytes(), time.perf_counter()
                    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
                    runs[-1][where] = time.perf_counter() - began, way.bytes() - before
                    bad = [json.loads(line).get("object") for line in done.stdout.splitlines()][:-1]
                    if done.returncode != 1 or bad != ["object-1"]:
                        raise SystemExit(f"{words} found {bad}:\n{done.stderr[-2000:]}")
    return stored, runs
