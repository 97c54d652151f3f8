"""Results of several threads in order."""

from __future__ import annotations

import subprocess
import sys

CODE = """
from skytether._ordered import ordered

left = ordered([lambda: iter(range(1000))] * 3, 2)
assert next(left) == 0
print("ends")
"""


def test_program_ends_with_an_iterator_left_behind() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
