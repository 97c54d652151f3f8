"""Drives that emulate devices, from Python: valid profiles, equal answers, and calibration."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import msgexpress
import skytether

#: Slower than the machine in everything, but not so much that tests would wait for it.
TARDY = """
speed_per_core = 0.5
cores = 2
memory_bytes = 67108864
disk_bytes_per_s = 1e9
link_bits_per_s = 8e9
link_latency_s = 0.0002
"""

TABLE = pa.table({"k": ["a", "b", None] * 1000, "v": np.arange(3000)})
QUERY = "SELECT k, count(*) AS n, sum(v) AS s FROM d.t WHERE v % 7 < 3 GROUP BY k ORDER BY k"


def profiles(fleet: skytether.Fleet) -> list[str | None]:
    return [drive.get("profile") for drive in fleet.sql(QUERY).receipt.to_dict()["drives"]]


@pytest.mark.parametrize(
    "given, expected",
    [
        ("envoy", ["envoy", "envoy", "envoy"]),
        (TARDY, ["own profile"] * 3),
        (["envoy", "unlimited", TARDY], ["envoy", None, "own profile"]),
        ({1: "server", np.int64(2): TARDY}, [None, "server", "own profile"]),
        ("unlimited", [None] * 3),
    ],
)
def test_every_form_of_profiles_leaves_answers_unchanged(tmp_path, given, expected):
    with skytether.open(tmp_path / "fleet", drives=3, slice_rows=100) as fleet:
        fleet.ingest(TABLE, "d.t")
        answer = fleet.sql(QUERY).to_arrow()
    with skytether.open(tmp_path / "fleet", profile=given) as fleet:
        assert fleet.sql(QUERY).to_arrow() == answer
        assert profiles(fleet) == expected
        assert [drive["info"].get("profile") is None for drive in fleet.status()] == [name is None for name in expected]


def test_a_profile_is_a_file_and_a_list_says_how_many_drives(tmp_path):
    file = tmp_path / "tardy.toml"
    file.write_text(TARDY)
    with skytether.open(tmp_path / "fleet", profile=[file, "newport"], slice_rows=100) as fleet:
        fleet.ingest(TABLE, "d.t")
        assert profiles(fleet) == ["tardy", "newport"]
        assert [drive["info"]["device"] for drive in fleet.status()] == ["tardy", "newport"]
        assert [drive["info"]["memory_limit"] for drive in fleet.status()] == [64 << 20, 8 << 30]
    with skytether.open(tmp_path / "fleet", profile=file, memory_per_drive=32 << 20) as fleet:
        assert [drive["info"]["memory_limit"] for drive in fleet.status()] == [32 << 20, 32 << 20]
    with msgexpress.open(tmp_path / "fleet", profile="server") as db:
        assert [drive["info"]["profile"]["cores"] for drive in db.fleet.status()] == [4, 4]


@pytest.mark.parametrize(
    "given, says",
    [
        ("envy", ["'envy'|\"envy\"", "envoy, newport, server, unlimited"]),
        (TARDY.replace("cores = 2", "cores = 0"), ["cores is 0, but must be from 1 to 65536"]),
        (TARDY + "wheels = 4\n", ["wheels"]),
        (TARDY.replace("cores = 2\n", ""), ["own profile: missing field `cores`: add a line"]),
        (TARDY.replace("0.5", "2.0"), ["speed_per_core is 2, but", "say 1 at most"]),
        (["envoy", "envoy", "envoy"], ["3 profiles for 2 drives"]),
        (["envoy", TARDY.replace("cores", "kernels")], ["drive 1", "kernels"]),
        ({2: "envoy"}, ["drive 2", "drives 0 to 1"]),
        ({"drive-0": "envoy"}, ["no device profile"]),
        (None, ["no device profile"]),
        ([None, "envoy"], ["no device profile"]),
    ],
)
def test_invalid_profile_is_refused_and_creates_nothing(tmp_path, given, says):
    for text in says:
        with pytest.raises(skytether.InvalidError, match=text):
            skytether.open(tmp_path / "fleet", drives=2, profile=given)
    assert not (tmp_path / "fleet" / "drives" / "0").exists()


def test_calibration(tmp_path):
    # More of a core than there is: off on any machine.
    found = skytether.calibrate(TARDY.replace("0.5", "50.0"), served=True, dir=tmp_path)
    assert (found["profile"], found["served"], found["within"], found["tolerance"]) == ("own profile", True, False, 0.2)
    measured = {figure["key"]: figure for figure in found["measured"]}
    assert measured["memory_bytes"]["got"] == measured["memory_bytes"]["asked"] == 64 << 20
    assert measured["speed_per_core"]["asked"] == 50 and not measured["speed_per_core"]["within"]
    assert measured["disk_seek_s"]["ratio"] is None, "nothing was asked"
    assert all(figure["got"] >= 0 for figure in measured.values())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(skytether.InvalidError, match="envoy, newport"):
        skytether.calibrate("envy")
    with pytest.raises(skytether.InvalidError, match="one profile"):
        skytether.calibrate(["envoy"])
