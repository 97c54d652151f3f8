"""The report: one HTML page about a data set."""

from __future__ import annotations

import base64
import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Iterator, Mapping

import numpy as np

from skytether import InvalidError, Receipt, SkytetherError

from . import _details, _page, _picture, _progress, _quality, _values
from ._hints import _plain
from ._page import Html, escaped, joined, tag
from ._text import human_bytes

if TYPE_CHECKING:
    from ._plotting import Plotting
    from ._rank import RankResult
    from ._values import Grouping

#: What columns with the groups of cells are called, the most telling first; signs and capitals don't count.
_USUAL = (
    *("celltype", "celltypes", "celltypeannotation", "annotatedcelltype", "authorcelltype", "annotation", "annotations"),
    *("leiden", "louvain", "seuratclusters", "clusters", "cluster"),
)
#: Embeddings that are drawn, the most telling first, and how many at most.
_EMBEDDINGS, _MOST_EMBEDDINGS = ("umap", "tsne", "pca"), 4
#: Genes of each group in the dot plot.
_DOTS = 3


@dataclass(frozen=True)
class Asked:
    """What a page is about, besides the data set and its groups."""

    #: Whether the caller has said a transform; without one there are no marker genes.
    normalised: bool
    transform: str | None
    #: Marker genes of each group.
    n_genes: int
    method: str
    layer: str | None
    qc_vars: Mapping[str, Any] | None


def write(ds: Plotting, path: str | os.PathLike[str], groupby: str | None, asked: Asked, progress: Any) -> None:
    """See `Dataset.report`."""
    n_genes = asked.n_genes
    if isinstance(n_genes, bool) or not isinstance(n_genes, (int, np.integer)) or n_genes < 1:
        raise InvalidError(f"n_genes is {n_genes!r}: show at least one gene, as a whole number")
    asked = replace(asked, n_genes=int(n_genes))
    name = os.fspath(path)
    # Before any work is done for it.
    parent = os.path.dirname(name)
    if parent and not os.path.isdir(parent):
        raise InvalidError(f"there is no directory {parent} to put {os.path.basename(name)} into")
    if os.path.isdir(name):
        raise InvalidError(f"{name} is a directory: name a file, such as {os.path.join(name, 'page.html')}")
    groups = _values.grouping(ds, groupby) if groupby is not None else _usual_grouping(ds)
    with _progress.stepper(progress, f"report of {ds.name}") as step, _quiet():
        text = _Report(ds, groups, asked, step).text()
    aside = f"{name}.part"
    try:
        with open(aside, "w", encoding="utf-8", newline="\n") as out:
            out.write(text)
        os.replace(aside, name)
    except OSError as e:
        if os.path.exists(aside):
            os.remove(aside)
        raise InvalidError(f"cannot write {name}: {e.strerror or e}") from e


