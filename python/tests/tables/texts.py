"""Values as texts of CSV, and the columns that such texts should become: of a type that is asked for, or of the one
that docs/sql.md says their values have."""

from __future__ import annotations

import datetime as dt
import math
import random
import re
from decimal import Decimal

import pyarrow as pa
from tables.compare import NANOS

NANOS_OF_DAY = 86_400 * 10**9
EPOCH = dt.date(1970, 1, 1).toordinal()
NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d):(\d\d):([0-5]\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?)?")

#: Texts that are nearly of one kind: some of them make a column another type.
NEAR = [
    ["1", "-0", "007", "-12", "9223372036854775807", "-9223372036854775808", "9223372036854775808"],
    ["1", "1.5", "-0", "-0.0", "1e5", ".5", "5.", "5e-324", "0e-400", "NaN", "inf", "-inf", "1e-400", "1e400"],
    ["true", "FALSE", "True", "1"],
    [
        "2024-02-29", "1969-12-31 23:59:59", "2024-02-29T10:00:00.5Z", "2024-02-29T00:30:00+02:00", "2024-02-29 10:00:00.123456789", "0001-01-01", "2016-12-31T23:59:60Z",
        "2024-02-29 10:00:00.1234567890", "10:00:00",
    ],
]  # fmt: skip


def near(rng: random.Random, texts: list[str | None]) -> list[str | None]:
    """As many texts, null where these are, of a few that are nearly of one kind."""
    pool = rng.choice(NEAR)
    few = rng.sample(pool, rng.randint(1, 4))
    return [None if v is None else rng.choice(few) for v in texts]


def csv_type(of: pa.DataType) -> str | None:
    """The type to ask for, if texts are written of this one."""
    t = pa.types
    if t.is_integer(of) or of in (pa.float32(), pa.float64()):
        return {"float": "float32", "double": "float64"}.get(str(of), str(of))
    if t.is_decimal128(of) and of.scale >= 0:
        return f"decimal({of.precision},{of.scale})"
    if t.is_time(of):
        return "time"
    if t.is_timestamp(of) and of.tz is None:
        return "timestamp"
    return {"bool": "bool", "string": "text", "date32[day]": "date"}.get(str(of))


def csv_texts(rng: random.Random, column: pa.ChunkedArray) -> list[str | None]:
    """Texts of the values. An empty text is no value in CSV, and no year has more than four digits."""
    of, t = column.type, pa.types
    if t.is_date(of) or t.is_time(of) or t.is_timestamp(of):
        numbers = column.combine_chunks().view(pa.int32() if of.bit_width == 32 else pa.int64()).to_pylist()
        texts = [None if n is None else _time(rng, of, n) for n in numbers]
    elif t.is_decimal(of):
        texts = [None if v is None else f"{v:f}" for v in column.to_pylist()]
    else:
        texts = [None if v is None or v == "" else repr(v) if isinstance(v, float) else str(v) for v in column.to_pylist()]
    if not (t.is_string(of) or t.is_date(of) or t.is_time(of) or t.is_timestamp(of)) and rng.random() < 0.2:
        texts = [v if v is None else rng.choice(["", " "]) + v + rng.choice(["", " "]) for v in texts]
    return texts


def _time(rng: random.Random, of: pa.DataType, number: int) -> str | None:
    nanos = number * (NANOS_OF_DAY if pa.types.is_date(of) else NANOS[of.unit])
    days, within = divmod(nanos, NANOS_OF_DAY)
    seconds, fraction = divmod(within, 10**9)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction or rng.random() < 0.2:
        clock += "." + f"{fraction:09}".rstrip("0").ljust(rng.randint(1, 9), "0")
    if pa.types.is_time(of):
        return clock
    if not 1 <= days + EPOCH <= dt.date.max.toordinal():
        return None
    day = dt.date.fromordinal(days + EPOCH).isoformat()
    return day if pa.types.is_date(of) or (not within and rng.random() < 0.5) else day + rng.choice("T ") + clock


def csv_values(texts: list[str | None], of: pa.DataType) -> pa.Array:
    """The column that texts are when this type is asked for."""
    t = pa.types
    if t.is_string(of):
        return pa.array(texts, of)
    stripped = [v if v is None else v.strip() for v in texts]
    if t.is_boolean(of):
        return pa.array([v if v is None else v == "True" for v in stripped], of)
    if t.is_integer(of):
        return pa.array([v if v is None else int(v) for v in stripped], of)
    if t.is_floating(of):
        return pa.array([v if v is None else float(v) for v in stripped], of)
    if t.is_decimal(of):
        return pa.array([v if v is None else Decimal(v) for v in stripped], of)
    if t.is_date(of):
        return pa.array([v if v is None else dt.date.fromisoformat(v) for v in stripped], of)
    if t.is_time(of):
        return pa.array([v if v is None else _nanos(f"1970-01-01 {v}") for v in stripped], pa.int64()).view(pa.time64("ns"))
    return _times(stripped)


def inferred(texts: list[str | None]) -> pa.Array:
    """The column that texts are when no type is asked for."""
    known = [v.strip(" \t") for v in texts if v is not None]
    stripped = [v if v is None else v.strip(" \t") for v in texts]
    if not known:
        return pa.array(texts, pa.string())
    if all(v.lower() in ("true", "false") for v in known):
        return pa.array([v if v is None else v.lower() == "true" for v in stripped], pa.bool_())
    if all(re.fullmatch(r"-?\d+", v) and -(2**63) <= int(v) < 2**63 for v in known):
        return pa.array([v if v is None else int(v) for v in stripped], pa.int64())
    if all(_is_number(v) for v in known):
        return pa.array([v if v is None else float(v) for v in stripped], pa.float64())
    if all(TIME.fullmatch(v) for v in known):
        if all(len(v) == 10 for v in known):
            return pa.array([v if v is None else dt.date.fromisoformat(v) for v in stripped], pa.date32())
        return _times(stripped)
    return pa.array(texts, pa.string())


def _is_number(text: str) -> bool:
    if text in ("NaN", "nan", "inf", "-inf"):
        return True
    if not text.isascii() or not NUMBER.fullmatch(text):
        return False
    if re.fullmatch(r"-?\d+", text) and not -(2**63) <= int(text) < 2**63:
        return False
    return math.isfinite(float(text)) and (float(text) != 0 or not any(digit in re.split("[eE]", text)[0] for digit in "123456789"))


def _nanos(text: str) -> int:
    day, hours, minutes, seconds, fraction, zone = TIME.fullmatch(text).groups()
    whole = (dt.date.fromisoformat(day).toordinal() - EPOCH) * 86_400 + int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    if zone not in (None, "Z"):
        whole -= (1 if zone[0] == "+" else -1) * (int(zone[1:3]) * 3600 + int(zone[4:]) * 60)
    return whole * 10**9 + int((fraction or "").ljust(9, "0"))


def _times(texts: list[str | None]) -> pa.Array:
    """Times in a unit that holds them all; `compare` knows no units."""
    nanos = [v if v is None else _nanos(v) for v in texts]
    for unit, each in sorted(NANOS.items(), key=lambda pair: pair[1]):
        if all(n is None or (n % each == 0 and -(2**63) <= n // each < 2**63) for n in nanos):
            return pa.array([n if n is None else n // each for n in nanos], pa.int64()).view(pa.timestamp(unit))
    # No unit does: such a column is refused.
    return pa.array([None] * len(nanos), pa.timestamp("ns"))
