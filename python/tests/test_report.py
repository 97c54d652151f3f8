"""The report: one HTML page that holds what the data set does, whatever its names are."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pandas as pd
import pytest
from conftest import counts, rich

import anndata as ad
import msgexpress
import skytether

matplotlib.use("Agg")

T = "log1p_cp10k"
#: Names that would end or change a page that does not escape them.
HOSTILE = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "<!--", "a&amp;b", "$\\frac{$", "_under", "'; alert(3) //", "naïve 细胞", "]]>", "two\nlines"]
HOSTILE_GROUPS = [HOSTILE[i] for i in (0, 1, 4, 5, 7)]
#: Elements without an end.
VOID = {"meta", "img", "input", "br"}


class Page(HTMLParser):
    """The elements of a page: each opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag in ("td", "h3", "option"):
            self.cells.append("")
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.open, self.getpos())

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.cells and any(t in self.open for t in ("td", "h3", "option")):
            self.cells[-1] += data

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag and all(attrs.get(k) == v for k, v in wanted.items())]


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    with msgexpress.open(tmp_path_factory.mktemp("fleet"), drives=3) as opened:
        yield opened


def hostile() -> ad.AnnData:
    """Counts of genes, groups and columns with such names."""
    x = counts(100, 20)
    x[:, 10] = np.arange(100) % 7
    groups = pd.Categorical.from_codes(np.arange(100) % 5, HOSTILE_GROUPS)
    obs = pd.DataFrame({"<b>group</b>": groups, "</td>": np.arange(100.0)}, index=[f"<i>{i}</i>" for i in range(100)])
    var = pd.DataFrame({"<u>": HOSTILE * 2}, index=[*HOSTILE, *(f"{n} 2" for n in HOSTILE)])
    return ad.AnnData(x, obs=obs, var=var, obsm={"X_<umap>": np.random.default_rng(1).normal(size=(100, 2))}, uns={"</style>": 1})


@pytest.fixture(scope="module")
def page(db, tmp_path_factory):
    ds = db.ingest(rich(cells=120), "t/x")
    path = tmp_path_factory.mktemp("page") / "page.html"
    ds.report(path, groupby="type", transform=T, n_genes=12)
    return ds, path.read_text(encoding="utf-8")


def test_page_holds_the_marker_table_of_the_test(page):
    ds, text = page
    parsed = Page(text)
    articles = re.findall(r'<article id="g\d+" data-group="(\d+)">(.*?)</article>', text, re.S)
    res = ds.rank_genes_groups("type", transform=T)
    assert [int(at) for at, _ in articles] == list(range(len(res.groups)))
    for (_, content), g in zip(articles, res.groups):
        title, *cells = Page(content).cells
        rows = np.reshape(cells, (12, 6))
        due = res.to_df(g).head(12)
        assert title == g and rows[:, 0].tolist() == due["names"].tolist()
        np.testing.assert_allclose(rows[:, 1].astype(float), due["scores"], atol=0.006)
        # Sorting takes the numbers themselves.
        shown = [float(v) for v in re.findall(r'data-v="([^"]*)"', content)]
        np.testing.assert_allclose(np.reshape(shown, (12, 5)), due[["scores", "logfoldchanges", "pvals_adj", "pct_nz_group", "pct_nz_reference"]])
    assert "60 cells x" not in text and "120" in text and {"depth", "batch", "note"} <= set(parsed.cells)


def test_page_needs_nothing_from_anywhere(page):
    _, text = page
    parsed = Page(text)
    links = [attrs[name] for _, attrs in parsed.elements for name in ("src", "href", "action", "data", "srcset") if name in attrs]
    assert links and all(link.startswith(("data:", "#")) for link in links)
    assert not parsed.all("link") and not parsed.all("iframe") and "url(" not in text and "@import" not in text and "http://" not in text and "https://" not in text
    (policy,) = parsed.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'; img-src data:;")
    anchors = {attrs["id"] for _, attrs in parsed.elements if "id" in attrs}
    assert {link[1:] for link in links if link.startswith("#")} <= anchors
    assert len(anchors) == len([1 for _, attrs in parsed.elements if "id" in attrs])


def test_pictures_are_pngs_with_a_description(page):
    _, text = page
    pictures = Page(text).all("img")
    # Quality, an embedding, the dot plot, and a volcano plot for each of three groups.
    assert len(pictures) == 6 and all(p["alt"] for p in pictures)
    for p in pictures:
        data = base64.b64decode(p["src"].removeprefix("data:image/png;base64,"))
        assert matplotlib.image.imread(io.BytesIO(data)).std() > 0.02