@contextmanager
def _quiet() -> Iterator[None]:
    """Without matplotlib's warnings of signs that its font lacks: tables have them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Glyph .*")
        yield


def _usual_grouping(ds: Plotting) -> Grouping | None:
    """The groups of the column that is meant if none is said; None where no column groups cells.

    Raises
    ------
    InvalidError
        There are several, and none is called as such columns usually are.
    """
    candidates: dict[str, Grouping] = {}
    obs = ds._shell.obs
    for column in dict.fromkeys(c for c in obs.columns if isinstance(c, str)):
        if obs[column].dtype.kind in "fc" or (obs[column].dtype.kind in "iu" and _plain(column) not in _USUAL):
            continue
        try:
            found = _values.grouping(ds, column)
        except SkytetherError:
            continue
        if 2 <= len(found.names) and found.sizes.sum() >= 2 * len(found.names):
            candidates[column] = found
    for usual in _USUAL:
        called = [column for column in candidates if _plain(column) == usual]
        if len(called) == 1:
            return candidates[called[0]]
    if len(candidates) > 1:
        raise InvalidError(f"several obs columns of {ds.name} group its cells, and any could be meant: say groupby= with one of {', '.join(map(repr, candidates))}")
    return next(iter(candidates.values()), None)


class _Report:
    """Collects the parts of a page."""

    def __init__(self, ds: Plotting, groups: Grouping | None, asked: Asked, step: Any) -> None:
        self.ds, self.groups, self.asked, self.step = ds, groups, asked, step
        self.receipts: list[tuple[str, Receipt]] = []
        self.bytes = int(ds.fleet.describe(ds.name)["bytes"])
        # Groups that a test can take: it needs a variance, and other cells.
        self.tested = [] if groups is None else [n for n, size in zip(groups.names, groups.sizes) if size >= 2 and ds.n_obs - size >= 2]
        self.colours = {} if groups is None else dict(zip(groups.names, ds._colours(groups)))
        self.done, self.steps = 0, 5 + (len(self.tested) if asked.normalised else 0)

    def text(self) -> str:
        sections = [
            ("overview", "Overview", self.overview()),
            ("quality", "Quality of cells", self.timed("quality of cells", self.quality)),
            ("embeddings", "Embeddings", self.timed("embeddings", self.embeddings)),
        ]
        markers = self.timed("marker genes", self.markers)
        sections += [("groups", "Groups", self.timed("groups", self.of_groups)), ("markers", "Marker genes", markers), ("receipts", "Receipts", self.of_receipts())]
        shown = [(key, title, content) for key, title, content in sections if content]
        links = [tag("a", title, href=f"#{key}") for key, title, _ in shown]
        body = [tag("section", tag("h2", title), content, id=key) for key, title, content in shown]
        self.step(self.steps, self.steps, "writing")
        return _page.page(f"{self.ds.name}: report", [self.head(), tag("nav", tag("div", *links), aria_label="sections"), tag("main", *body), self.foot()])

    def timed(self, what: str, make: Any) -> Html:
        """A part of the page; the bar says what it is."""
        self.step(self.done, self.steps, what)
        made = make()
        self.done += 1
        return made

    def head(self) -> Html:
        ds = self.ds
        cards = [(f"{ds.n_obs:,}", "cells"), (f"{ds.n_vars:,}", "genes"), (human_bytes(self.bytes), "stored on the drives")]
        layers = [layer for layer in ds.layers if layer not in ds.other_features]
        if layers:
            cards.append((str(len(layers)), "other layer" if len(layers) == 1 else "other layers"))
        if self.groups is not None:
            cards.append((str(len(self.groups.names)), f"groups of {self.groups.by}"))
        return tag(
            "header",
            tag(
                "div", tag("h1", ds.name), tag("p", "from ", ds._kept["source"]), tag("div", *(tag("div", tag("b", b), tag("span", s)) for b, s in cards), class_="cards")
            ),
            class_="top",
        )

    def foot(self) -> Html:
        from . import __version__

        now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        return tag("footer", f"Made by MSG Express {__version__}, {now}. This page is one file, and loads nothing from anywhere.")

    def overview(self) -> Html:
        about = _details.about(self.ds, self.bytes)
        matrices = _page.table(
            ["matrix", "from", "cells", "genes", "was", "type"],
            [(m["table"], m["from"], f"{m['shape'][0]:,}", f"{m['shape'][1]:,}", m["was"], m["type"]) for m in about["matrices"]],
            [False, False, True, True, False, False],
        )
        frames = []
        for kind, frame, what in (("obs", self.ds._shell.obs, "About the cells"), ("var", self.ds._genes, "About the genes")):
            rows = [(name, str(column.dtype), _details._distinct(column), _details._some(column)) for name, column in _details._columns(frame)]
            if rows:
                frames.append(
                    joined(
                        [
                            tag("h3", f"{what} ({kind})"),
                            _page.table(
                                ["column", "type", "values", "groups, or examples"],
                                [(tag("td", n, class_="name", title=n), tag("td", t, class_="word"), "" if d is None else f"{d:,}", e) for n, t, d, e in rows],
                                [False, False, True, False],
                            ),
                        ]
                    )
                )
        others = [(o["in"], o["name"], " x ".join(f"{n:,}" for n in o["shape"] or []), o["type"]) for o in about["others"]]
        if others:
            frames.append(tag("details", tag("summary", f"What else there is ({len(others)})"), _page.table(["in", "name", "shape", "type"], others)))
        return joined([matrices, *frames])

    def quality(self) -> Html:
        try:
            frames, note = self._quality_frames()
        except SkytetherError as e:
            return tag("p", f"Not computed: {e}.", class_="note")
        if frames is None:
            return tag("p", note, class_="note")
        plot = _quality.quality_plot(*frames, title="", path=_picture.APART)
        data = plot.data
        rows = []
        for column in data.columns:
            values = data[column].to_numpy(float)
            values = values[np.isfinite(values)]
            if len(values):
                low, first, median, third, high = np.percentile(values, (0, 25, 50, 75, 100))
                rows.append((column, *(f"{v:,.2f}" if str(column).startswith("pct") else f"{v:,.0f}" for v in (low, first, median, third, high))))
        summary = _page.table(["", "smallest", "first quartile", "median", "third quartile", "largest"], rows, [False] + [True] * 5)
        drawn = _page.picture(
            _picture.png(plot.figure), "violins and scatter plots of counts and genes per cell", "White points are medians, bars go from the first to the third quartile."
        )
        return joined([tag("p", note, class_="note"), drawn, summary])

    def _quality_frames(self) -> tuple[Any, str]:
        """The frames of cells and genes, or None; and where they are from."""
        obs = self.ds._shell.obs
        if self.asked.qc_vars is None and {"total_counts", "n_genes_by_counts"} <= {*obs.columns}:
            return (obs, None), "Counts and genes of each cell, as obs has them."
        if not self.ds._is_counts(None):
            return None, "The matrix does not hold counts, and obs has no columns total_counts and n_genes_by_counts: there is nothing to draw."
        return _quality.frames(self.ds, self.asked.qc_vars), "Counts and genes of each cell, over all genes."

    def embeddings(self) -> Html:
        keys = [
            str(k) for k, v in self.ds._shell.obsm.items() if getattr(v, "ndim", 0) == 2 and v.shape[1] >= 2 and getattr(getattr(v, "dtype", None), "kind", "") in "fiu"
        ]
        plain = {k: _plain(k.removeprefix("X_")) for k in keys}
        keys.sort(key=lambda k: (next((i for i, usual in enumerate(_EMBEDDINGS) if usual in plain[k]), len(_EMBEDDINGS)), k))
        drawn = []
        for key in keys[:_MOST_EMBEDDINGS]:
            plot = self.ds.plot_embedding(key, None if self.groups is None else self.groups.by, legend_loc="both", path=_picture.APART)
            drawn.append(_page.picture(_picture.png(plot.figure, settled=self.groups is not None), f"embedding {key}", key))
        more = tag("p", f"Also there: {', '.join(keys[_MOST_EMBEDDINGS:])}.", class_="note") if len(keys) > _MOST_EMBEDDINGS else ""
        return joined([tag("div", *drawn, class_="side"), more]) if drawn else Html("")

    def of_groups(self) -> Html:
        groups = self.groups
        if groups is None:
            return tag("p", "No obs column groups the cells.", class_="note")
        largest, rows = max(int(groups.sizes.max()), 1), []
        linked = {g: i for i, g in enumerate(self.tested)} if self.ranking is not None else {}
        for name, size in zip(groups.names, groups.sizes):
            label = tag("a", name, href=f"#g{linked[name]}") if name in linked else escaped(name)
            colour = f"--c:{self.colours[name]}"
            bar = tag("td", tag("i", style=f"--p:{100 * size / largest:.1f}%;{colour}"), class_="bar")
            rows.append((tag("td", tag("span", class_="swatch", style=colour), label), f"{size:,}", f"{100 * size / max(self.ds.n_obs, 1):.1f} %", bar))
        outside = self.ds.n_obs - int(groups.sizes.sum())
        note = f"Cells by obs column {groups.by}." + (f" {outside:,} cells have no value there." if outside else "")
        parts = [tag("p", note, class_="note"), _page.table([groups.by, "cells", "share", ""], rows, [False, True, True, False])]
        parts[-1] = tag("div", parts[-1], class_="part")
        if self.ranking is not None and len(self.tested) * _DOTS <= 200:
            try:
                plot = self.ranking.plot_dotplot(n_genes=_DOTS, path=_picture.APART)
            except InvalidError:
                return joined(parts)
            if plot.receipt is not None:
                self.receipts.append(("dot plot", plot.receipt))
            parts += [
                _page.picture(
                    _picture.png(plot.figure, tight=True),
                    "dot plot of the best marker genes",
                    f"The {_DOTS} best genes of each group: colour is the mean, size the share of cells with the gene.",
                )
            ]
        return joined(parts)

    ranking: RankResult | None = None

    def markers(self) -> Html:
        if self.groups is None:
            return Html("")
        if not self.asked.normalised:
            return tag(
                "p",
                "There are no marker genes here, because nothing says how to normalise the values. Of this data set, ",
                self.ds._what_values(self.asked.layer),
                ". For raw counts, write the report with ",
                tag("code", 'transform="log1p_cp10k"'),
                " (in the shell ",
                tag("code", "--transform log1p_cp10k"),
                "); for values that are normalised and logarithmic already, with ",
                tag("code", "transform=None"),
                " (",
                tag("code", "--transform none"),
                ").",
                class_="say",
            )
        if not self.tested:
            return tag("p", "There is nothing to compare: a test needs a group of at least two cells, and two cells that are not in it.", class_="note")
        asked = self.asked
        said = {"transform": asked.transform, "method": asked.method, "n_genes": asked.n_genes, "layer": asked.layer}
        res = self.ranking = self.ds.rank_genes_groups(self.groups.by, groups=self.tested, **said)
        self.receipts.append(("marker genes", res.receipt))
        articles = []
        for at, g in enumerate(res.groups):
            self.step(self.done, self.steps, f"volcano plot of {g}")
            articles.append(self._article(at, g, res))
            self.done += 1
        left_out = [n for n in self.groups.names if n not in self.tested]
        note = f"Each group against all other cells: {res._subtitle()}. The {asked.n_genes:,} genes with the best scores of each group."
        if left_out:
            note += f" Not tested, as a test needs two cells on each side: {', '.join(left_out)}."
        options = [tag("option", "all groups", value=""), *(tag("option", g, value=i) for i, g in enumerate(res.groups))]
        tools = tag(
            "div",
            tag("input", type="search", id="search", placeholder="search genes: CD3E, NKG7", aria_label="search genes", autocomplete="off"),
            tag("select", *options, id="group", aria_label="group"),
            tag("output", id="found"),
            class_="tools",
            id="tools",
            hidden=True,
        )
        table = base64.b64encode((res.to_csv() or "").encode("utf-8", "replace")).decode("ascii")
        link = tag("a", "Download these tables as CSV", class_="button", download="markers.csv", href=Html(f"data:text/csv;charset=utf-8;base64,{table}"))
        return joined([tag("p", note, class_="note"), tag("p", link), tools, *articles])

    def _article(self, at: int, group: str, res: RankResult) -> Html:
        figure = _picture.new_figure(6.4, 5.2, _picture.APART)
        res.plot_volcano(group, ax=figure.add_subplot(), label=8)
        frame = res.to_df(group)
        ids = [c for c in frame.columns if c not in ("names", "scores", "logfoldchanges", "pvals", "pvals_adj", "pct_nz_group", "pct_nz_reference")]
        heads = [
            ("gene", "ascending"),
            *((c, "ascending") for c in ids),
            ("score", "descending"),
            ("log2 fold change", "descending"),
            ("adjusted p", "ascending"),
            ("in group", "descending"),
            ("in others", "descending"),
        ]
        rows = []
        for _, row in frame.iterrows():
            cells = [tag("td", row["names"], class_="gene", title=row["names"]), *(tag("td", row[c], class_="id") for c in ids)]
            cells += [
                tag("td", _number(row[c], form), class_="n", data_v=_page.number(row[c]))
                for c, form in (("scores", ".2f"), ("logfoldchanges", ".2f"), ("pvals_adj", ".1e"))
            ]
            cells += [
                tag("td", f"{100 * row[c]:.0f} %", class_="n share", data_v=_page.number(row[c]), style=f"--p:{100 * row[c]:.0f}%")
                for c in ("pct_nz_group", "pct_nz_reference")
            ]
            rows.append(cells)
        made = [
            tag("th", title, scope="col", class_=None if i <= len(ids) else "n", data_first=first, aria_sort="descending" if title == "score" else None)
            for i, (title, first) in enumerate(heads)
        ]
        assert self.groups is not None
        size = int(self.groups.sizes[self.groups.names.index(group)])
        head = tag(
            "div", tag("span", class_="swatch", style=f"--c:{self.colours[group]}"), tag("h3", group), tag("span", f"{size:,} cells", class_="soft"), class_="head"
        )
        volcano = _page.picture(_picture.png(figure, 120, settled=True), f"volcano plot of {group}")
        return tag("article", head, tag("div", volcano, _page.table(made, rows), class_="pair"), id=f"g{at}", data_group=at)

    def of_receipts(self) -> Html:
        parts = []
        for what, receipt in self.receipts:
            about = receipt.to_dict()
            drives = [
                (
                    d["name"],
                    d["rung"],
                    f"{d['slices']:,}",
                    f"{d['slices_pruned']:,}",
                    human_bytes(d["bytes_read"]),
                    f"{d['rows_out']:,}",
                    human_bytes(d["bytes_sent"]),
                    f"{1000 * d['seconds']:,.1f} ms",
                    d["reason"] or "",
                )
                for d in about["drives"]
            ]
            said = f"{human_bytes(about['bytes_moved'])} of {human_bytes(about['bytes_stored'])} moved to the host, in {1000 * about['seconds']:,.0f} ms."
            heads = ["drive", "what ran there", "slices", "skipped", "read there", "rows sent", "bytes sent", "time", "why not all"]
            parts.append(
                joined(
                    [
                        tag("h3", what.capitalize()),
                        tag("p", said, class_="note"),
                        _page.table(heads, drives, [False, False, *[True] * 6, False]),
                        tag("details", tag("summary", "the receipt as text"), tag("pre", str(receipt))),
                    ]
                )
            )
        if not parts:
            return Html("")
        return joined([tag("p", "What the drives did for this page, and how little moved.", class_="note"), *(tag("div", p, class_="part") for p in parts)])


def _number(value: Any, form: str) -> str:
    value = float(value)
    return "" if np.isnan(value) else "<1e-308" if value == 0 and form.endswith("e") else format(value, form)
