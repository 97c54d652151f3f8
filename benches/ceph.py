"""Inside a Ceph cluster, in one run on one cluster of three OSDs: scans of files at the OSDs and by client-side pyarrow
behind a link of 1 Gb/s, differential expression next to an embedded fleet, ingests next to `rados bench`."""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ceph_clusters as clusters
import data
from processes import fleet_of, med, one

#: Files, rows of each, cells, genes, rows of an ingest, and repetitions.
FULL = {"files": 16, "rows": 700_000, "cells": 50_000, "genes": 20_000, "ingested": 4_000_000, "times": 5}
QUICK = {"files": 4, "rows": 200_000, "cells": 5_000, "genes": 20_000, "ingested": 1_000_000, "times": 3}

#: Bits a second of the client's link.
LINK = 1e9

#: Objects of `rados bench` have the bytes of a slice, and as many are under way as an ingest has.
OBJECT, UNDER_WAY, SECONDS = 1 << 20, 16, 4

Line = Callable[..., None]


def scans(ceph: clusters.Cluster, size: dict[str, int], line: Line) -> None:
    """1% and all of the rows, both contenders in turn."""
    place = f"rados://sky/trips/?conf={ceph.conf}&namespace=files"
    stored = ceph.client("ceph_client.py", "files", place, size["files"], size["rows"], linked=False)["bytes"]
    print(f"\n{size['files']} Parquet files of {size['rows']:,} rows and 17 columns, {stored / 1e6:.0f} MB, three OSDs, a link of {LINK / 1e9:.0f} Gb/s")
    for share, what in (("0.01", "1% of the rows"), ("2", "all rows, by a filter that keeps all"), ("none", "all rows, no filter")):
        took: dict[str, list[float]] = {"pushed": [], "pyarrow": []}
        moved: dict[str, int] = {}
        for _ in range(3):
            for contender, seconds in took.items():
                before = ceph.link.moved() if ceph.link else 0
                told = ceph.client("ceph_client.py", contender, place, share, size["times"])
                seconds.append(statistics.median(told["seconds"]))
                moved[contender] = ((ceph.link.moved() if ceph.link else 0) - before) // size["times"]
        mine, theirs = (statistics.median(took[name]) for name in took)
        few = share == "0.01"
        compared = f"client-side pyarrow {theirs:.3f} s: {theirs / mine:.1f}x" if few else f"client-side pyarrow {theirs:.3f} s: {mine / theirs:.2f}x of it"
        line(what, f"{mine:.3f} s", compared, ">= 3x" if few else "<= 1.1x", theirs / mine >= 3 if few else mine / theirs <= 1.1)
        line("  bytes over the link", f"{moved['pushed'] / 1e6:.1f} MB", f"client-side pyarrow {moved['pyarrow'] / 1e6:.1f} MB")


def expression(ceph: clusters.Cluster, size: dict[str, int], line: Line) -> None:
    """The same matrix in both, in turn. The embedded fleet has as many drives."""
    source = data.h5ad(size["cells"], size["genes"])
    fleet = fleet_of(source)[0]
    url = ceph.url("sky/genes")
    ceph.client("ceph_client.py", "matrix", url, source, linked=False)
    print(f"\n{size['cells']:,} cells x {size['genes']:,} genes, {data.GROUPS} groups")
    pairs = []
    for _ in range(3):
        there = ceph.client("ceph_client.py", "genes", url + "&osds=required", size["times"], linked=False)
        pairs.append((there, one("skytether", fleet, "bench/matrix", size["times"])))
    mine, embedded = (statistics.median(med(pair[at]) for pair in pairs) for at in (0, 1))
    ratio = statistics.median(med(a) / med(b) for a, b in pairs)
    line("t-test of all groups on three OSDs", f"{mine:.3f} s", f"embedded fleet {embedded:.3f} s: {ratio:.2f}x", "<= 1.5x", ratio <= 1.5)
    told = pairs[0][0]
    line("  slices that OSDs processed", f"{told['at_osds']}", f"of {told['slices']}", "all", told["at_osds"] == told["slices"])
    here = ceph.client("ceph_client.py", "genes", url + "&osds=never", size["times"], linked=False)
    line("  in the client, without OSDs", f"{med(here):.3f} s", f"{med(here) / mine:.2f}x")


def ingests(ceph: clusters.Cluster, size: dict[str, int], line: Line) -> None:
    """Both in turn; what they stored is removed."""
    rates: dict[str, list[float]] = {"ingest": [], "rados": []}
    for number in range(3):
        ceph.tell("pool bench 3")
        said = ceph.tool("-p", "bench", "bench", SECONDS, "write", "-b", OBJECT, "-t", UNDER_WAY, "--no-cleanup")
        found = re.search(r"Bandwidth \(MB/sec\):\s+([\d.]+)", said)
        if not found:
            raise SystemExit(f"rados bench says no rate: {said}")
        # Its megabytes have 2^20 bytes.
        rates["rados"].append(float(found[1]) * (1 << 20) / 1e6)
        ceph.tell('mon {"prefix": "osd pool delete", "pool": "bench", "pool2": "bench", "yes_i_really_really_mean_it": true}')
        ceph.tell("pool ingest 3")
        told = ceph.client("ceph_client.py", "ingest", ceph.url("ingest/numbers"), size["ingested"], number, linked=False)
        rates["ingest"].append(told["bytes"] / told["seconds"][0] / 1e6)
        ceph.tell('mon {"prefix": "osd pool delete", "pool": "ingest", "pool2": "ingest", "yes_i_really_really_mean_it": true}')
    mine, theirs = (statistics.median(rates[name]) for name in ("ingest", "rados"))
    line("ingest of numbers that nothing packs", f"{mine:.0f} MB/s", f"rados bench {theirs:.0f} MB/s: {mine / theirs:.0%}", ">= 70%", mine / theirs >= 0.7)


def calls(ceph: clusters.Cluster, line: Line) -> None:
    """What a call of the class and the engine costs, next to reading a slice of some kilobytes."""
    took = {osds: ceph.client("ceph_client.py", "call", ceph.url("sky/calls", f"&osds={osds}"), 200, linked=False) for osds in ("required", "never")}
    there, here = (statistics.median(one["seconds"][20:]) * 1e3 for one in took.values())
    line("a query over one small slice at its OSD", f"{there:.2f} ms", f"in the client {here:.2f} ms")


def compare(quick: bool, line: Line) -> None:
    """All of it. Without Ceph's packages, or a link, it says so."""
    size: dict[str, Any] = QUICK if quick else FULL
    place = data.OUT / "ceph"
    shutil.rmtree(place, ignore_errors=True)
    try:
        with clusters.link() as behind, clusters.cluster(Path(place), 3, behind) as ceph:
            behind.rate(LINK)
            scans(ceph, size, line)
            expression(ceph, size, line)
            ingests(ceph, size, line)
            calls(ceph, line)
    except clusters.Skipped as why:
        line("inside a Ceph cluster", "skipped", str(why)[:80])
    finally:
        shutil.rmtree(place, ignore_errors=True)