def test_page_reads_without_its_script(page):
    """Everything is in the page; the script only sorts, and shows its tools."""
    _, text = page
    parsed = Page(text)
    assert [attrs.get("id") for _, attrs in parsed.elements if "hidden" in attrs] == ["tools"]
    (link,) = parsed.all("a", download="markers.csv")
    csv = pd.read_csv(io.BytesIO(base64.b64decode(link["href"].partition("base64,")[2])))
    assert len(csv) == 36 and list(csv.columns[:3]) == ["group", "names", "scores"]


def test_names_of_any_kind_are_text_in_the_page(db, tmp_path):
    ds = db.ingest(hostile(), "t/hostile")
    ds.report(tmp_path / "page.html", groupby="<b>group</b>", transform=T)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    parsed = Page(text)
    assert len(parsed.scripts) == 1 and "alert" not in parsed.scripts[0]
    assert not parsed.all("u") and len(parsed.all("style")) == 1 and all(p["src"].startswith("data:image/png") for p in parsed.all("img"))
    assert not [attrs for _, attrs in parsed.elements if any(key.startswith("on") for key in attrs)]
    cells = set(parsed.cells)
    for name in HOSTILE:
        assert name in cells and f"{name} 2" in cells, name
    assert re.findall("<h3>(.*?)</h3>", text)[-5:] and set(HOSTILE_GROUPS) <= cells
    assert len(re.findall("<script", text)) == 1 and len(re.findall("</style>", text)) == 1


def test_script_that_may_run_is_the_one_in_the_page(page):
    import hashlib

    parsed = Page(page[1])
    (policy,) = parsed.all("meta", **{"http-equiv": "Content-Security-Policy"})
    digest = base64.b64encode(hashlib.sha256(parsed.scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy["content"]


def test_transform_left_out_leaves_the_markers_out(db, page, tmp_path):
    page[0].report(tmp_path / "page.html", groupby="type")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<article" not in text and "--transform log1p_cp10k" in text and "its values are all non-negative integers" in text
    assert len(Page(text).all("img")) == 2


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        ({"cell_type": "ab", "leiden": "01"}, "cell_type"),
        ({"Leiden": "01", "sample": "xy"}, "Leiden"),
        ({"sample": "xy"}, "sample"),
        ({"sample": "xy", "plate": "pq"}, None),
        ({"one": "aa"}, ""),
    ],
    ids=str,
)
def test_groups_are_those_of_the_usual_column_or_asked(tmp_path, db, columns, chosen):
    obs = pd.DataFrame({name: pd.Categorical(np.array([*values])[np.arange(40) % 2]) for name, values in columns.items()}, index=[f"c{i}" for i in range(40)])
    obs["barcode"] = [f"x{i}" for i in range(40)]
    obs["n"] = np.arange(40) % 3
    ds = db.ingest(ad.AnnData(counts(40, 12), obs=obs), "t/some", replace=True)
    path = tmp_path / "page.html"
    if chosen is None:
        with pytest.raises(skytether.InvalidError, match="say groupby= with one of 'sample', 'plate'"):
            ds.report(path)
        assert not path.exists()
        return
    ds.report(path)
    text = path.read_text(encoding="utf-8")
    assert f"obs column {chosen}" in text if chosen else "No obs column groups the cells" in text


def test_groups_that_no_test_can_take_are_named(db, tmp_path):
    obs = pd.DataFrame({"kind": pd.Categorical(["a"] * 20 + ["b"] * 19 + ["single"])}, index=[f"c{i}" for i in range(40)])
    ds = db.ingest(ad.AnnData(counts(40, 12), obs=obs), "t/single", replace=True)
    ds.report(tmp_path / "page.html", "kind", transform=T)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Not tested, as a test needs two cells on each side: single." in text and text.count("<article") == 2


def test_stored_values_make_a_page_without_quality(db, tmp_path):
    made = rich()
    made.X = made.X.astype(np.float32).log1p()
    ds = db.ingest(made, "t/log", replace=True)
    ds.report(tmp_path / "page.html", "type", transform=None)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "does not hold counts" in text and "values as stored" in text and text.count("<article") == 3


def test_a_page_is_whole_or_not_there(db, page, tmp_path, monkeypatch):
    ds = page[0]
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(skytether.NotFoundError, match="obs of t/x has no column 'typ'"):
        ds.report(path, "typ", transform=T)
    monkeypatch.setattr(skytether.Receipt, "to_dict", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ds.report(path, "type", transform=T)
    assert path.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(skytether.InvalidError, match="there is no directory .*none to put a.html into"):
        ds.report(tmp_path / "none" / "a.html", "type")
    with pytest.raises(skytether.InvalidError, match="is a directory: name a file"):
        ds.report(tmp_path, "type")


def test_progress_goes_from_none_to_all(page, tmp_path):
    said = []
    page[0].report(tmp_path / "page.html", "type", transform=T, progress=lambda done, total: said.append((done, total)))
    assert said[0][0] == 0 and said[-1][0] == said[-1][1] and [d for d, _ in said] == sorted(d for d, _ in said) and len({t for _, t in said}) == 1
