"""Tab-separated files as programs and R write them."""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

from skytether import CorruptError, NotFoundError

#: A field in quotation marks, with what is around it. A mark inside has a mark or a backslash before it, as R and
#: spreadsheets have it.
_QUOTED = re.compile(r' *"((?:[^"\\]|\\"|""|\\(?!"))*)" *(?=\t|$)')


def rows(path: Path) -> list[list[str]]:
    """The fields of each line of a file, compressed with gzip or not; blank lines at the end do not count.

    A field that begins and ends with a quotation mark loses both. Where the first line lacks one field, as R's
    ``write.table`` leaves out the one of the row names, it gets an empty first one.

    Raises
    ------
    NotFoundError
        There is no such file.
    CorruptError
        Its compressed data are damaged, or it is no UTF-8.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as lines:
            text = lines.read()
    except FileNotFoundError as e:
        raise NotFoundError(f"there is no file {path}") from e
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as e:
        raise CorruptError(f"cannot read {path}: {e}") from e
    found = [fields(line.rstrip("\r")) for line in text.split("\n")]
    while found and found[-1] == [""]:
        found.pop()
    if len(found) > 1 and all(len(row) == len(found[0]) + 1 for row in found[1:]):
        found[0].insert(0, "")
    return found


def fields(line: str) -> list[str]:
    """The fields of a line."""
    if '"' not in line:
        return line.split("\t")
    out, at = [], 0
    while True:
        quoted = _QUOTED.match(line, at)
        if quoted:
            out.append(re.sub(r'[\\"]"', '"', quoted[1]))
            at = quoted.end()
        else:
            end = line.find("\t", at)
            end = len(line) if end < 0 else end
            out.append(line[at:end])
            at = end
        if at >= len(line):
            return out
        at += 1
        if at == len(line):
            return [*out, ""]
