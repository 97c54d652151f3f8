"""Receipts of several queries as one."""

from __future__ import annotations

import json
from typing import Any

from skytether import Receipt

from ._text import human_bytes

#: Numbers of a receipt and of its drives that add up over queries.
_ADDED = ("rows", "bytes_read", "bytes_moved", "bytes_metadata", "seconds")
_ADDED_BY_DRIVE = (
    "slices", "slices_pruned", "slices_told", "slices_total", "rows_read", "rows_out", "bytes_read", "bytes_sent", "bytes_received", "seconds",
    "slices_decoded", "slices_within", "bytes_decoded",
)
#: Pushdown levels, the one with the least work on the drive first.
_LEVELS = ("raw", "filter", "full")


def together(receipts: list[Receipt]) -> Receipt:
    """The receipt of queries that ran one after the other: sums, and the most memory of any. `queries` is their
    number."""
    if len(receipts) == 1:
        return receipts[0]
    each = [receipt.to_dict() for receipt in receipts]
    total: dict[str, Any] = {**each[-1], **{key: sum(one[key] for one in each) for key in _ADDED}, "queries": len(each)}
    total["rows"] = sum(one["rows"] for one in each[1:])  # the first one asks how large the others are
    total["host_peak_memory"] = max(one["host_peak_memory"] for one in each)
    total["scans"] = [scan for one in each for scan in one["scans"]]
    drives: dict[str, dict[str, Any]] = {}
    for drive in (drive for one in each for drive in one["drives"]):
        if drive["name"] not in drives:
            drives[drive["name"]] = dict(drive)
        else:
            known = drives[drive["name"]]
            known.update({key: known[key] + drive[key] for key in _ADDED_BY_DRIVE})
            known["peak_memory"] = max(known["peak_memory"], drive["peak_memory"])
            known["cached"] = bool(known.get("cached") and drive.get("cached"))
            known["rung"] = min(known["rung"], drive["rung"], key=_LEVELS.index)
            known["reason"] = known["reason"] or drive["reason"]
    total["drives"] = list(drives.values())
    return Receipt(json.dumps(total), _tree(total), "\n\n".join(receipt.operators() for receipt in receipts))


def _tree(total: dict[str, Any]) -> str:
    moved, read = human_bytes(total["bytes_moved"]), human_bytes(total["bytes_read"])
    lines = [f"stored {human_bytes(total['bytes_stored'])}, read by the drives {read}, moved {moved}"]
    for drive in total["drives"]:
        ran = "everything ran here" if drive["rung"] == "full" else drive["reason"] or f"pushdown level {drive['rung']}"
        sent = human_bytes(drive["bytes_sent"])
        lines.append(f"{drive['name']}: {ran}; {drive['slices']:,} slices, {human_bytes(drive['bytes_read'])} read, {sent} sent, {drive['seconds']:.2f} s")
    ends = ["├─ "] * (len(lines) - 1) + ["└─ "]
    return "\n".join([f"{total['rows']:,} rows in {total['seconds']:.2f} s, in {total['queries']} queries", *(end + line for end, line in zip(ends, lines))])
