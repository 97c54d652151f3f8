"""Names of data sets as biologists write them, ``domain/dataset``; the system's own spelling is ``domain.dataset``,
quoted where SQL wants that."""

from __future__ import annotations

import difflib
import re
from contextlib import contextmanager
from typing import Any, Iterator

from skytether import Fleet, InvalidError, NotFoundError, SkytetherError
from skytether.errors import reworded

_ANY = r'(?:"[^"\s]+"|[\w-]+)'


def slashed(name: str) -> str:
    """``domain/dataset`` for a name in either spelling, its parts quoted or not."""
    domain, slash, dataset = str(name).partition("/") if "/" in str(name) else str(name).partition(".")
    return f"{_bare(domain)}/{_bare(dataset)}" if slash else str(name)


def expressions(fleet: Fleet) -> list[str]:
    """The names of a fleet's expression data sets, ``domain/dataset`` each."""
    return sorted(d["name"].replace(".", "/", 1) for d in fleet.ls() if d.get("kind") == "expression")


@contextmanager
def missing(fleet: Fleet, name: str) -> Iterator[None]:
    """Where there is no data set `name`, or it is none of a data set, expression data sets are
    suggested: others are not ours."""
    try:
        yield
    except InvalidError as e:
        # Of a name with both parts the error says which of them is wrong.
        if e.detail_type != "invalid_dataset_name" or "." in name or "/" in name:
            raise
        raise reworded(e, f"{name!r} is no data set name: write it as domain/dataset, {_example(fleet, name)}") from e
    except NotFoundError as e:
        if e.detail_type != "missing_dataset":
            raise
        try:
            there = expressions(fleet)
        except SkytetherError:
            there = None
        if there is None:
            raise
        raise reworded(e, f"there is no data set {slashed(name)}{_instead(slashed(name), there)}") from e


def _example(fleet: Fleet, name: str) -> str:
    """A name of a data set that may be meant by a domain or by the part behind it."""
    try:
        there = expressions(fleet)
    except SkytetherError:
        there = []
    meant = [known for known in there if name.lower() in known.lower().split("/")]
    return f"such as {', '.join(meant[:3])}" if meant else "for example blood/pbmc3k"


def check(name: Any) -> None:
    """Refuses what can be no name of a data set, of whatever fleet.

    Raises
    ------
    InvalidError
        It is no text.
    """
    if not isinstance(name, str):
        raise InvalidError(f"{name!r} is no data set name, which is text: write it as domain/dataset, for example \"blood/pbmc3k\"")


def _instead(name: str, there: list[str]) -> str:
    if not there:
        return "; this fleet has no expression data sets"
    dataset = name.partition("/")[2].lower()
    near = [n for n in there if n.partition("/")[2].lower() == dataset] or difflib.get_close_matches(name, there, 1)
    if near:
        return f"; did you mean {near[0]}?"
    more = f" and {len(there) - 10} more" if len(there) > 10 else ""
    return f"; there are {', '.join(there[:10])}{more}"


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Errors raised within call the data set `name` by ``domain/dataset``, and so those that are
    suggested instead of it."""
    try:
        yield
    except SkytetherError as e:
        text = str(e)
        changed = _in_our_spelling(text, name, e.detail_type == "missing_dataset")
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
