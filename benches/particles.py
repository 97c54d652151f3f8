"""C2's particle search: drives that search, against a host that reads the same Parquet through the same disks and
links.

Five drives like Envoy's compute module hold particles (`skytether generate particles`). Each has a disk with seeks of 8
ms and a link of 2.5 Gb/s. For each energy t of the paper, `SELECT * WHERE ke > t`:

- **ours**: an embedded fleet with that profile. Drives are as slow as the profile says: two cores of a fifteenth of
  this machine's.
- **pyarrow** and **DuckDB**, on the host at this machine's full speed, over the file that `skytether export` writes.
  Its bytes are on the drives of the fleet's slices: a byte range reads the slices that it touches, each at its drive.
  Reads of a drive queue at its disk, where each takes a seek and its bytes at the disk's rate. As for our own drives,
  there is no seek for a read that follows the last one, or a waiting one, by up to two slices. Then they queue at its
  link, with the bytes at its rate and its latency. Drives work in parallel, and all reads start when the program asks
  for them. The processor time of a drive that sends slices raw is not counted, in favour of these programs. Both skip
  row groups by the bounds in the file's footer. C2's own reader had no footer: it read the metadata at the end of each
  row group, a seek each.
- **kept** is pyarrow with a dataset that was opened and searched once before: it has the footer, as our host has root
  records. (*ours* is such a host, too; the time of its first search is printed as well.)
- **units** is that reader: pyarrow again, which first reads the last kilobytes of every slice, all at once, and then
  the row groups that may match.

With `--index` there are two more. **indexed** is the same fleet with an index on `ke` that includes the other columns:
in effect a copy of the rows in the order of their energy; its bytes are printed. **narrowed** has an index that
includes none, so that drives read slices for the rows that it finds.

`python benches/particles.py [--rows 50M] [--repeat 3] [--lost] [--index]`, or `python benches/run.py particles`, prints
seconds and ratios. With `--lost` the fleet is stored with ec:4+1, and is also measured without one of its drives.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import data  # noqa: E402

DRIVES = 5
ROWS = 50_000_000

#: Shares of all particles between the published ones; their energies are looked up. With the second, more rows of a
#: slice match than are decoded row by row.
SHARES = (0.01, 0.12, 0.5)

#: Energies, and the share of particles above each, as published.
ENERGIES = ((0.7, 0.0), (0.6, 80 / 500e6), (0.5, 2.5e3 / 500e6), (0.4, 63e3 / 500e6), (0.3, 1.1e6 / 500e6), (-1.0, 1.0))

SEEK, DISK, LINK, LATENCY = 0.008, 261e6, 2.5e9, 0.0002

PROFILE = f"""
speed_per_core = {1 / 15}
cores = 2
memory_bytes = 1073741824
disk_bytes_per_s = {DISK}
disk_seek_s = {SEEK}
link_bits_per_s = {LINK}
link_latency_s = {LATENCY}
"""

#: Requests that the disk may reorder within one movement of its head.
QUEUE = 16

#: Bytes at a slice's end that have its metadata.
TAIL = 2048


class Drive:
    """A disk and a link behind it; each serves one request after the other. As in `emulation::booking`, a request
    reserves its time, and its caller waits until the end of that."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.disk = self.link = 0.0
        self.at = -10
        self.waiting: list[tuple[int, float, int]] = []
        self.reads = self.seeks = self.bytes = 0

    def book(self, slice_: int, size: int) -> float:
        """When `size` bytes of a slice of this drive, counted among its own, will have come."""
        with self.lock:
            now = time.monotonic()
            self.waiting = [waits for waits in self.waiting if waits[1] > now]
            follows = abs(slice_ - self.at) <= 2
            # Or it is read with one that waits, as many as a disk's queue holds.
            behind = 1 + max((before for at, _, before in self.waiting if abs(slice_ - at) <= 2), default=QUEUE)
            if not follows and behind < QUEUE:
                follows = True
            else:
                self.at, behind = slice_, 0
            self.reads += 1
            self.seeks += not follows
            self.bytes += size
            begins = max(now, self.disk)
            self.waiting.append((slice_, begins, behind))
            self.disk = begins + (0.0 if follows else SEEK) + size / DISK
            self.link = max(self.disk, self.link) + 8 * size / LINK
            return self.link + 2 * LATENCY


