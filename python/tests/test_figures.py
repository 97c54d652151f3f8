"""`make figures` on small inputs: every part makes its tables and plots, and the page names them."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = ROOT / "benches" / "figures" / "run.py"

#: Plots and tables, without their endings.
PLOTS = {"figure5", "figure6", "doors", "figure7", "skyhook_clocks", "skyhook_links", "equal", "checksums"}
TABLES = {
    "figure5", "figure5_overhead", "figure6", "doors", "figure7", "skyhook_clocks", "skyhook_enough", "skyhook_links", "link_measured", "equal_moments",
    "equal_measured", "checksums", "scrubs",
}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("figures") / "out"
    ran = subprocess.run([sys.executable, str(RUN), "--tiny", "--out", str(out)], capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr[-3000:]
    # In a Ceph cluster behind a link, where this machine can have both.
    if "Not measured here" not in ran.stdout:
        PLOTS.add("osds")
        TABLES.add("osds")
    assert "[10/11]" in ran.stderr and f"{len(PLOTS)} plots and {len(TABLES)} tables" in ran.stdout
    return out


@pytest.mark.timeout(900)  # Where it is the first to need the Rust programs, they are built.
def test_every_part_writes_its_plots_and_tables(out):
    assert {path.stem for path in out.glob("*.png")} == PLOTS == {path.stem for path in out.glob("*.svg")}
    assert {path.stem for path in out.glob("*.csv")} == TABLES
    assert all(path.stat().st_size > 5_000 for path in out.glob("*.png"))
    page = (out / "README.md").read_text()
    for name in PLOTS:
        assert f"({name}.png)" in page
    for name in TABLES:
        assert f"({name}.csv)" in page
    # What was not measured says so, in its table's title as well.
    assert page.count("(simulated) ([CSV]") == 4


def read(out, name):
    with (out / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_tables_have_our_figures_next_to_published_ones(out):
    overhead = {row["what"]: row for row in read(out, "figure5_overhead")}
    assert round(float(overhead["the prototype, drive: aggregate alone"]["times"]), 1) == 8.8
    assert all(float(row["times"]) > 0 for row in overhead.values())
    shape = read(out, "figure5")
    assert {(row["where"], row["columns"], row["rows of a slice"]) for row in shape} == {(w, c, r) for w in ("client", "drive") for c in ("60", "120") for r in ("48", "240", "1 MiB")}
    # 480 genes in slices of 48 and of 240.
    assert {row["slices"] for row in shape if row["rows of a slice"] == "48"} == {"10"} and {row["slices"] for row in shape if row["rows of a slice"] == "240"} == {"2"}
    assert all(float(row["aggregate alone"]) > 0 and float(row["processor"]) > 0 for row in shape)

    places = read(out, "figure6")
    assert [row["code | data"] for row in places] == ["host | host", "host | served drive", "host | Envoy", "Envoy | Envoy"]
    # Two processes with ten slices each; the page shows five of them apart.
    assert all(row["slices"] == "10" and 0 < float(row["least"]) <= float(row["median"]) <= float(row["most"]) for row in places)
    # Envoy is this machine's processor, 15 times slower: nothing else can make it so much slower.
    assert float(places[3]["least"]) > 3 * float(places[2]["least"])

    doors = read(out, "doors")
    columns = ["host | drive", "drive | drive", "host | Envoy", "Envoy | Envoy"]
    assert [(row["code | data"], row["through"]) for row in doors] == [(column, door) for column in columns for door in ("Flight", "Kinetic")]
    assert all(row["slices"] == "10" and 0 < float(row["least"]) <= float(row["median"]) <= float(row["most"]) for row in doors)

    assert all(float(row["projection"]) > 0 and float(row["MB of both"]) < float(row["MB of projection"]) for row in read(out, "figure7"))


def test_simulated_figures_name_the_papers_parameters(out):
    enough = {int(row["servers"]): row for row in read(out, "skyhook_enough")}
    assert [float(enough[n]["published, MHz"]) for n in (1, 8, 16)] == [2000, 1100, 800]
    assert float(enough[16]["ours, MHz (of those tried)"]) < float(enough[8]["ours, MHz (of those tried)"]) < 1100
    links = read(out, "skyhook_links")
    assert [float(row["Gb/s"]) for row in links[:2]] == [10, 5] and float(links[1]["all at the servers: times"]) < 2.2
    curve = read(out, "equal_moments")
    assert [int(row["drives"]) for row in (curve[0], curve[-1])] == [1, 96]
    drives = [float(row["drives alone"]) for row in curve]
    assert drives == sorted(drives, reverse=True) and drives[0] > float(curve[0]["one core of the host"]) > drives[-1]


def test_checksums_in_the_drives_move_digests_only(out):
    rows = read(out, "checksums")
    assert [(row["checksum"], row["drives"]) for row in rows] == [(name, drives) for name in ("CRC-32C", "HighwayHash-256", "MD5") for drives in ("1", "2")]
    # Objects of 1 MiB, two on each drive; the share of what opens sessions is larger than in full.
    assert all(float(row["MB carried, here"]) > 2 * int(row["drives"]) and float(row["MB carried, in the drives"]) < 0.02 for row in rows), rows
    scrubs = read(out, "scrubs")
    assert [row["store"].split(",")[0] for row in scrubs] == ["Swift", "MinIO's layout"]
    # Where this machine can't mount, the table says so.
    assert all(float(row["MB carried, in the drive"]) < float(row["MB carried, reading"]) for row in scrubs if not row["not measured, because"]), scrubs
