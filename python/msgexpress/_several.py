"""placeholder"""
from dataclasses import dataclass
from typing import Any
from . import _open
@dataclass
class Joining:
    batch: Any = None
    join: Any = None
    on: Any = None
    fill_value: Any = None
    clash: Any = None
def open_sources(source, choices, prefix, joining):
    return _open.open_source(source, choices)