class Drives:
    """The bytes of an exported file, on the drives of its slices, which were distributed round robin."""

    def __init__(self, path: Path, ends: list[int]) -> None:
        self.bytes = path.read_bytes()
        self.ends, self.drives = ends, [Drive() for _ in range(DRIVES)]

    def wait(self, start: int, end: int) -> None:
        """Until the bytes have come from all drives that have some. Those behind the slices, the footer,
        are the first drive's."""
        import bisect

        due, at = 0.0, bisect.bisect_right(self.ends, start)
        while start < end:
            stop = min(end, self.ends[at]) if at < len(self.ends) else end
            drive = self.drives[at % DRIVES if at < len(self.ends) else 0]
            due = max(due, drive.book(at // DRIVES, stop - start))
            start, at = stop, at + 1
        time.sleep(max(0.0, due - time.monotonic()))

    def read(self, start: int, end: int) -> bytes:
        if start < end:
            self.wait(start, end)
        return self.bytes[start:end]

    def told(self) -> str:
        return f"{sum(d.reads for d in self.drives):,} reads, {sum(d.seeks for d in self.drives):,} seeks, {sum(d.bytes for d in self.drives) / 1e6:,.0f} MB"


def file_system(drives: Drives) -> Any:
    """The file as `paced://p.parquet`, whose reads wait as they would."""
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

    class File(AbstractBufferedFile):
        def _fetch_range(self, start: int, end: int) -> bytes:
            return drives.read(max(0, start), min(end, self.size))

    class Paced(AbstractFileSystem):
        protocol = "paced"
        cachable = False

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            return {"name": self._strip_protocol(path), "size": len(drives.bytes), "type": "file"}

        def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
            return [self.info(path)] if detail else [path]

        def modified(self, path: str) -> Any:
            from datetime import datetime, timezone

            return datetime(2000, 1, 1, tzinfo=timezone.utc)

        def _open(self, path: str, mode: str = "rb", **_: Any) -> File:
            return File(self, self._strip_protocol(path), "rb", cache_type="none", size=len(drives.bytes))

    return Paced()


def make(rows: int, redundancy: str) -> tuple[Path, Path]:
    """The fleet, and the file that its slices are."""
    import skytether

    place, file = data.OUT / f"particles_{rows}_{redundancy.replace(':', '_')}", data.OUT / f"particles_{rows}_{redundancy.replace(':', '_')}.parquet"
    if not file.exists():
        shutil.rmtree(place, ignore_errors=True)
        raw = data.OUT / "particles.vpic"
        skytether.generate_particles(raw, rows, replace=True)
        with skytether.open(place, drives=DRIVES, redundancy=redundancy) as fleet:
            started = time.monotonic()
            fleet.ingest(raw, "physics.p")
            print(f"  ingest of {rows:,} raw records, {redundancy}: {time.monotonic() - started:.1f} s")
            fleet.export("physics.p", file)
        raw.unlink()
    return place, file


def slices(file: Path) -> list[int]:
    """Where each slice of the file ends: before the next one's magic number."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(file)
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    starts = [min(group.column(c).dictionary_page_offset or group.column(c).data_page_offset for c in range(5)) - 4 for group in groups]
    with open(file, "rb") as opened:
        opened.seek(-8, 2)
        footer = int.from_bytes(opened.read(4), "little") + 8
    return [*starts[1:], file.stat().st_size - footer]


def ours(place: Path, t: float) -> Callable[[], int]:
    """A search by the drives. The fleet is opened before, as the others' files are not: both
    are named in the report."""
    import skytether

    fleet = skytether.open(place, profile=PROFILE)

    def search() -> int:
        return fleet.sql(f"SELECT * FROM physics.p WHERE ke > {t}").to_arrow().num_rows

    search.close = fleet.close  # type: ignore[attr-defined]
    return search


def with_indexes(place: Path) -> dict[str, Path]:
    """Copies of the fleet that have indexes, by the names of the contenders."""
    import skytether

    copies = {}
    for which, include in (("indexed", ["ID", "x", "y", "z"]), ("narrowed", [])):
        copy = copies[which] = place.with_name(f"{place.name}_{which}")
        if copy.exists():
            continue
        aside = copy.with_suffix(".part")
        shutil.rmtree(aside, ignore_errors=True)
        # The copy links slices and pages, which never change: so it takes no space for them.
        shutil.copytree(place, aside, copy_function=lambda a, b: os.link(a, b) if "slices" in Path(a).parts else shutil.copy2(a, b))
        with skytether.open(aside) as fleet:
            started = time.monotonic()
            fleet.create_index("physics.p", "ke", include=include, wait=True)
            told = fleet.list_indexes("physics.p")[0]
            stored = sum(drive["usage"]["value_bytes"] for drive in fleet.status()) - told["bytes"]
            print(f"  {which}: {told['rows']:,} rows in {told['bytes'] / 1e6:,.0f} MB beside {stored / 1e6:,.0f} MB of slices, built in {time.monotonic() - started:.1f} s at this machine's speed")
        aside.rename(copy)
    return copies


def with_pyarrow(drives: Drives, t: float, units: bool = False) -> int:
    import concurrent.futures

    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    if units:
        with concurrent.futures.ThreadPoolExecutor(4 * DRIVES) as pool:
            list(pool.map(lambda end: drives.read(end - TAIL, end), drives.ends))
    dataset = ds.dataset("p.parquet", filesystem=file_system(drives), format="parquet")
    return dataset.to_table(filter=pc.field("ke") > t).num_rows


def kept_by_pyarrow(path: Path, ends: list[int], t: float) -> Callable[[Drives], int]:
    """A search by a pyarrow that has the file's footer already; it is given the drives that it reads from."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    # What the file system reads from is exchanged below a dataset that stays.
    drives = Drives(path, ends)
    dataset = ds.dataset("p.parquet", filesystem=file_system(drives), format="parquet")

    def search(fresh: Drives) -> int:
        drives.drives = fresh.drives
        return dataset.to_table(filter=pc.field("ke") > t).num_rows

    search(drives)
    return search


def energies(file: Path) -> list[tuple[float, float]]:
    """Those of the paper, and those of `SHARES`."""
    import numpy as np
    import pyarrow.parquet as pq

    ke = pq.read_table(file, columns=["ke"])["ke"].to_numpy()
    # As energies are stored: who compares with a constant of more digits rounds it, or not, and finds
    # one particle more or less.
    between = [(float(np.float32(t)), share) for share, t in zip(SHARES, np.quantile(ke, [1 - share for share in SHARES]), strict=True)]
    return [*ENERGIES[:-1], *between, ENERGIES[-1]]


def with_duckdb(drives: Drives, t: float) -> int:
    import duckdb

    with duckdb.connect() as db:
        db.register_filesystem(file_system(drives))
        return db.sql(f"SELECT * FROM read_parquet('paced://p.parquet') WHERE ke > {t}").to_arrow_table().num_rows


def timed(work: Callable[[], int]) -> tuple[float, int]:
    started = time.monotonic()
    rows = work()
    return time.monotonic() - started, rows


def compare(rows: int, repeat: int, lost: bool, index: bool, line: Callable[..., None]) -> list[dict[str, Any]]:
    """All searches, the contenders in turn."""
    results = []
    place, file = make(rows, "ec:4+1" if lost else "none")
    indexed = with_indexes(place) if index else {}
    ends = slices(file)
    print(f"\n{rows:,} particles in {len(ends):,} slices on {DRIVES} drives like Envoy, disks with {1000 * SEEK:.0f} ms to seek, links of {LINK / 1e9} Gb/s")
    # What a program does once, importing and setting up, is not a search.
    for warm in (lambda: with_pyarrow(Drives(file, ends), 2.0), lambda: with_duckdb(Drives(file, ends), 2.0)):
        warm()
    for t, share in energies(file):
        search = ours(place, t)
        ours_first = timed(search)[0]
        kept = kept_by_pyarrow(file, ends, t)
        works: dict[str, Any] = {
            "ours": search, "pyarrow": lambda: with_pyarrow(drives, t), "duckdb": lambda: with_duckdb(drives, t), "kept": lambda: kept(drives), "units": lambda: with_pyarrow(drives, t, True),
        }  # fmt: skip
        for which, copy in indexed.items():
            works[which] = ours(copy, t)
            works[which]()
        taken: dict[str, list[float]] = {name: [] for name in works}
        found, told = set(), {}
        for _ in range(repeat):
            for name in taken:
                drives = Drives(file, ends)
                seconds, hits = timed(works[name])
                taken[name].append(seconds)
                found.add(hits)
                told[name] = drives.told()
        for name in ("ours", *indexed):
            works[name].close()
        assert len(found) == 1, f"ke > {t}: other rows were found by others: {found}"
        took = {name: statistics.median(values) for name, values in taken.items()}
        best = min(took["pyarrow"], took["duckdb"])
        # As issue 5 has them: at no hit, at 0.0126% of all, and everywhere else.
        wanted = {0.7: 8.0, 0.4: 3.0}.get(t, 1.0)
        line(
            f"ke > {t:.4g}: {found.pop():,} hits ({share:.5%})", f"{took['ours']:.3f} s",
            f"(first {ours_first:.3f}) pyarrow {took['pyarrow']:.3f} s, DuckDB {took['duckdb']:.3f} s: {best / took['ours']:.2f}x; footer kept {took['kept']:.3f} s: {took['kept'] / took['ours']:.2f}x; by units {took['units']:.2f} s: {took['units'] / took['ours']:.2f}x",
            f">= {wanted}x", best / took["ours"] >= wanted,
        )  # fmt: skip
        for which in indexed:
            faster = took["ours"] / took[which]
            # The figure is about 0.013% of the particles.
            due = 3.0 if which == "indexed" and 0.0001 < share < 0.0002 else None
            line(f"  {which}", f"{took[which]:.3f} s", f"{faster:.2f}x ours without, {best / took[which]:.2f}x the best of the others", f">= {due}x" if due else "", faster >= due if due else None)
        print("".join(f"      {name}: {what}\n" for name, what in told.items() if name in ("pyarrow", "duckdb", "units")), end="")
        results.append({"t": t, "ours_first": ours_first, **took})
    if lost:
        results += without_a_drive(place, file, repeat, line)
    return results


def without_a_drive(place: Path, file: Path, repeat: int, line: Callable[..., None]) -> list[dict[str, Any]]:
    """The same searches by the whole fleet and by what is left of it."""
    results = []
    for t, _ in energies(file):
        took = {}
        for which in ("all", "four"):
            aside = place / "away"
            if which == "four":
                (place / "drives" / "2").rename(aside)
            try:
                search = ours(place, t)
                took[which] = statistics.median(timed(search)[0] for _ in range(repeat))
                search.close()  # type: ignore[attr-defined]
            finally:
                if which == "four":
                    aside.rename(place / "drives" / "2")
        line(f"ke > {t:.4g}, one of five drives lost", f"{took['four']:.2f} s", f"with all {took['all']:.2f} s: {took['four'] / took['all']:.2f}x", "<= 1.5x", took["four"] <= 1.5 * took["all"])
        results.append({"t": t, "ours": took["all"], "lost": took["four"]})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--lost", action="store_true", help="with ec:4+1, and also without one of the drives")
    parser.add_argument("--index", action="store_true", help="also with indexes on ke, with and without the other columns in it")
    args = parser.parse_args()
    data.OUT.mkdir(exist_ok=True)

    def line(what: str, value: str, compared: str = "", wanted: str = "", ok: bool | None = None) -> None:
        print(f"  {what:<44} {value:>9}  {compared}  {wanted} {'' if ok is None else 'ok' if ok else 'MISSED'}", flush=True)

    results = compare(args.rows, args.repeat, args.lost, args.index, line)
    with open(data.OUT / "particles.csv", "w", newline="") as out:
        writer = csv.DictWriter(out, sorted({key for row in results for key in row}))
        writer.writeheader()
        writer.writerows(results)


if __name__ == "__main__":
    main()
