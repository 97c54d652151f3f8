"""What a data set's application metadata say of its versions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Mapping

#: Versions that are listed at most. Each query reads the root record that holds them.
MOST_VERSIONS = 200
#: Characters of what a version says of its parameters, at most.
MOST_TEXT = 300


def versions(kept: Mapping[str, Any], generation: int) -> list[dict[str, Any]]:
    """The versions that application metadata list. Data sets of before there were versions have one."""
    first = {"version": 1, "generation": generation, "time": None, "action": "ingest", "params": "", "changed": ""}
    return [dict(row) for row in kept.get("history", [first])]


@dataclass
class Version:
    """A version that is being written."""

    #: What `history` says of it: the method's name, its arguments, and what it changed.
    action: str
    params: Mapping[str, Any]
    changed: str
    #: The generation that it follows on, the versions until then, and that generation's tables. None and none for an
    #: ingest.
    before: int | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    def history(self, generation: int) -> list[dict[str, Any]]:
        """The versions with this one, whose generation is `generation`."""
        text = short(json.dumps(self.params, ensure_ascii=False, default=str)) if self.params else ""
        number = self.rows[-1]["version"] + 1 if self.rows else 1
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        row = {"version": number, "generation": generation, "time": now, "action": self.action, "params": text, "changed": self.changed}
        return [*self.rows, row][-MOST_VERSIONS:]


def short(text: str) -> str:
    """`text`, shortened to what is kept of one."""
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."
