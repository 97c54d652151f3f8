"""One measurement of a client of a Ceph cluster: `python benches/ceph_client.py METHOD ...` prints a JSON line.

Run by ceph.py, with Ceph's libraries in LD_LIBRARY_PATH, and mostly behind a link of a bounded rate.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs
from trips import trips

#: Rows of a row group.
GROUP = 1 << 16


def condition(share: str) -> pc.Expression | None:
    """True for this share of the rows; `none`: no filter."""
    return None if share == "none" else pc.field("pick") < float(share)


def timed(job: Callable[[], pa.Table], times: str, **more: Any) -> None:
    """Prints how long each call took by the clock and by this process's processor time."""
    seconds, processor, rows = [], [], 0
    for _ in range(int(times)):
        begun, worked = time.perf_counter(), time.process_time()
        rows = job().num_rows
        seconds.append(time.perf_counter() - begun)
        processor.append(time.process_time() - worked)
    print(json.dumps({"seconds": seconds, "processor": processor, "rows": rows, **more}))


def files(address: str, number: str, rows: str) -> None:
    """Writes files of trips, each an object; their bytes."""
    import skytether

    for file in range(int(number)):
        skytether.write_dataset(trips(int(rows), file), address, rows_per_file=int(rows), basename=f"{file:03}-{{i}}", row_group_size=GROUP)
    print(json.dumps({"bytes": sum(size for _, size in skytether.dataset(address)._listing.tree.list())}))


def pushed(address: str, share: str, times: str) -> None:
    """A scan whose filter runs at the OSDs."""
    import skytether

    found = skytether.dataset(address, format="parquet")
    timed(lambda: found.to_table(filter=condition(share)), times)


def pyarrow(address: str, share: str, times: str) -> None:
    """The same scan by pyarrow's own data set over the same objects."""
    from skytether import _internal
    from skytether._ceph_files import Opened

    tree = _internal.CephFiles(address, True)
    paths = [path for path, _ in tree.list()]

    def job() -> pa.Table:
        system, parquet = pa.fs.PyFileSystem(Opened(tree, keep=True)), pads.ParquetFileFormat()
        fragments = [parquet.make_fragment(path, filesystem=system) for path in paths]
        return pads.FileSystemDataset(fragments, fragments[0].physical_schema, parquet, system).to_table(filter=condition(share))

    timed(job, times)


def ingest(url: str, rows: str, seed: str) -> None:
    """An ingest of numbers that nothing packs; bytes stored in a second."""
    import skytether

    random = np.random.default_rng(int(seed))
    table = pa.table({f"c{n}": random.integers(-(2**62), 2**62, int(rows)) for n in range(8)})
    with skytether.open(url, drives=3) as fleet:
        begun = time.perf_counter()
        fleet.ingest(table, f"bench.numbers{seed}")
        seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": [seconds], "bytes": table.nbytes}))


def matrix(url: str, source: str) -> None:
    """Ingests a matrix."""
    import msgexpress

    with msgexpress.open(url, drives=3) as db:
        db.ingest(source, "bench/matrix", replace=True)
    print("{}")


def genes(url: str, times: str) -> None:
    """Differential expression of all groups, with who ran it."""
    import msgexpress

    with msgexpress.open(url, kept_per_drive=0) as db:
        ds, receipts = db["bench/matrix"], []

        def job() -> pa.Table:
            found = ds.rank_genes_groups("cell_type", method="t-test", transform="log1p_cp10k")
            receipts.append(found.receipt.to_dict())
            return pa.Table.from_pandas(found.to_df())

        job()
        osds = [osd["slices"] for drive in receipts[0]["drives"] for osd in drive.get("below", [])]
        timed(job, times, at_osds=sum(osds), slices=sum(drive["slices"] for drive in receipts[0]["drives"]), moved=receipts[0]["bytes_moved"])


def call(url: str, times: str) -> None:
    """A sub-plan over one small slice at its OSD, next to one that reads the slice."""
    import skytether

    with skytether.open(url, drives=1) as fleet:
        fleet.ingest(trips(1000, 1), "bench.small", replace=True)
        timed(lambda: fleet.sql("SELECT sum(whole0) FROM bench.small WHERE pick < 0.5").to_arrow(), times)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    # Threads of librados or pyarrow that still end may abort the process at its exit.
    sys.stdout.flush()
    os._exit(0)
