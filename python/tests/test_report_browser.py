"""The report in a browser: what its script does, and what it looks like."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import subprocess
from pathlib import Path

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from conftest import CHROMIUM, rich
from test_report import HOSTILE, HOSTILE_GROUPS, T, hostile

import msgexpress

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with the pages."""
    made = tmp_path_factory.mktemp("pages")
    with msgexpress.open(made / "fleet", drives=3) as db:
        db.ingest(rich(cells=120), "t/x").report(made / "page.html", groupby="type", transform=T, n_genes=12)
        db.ingest(hostile(), "t/hostile").report(made / "hostile.html", groupby="<b>group</b>", transform=T, n_genes=20)
    return made


def browse(place: Path, page: str, *options: str) -> str:
    """What a browser without a window and without a network says of a page."""
    assert CHROMIUM, "there is no browser: install chromium (Debian: apt-get install chromium)"
    quiet = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND")
    arguments = [CHROMIUM, *quiet, f"--user-data-dir={place / 'profile'}", *options, (place / page).as_uri()]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(place: Path, page: str, script: str, *options: str) -> dict:
    """What `script` gives in a page: an object. It is put behind the page's own script, and allowed there."""
    text = (place / page).read_text(encoding="utf-8")
    whole = f'"use strict"; document.documentElement.dataset.told = JSON.stringify((() => {{{script}}})());'
    digest = base64.b64encode(hashlib.sha256(whole.encode()).digest()).decode()
    changed = text.replace("script-src &#x27;", f"script-src &#x27;sha256-{digest}&#x27; &#x27;", 1).replace("</body>", f"<script>{whole}</script></body>")
    assert changed.count(digest) == 1
    (place / f"told-{page}").write_text(changed, encoding="utf-8")
    (found,) = re.findall(r'data-told="([^"]*)"', browse(place, f"told-{page}", "--dump-dom", *options))
    return json.loads(html.unescape(found))


def test_script_of_the_page_runs_under_its_policy(place):
    dom = browse(place, "page.html", "--dump-dom")
    (tools,) = re.findall(r'<div class="tools" id="tools"[^>]*>', dom)
    assert "hidden" not in tools and ">36 rows</output>" in dom and len(re.findall('<th [^>]*role="button"', dom)) == 18


def test_columns_sort_both_ways_and_search_hides_rows(place):
    said = told(
        place,
        "page.html",
        """
        const article = document.querySelector("article"), heads = article.querySelectorAll("th");
        const column = (at) => Array.from(article.querySelectorAll("tbody tr")).map((row) => row.cells[at].dataset.v ?? row.cells[at].textContent);
        const out = { scores: column(1), articles: document.querySelectorAll("article").length };
        heads[2].click(); out.changes = column(2); out.sorted = heads[2].getAttribute("aria-sort"); out.was = heads[1].getAttribute("aria-sort");
        heads[2].click(); out.back = column(2);
        heads[3].click(); out.smallest = column(3);
        heads[0].click(); out.names = column(0);
        heads[0].dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" })); out.reversed = column(0);
        const search = document.getElementById("search"), group = document.getElementById("group");
        const type = (text) => { search.value = text; search.dispatchEvent(new Event("input")); };
        const seen = () => Array.from(document.querySelectorAll("article:not([hidden]) tbody tr:not([hidden])")).map((row) => row.cells[0].textContent);
        type(out.names[0] + ", " + out.names[1].toUpperCase()); out.found = seen(); out.text = document.getElementById("found").textContent;
        type("no such gene"); out.none = seen().concat(Array.from(document.querySelectorAll("article:not([hidden])")));
        type(""); group.value = "1"; group.dispatchEvent(new Event("change")); out.second = seen().length; out.groups = document.querySelectorAll("article:not([hidden])").length;
        return out;
        """,
    )
    numbers = {key: [float(v) for v in said[key]] for key in ("scores", "changes", "back", "smallest")}
    assert numbers["scores"] == sorted(numbers["scores"], reverse=True) and said["articles"] == 3
    assert numbers["changes"] == sorted(numbers["changes"], reverse=True) and (said["sorted"], said["was"]) == ("descending", None)
    assert numbers["back"] == sorted(numbers["changes"]) and numbers["smallest"] == sorted(numbers["smallest"])
    assert said["names"] == sorted(said["names"], key=lambda n: int(n[1:])) and said["reversed"] == said["names"][::-1]
    wanted = {said["names"][0], said["names"][1]}
    assert wanted <= set(said["found"]) and all(any(w in name for w in wanted) for name in said["found"]) and said["text"] == f"{len(said['found'])} of 36 rows"
    assert said["none"] == [] and (said["second"], said["groups"]) == (12, 1)


def test_hostile_names_are_shown_and_do_nothing(place):
    said = told(
        place,
        "hostile.html",
        """
        return {
          genes: Array.from(document.querySelectorAll("article")[0].querySelectorAll("td.gene")).map((cell) => cell.textContent),
          groups: Array.from(document.querySelectorAll("h3")).map((head) => head.textContent),
          scripts: document.scripts.length, errors: document.querySelectorAll("[onerror], u, iframe").length,
          pictures: Array.from(document.images).filter((image) => !image.src.startsWith("data:image/png")).length,
        };
        """,
    )
    assert set(said["genes"]) == {*HOSTILE, *(f"{n} 2" for n in HOSTILE)} and set(HOSTILE_GROUPS) <= set(said["groups"])
    assert (said["scripts"], said["errors"], said["pictures"]) == (2, 0, 0)


@pytest.mark.parametrize(("width", "height"), [(1280, 1600), (600, 1600)])
def test_nothing_sticks_out_of_the_window(place, width, height):
    """On a desk and in a narrow window, the page is as wide as the window, and is no empty picture."""
    said = told(place, "page.html", "return { wide: document.documentElement.scrollWidth, window: document.documentElement.clientWidth, pictures: document.images.length };", f"--window-size={width},{height}")
    assert said["wide"] <= said["window"] and said["pictures"] == 6
    browse(place, "page.html", f"--window-size={width},{height}", f"--screenshot={place / 'shot.png'}")
    picture = matplotlib.image.imread(place / "shot.png")
    assert picture.shape[0] > 1000 and picture[:200].std() > 0.05 and picture[600:].std() > 0.05 and np.isfinite(picture).all()
