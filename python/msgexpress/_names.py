"""Names of data sets as biologists write them, ``domain/dataset``; the system's own spelling is ``domain.dataset``, quoted where SQL wants that."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Iterator

from skytether import NotFoundError, SkytetherError

_ANY = r'(?:"[^"\s]+"|[\w-]+)'


def slashed(name: str) -> str:
    """``domain/dataset`` for a name in either spelling, its parts quoted or not."""
    domain, slash, dataset = str(name).partition("/") if "/" in str(name) else str(name).partition(".")
    return f"{_bare(domain)}/{_bare(dataset)}" if slash else str(name)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Errors raised within call the data set `name` by ``domain/dataset``, and so those that are suggested instead of it."""
    try:
        yield
    except SkytetherError as e:
        text = str(e)
        changed = _in_our_spelling(text, name, isinstance(e, NotFoundError) and text.startswith("there is no data set "))
        if changed != text:
            e.args = (changed, *e.args[1:])
        raise


def _in_our_spelling(text: str, name: str, names_only: bool) -> str:
    if names_only:
        return re.sub(rf"({_ANY})\.({_ANY})", lambda m: f"{_bare(m[1])}/{_bare(m[2])}", text)
    domain, _, dataset = slashed(name).partition("/")
    if not dataset:
        return text
    part = '(?:"{0}"|{0})'.format
    return re.sub(rf'(?<![\w"./-]){part(re.escape(domain))}\.{part(re.escape(dataset))}(?![\w"-])', lambda _: f"{domain}/{dataset}", text)


def _bare(part: str) -> str:
    return part[1:-1] if len(part) > 1 and part[0] == part[-1] == '"' else part
