"""The plots of a data set and of a ranking: their numbers are scanpy's, and only what they show is read."""

from __future__ import annotations

import warnings

import anndata as ad
import matplotlib
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from conftest import counts, rich

import msgexpress
import skytether
from msgexpress import _draw_cells, _values

matplotlib.use("Agg")

T = "log1p_cp10k"
GENES = ["g3", "g0", "g7", "g20", "g11"]


@pytest.fixture(scope="module")
def adata():
    made = rich(cells=90)
    made.obs["empty"] = pd.Categorical([None] * 90)
    made.obs["gaps"] = pd.Categorical([None if i % 4 == 0 else "ab"[i % 2] for i in range(90)])
    made.obs["text"] = [f"t{i % 3}" for i in range(90)]
    made.obs["number"] = np.arange(90) % 4
    made.obsm["X_umap"] = np.random.default_rng(5).normal(size=(90, 3))
    made.uns["type_colors"] = np.array(["#ff0000", "#00ff00", "#0000ff", "#888888"])
    made.layers["scaled"] = np.asarray(made.X.todense()) - 1.5
    made.raw = made
    return made


@pytest.fixture(scope="module")
def ds(adata, tmp_path_factory):
    with msgexpress.open(tmp_path_factory.mktemp("fleet"), drives=3) as db:
        yield db.ingest(adata, "t/x")


@pytest.fixture(scope="module")
def normal(adata):
    """What scanpy plots: normalised, without categories that no cell has."""
    made = adata.copy()
    sc.pp.normalize_total(made, target_sum=1e4)
    sc.pp.log1p(made)
    made.raw = None
    made.obs["type"] = made.obs["type"].cat.remove_unused_categories()
    return made


@pytest.fixture(autouse=True)
def close_figures():
    yield
    matplotlib.pyplot.close("all")


def same(ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    assert list(ours.index.astype(str)) == list(theirs.index.astype(str)) and list(ours.columns) == list(theirs.columns)
    np.testing.assert_allclose(ours.to_numpy(float), theirs.to_numpy(float), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mean_only_expressed": True},
        {"expression_cutoff": 3.0},
        {"expression_cutoff": 3.0, "mean_only_expressed": True},
        {"standard_scale": "var"},
        {"standard_scale": "group"},
    ],
    ids=str,
)
@pytest.mark.parametrize("groupby", ["type", "batch", "gaps", "text"])
def test_dot_plot_has_the_numbers_of_scanpy(ds, normal, groupby, options):
    theirs = sc.pl.DotPlot(normal, GENES, groupby, **options)
    plot = ds.plot_dotplot(GENES, groupby, transform=T, **options)
    same(plot.dot_color_df, theirs.dot_color_df)
    same(plot.dot_size_df, theirs.dot_size_df)
    assert plot.data["mean"].tolist() == plot.dot_color_df.to_numpy().ravel().tolist()
    assert plot.data["fraction"].tolist() == plot.dot_size_df.to_numpy().ravel().tolist()
    sizes = normal.obs[groupby].value_counts()
    assert (plot.data["cells"] == plot.data["group"].map(sizes).astype(int)).all()
    assert (plot.receipt is None) == ("expression_cutoff" in options)


@pytest.mark.parametrize(("layer", "options"), [("scaled", {}), ("scaled", {"mean_only_expressed": True}), (None, {})])
def test_dot_plot_of_stored_values_counts_those_above_zero(ds, adata, layer, options):
    """Values below zero are no expression, though they are no zeros."""
    bare = adata.copy()
    bare.obs["type"] = bare.obs["type"].cat.remove_unused_categories()
    theirs = sc.pl.DotPlot(bare, GENES, "type", layer=layer, use_raw=False, **options)
    plot = ds.plot_dotplot(GENES, "type", transform=None, layer=layer, **options)
    same(plot.dot_color_df, theirs.dot_color_df)
    same(plot.dot_size_df, theirs.dot_size_df)


def test_groups_of_numbers_and_booleans_are_in_order(ds, normal):
    plot = ds.plot_dotplot(["g3"], "number", transform=T)
    assert list(plot.dot_size_df.index) == ["0", "1", "2", "3"]
    by_hand = normal[:, "g3"].to_df()["g3"].groupby(normal.obs["number"]).mean()
    np.testing.assert_allclose(plot.dot_color_df["g3"], by_hand, rtol=1e-5)
    assert list(ds.plot_dotplot(["g3"], "ok", transform=T).dot_size_df.index) == ["False", "True"]


def test_chosen_cells_and_groups_are_shown_alone(ds, normal):
    some = normal[normal.obs["ok"]]
    plot = ds.plot_dotplot(GENES, "type", transform=T, cells={"ok": True}, groups=["NK", "T"])
    theirs = sc.pl.DotPlot(some, GENES, "type").dot_color_df.loc[["NK", "T"]]
    same(plot.dot_color_df, theirs)
    with pytest.raises(skytether.NotFoundError, match="no cell has 'unused' in obs column 'type': there are 'T', 'B', 'NK'"):
        ds.plot_dotplot(GENES, "type", transform=T, groups=["unused"])


def test_sets_of_genes_and_symbols_name_what_is_shown(ds):
    plot = ds.plot_dotplot({"first": ["S3", "S0"], "second": ["S3"]}, "type", transform=T, gene_symbols="symbol")
    assert list(plot.dot_size_df.columns) == ["S3", "S0", "S3"]
    same(plot.dot_color_df.set_axis(["g3", "g0", "x"], axis=1)[["g3", "g0"]], ds.plot_dotplot(["g3", "g0"], "type", transform=T).dot_color_df)
    assert {"first", "second"} <= {t.get_text() for t in plot.ax.texts}


def queries(ds, monkeypatch) -> list[str]:
    """The SQL that the data set asks from here on."""
    asked: list[str] = []
    real = type(ds.fleet).sql
    monkeypatch.setattr(type(ds.fleet), "sql", lambda self, text, *a, **k: (asked.append(text), real(self, text, *a, **k))[1])
    return asked


@pytest.mark.parametrize(
    "draw",
    [
        lambda ds: ds.plot_dotplot(GENES, "type", transform=T),
        lambda ds: ds.plot_heatmap(GENES, "type", transform=T),
        lambda ds: ds.plot_heatmap(GENES, "type", by="groups", transform=T),
        lambda ds: ds.plot_violin(["g3", "depth"], "type", transform=T),
        lambda ds: ds.plot_embedding("umap", ["g3", "type"], transform=T),
    ],
    ids=["dotplot", "heatmap", "heatmap of groups", "violin", "embedding"],
)
def test_only_the_genes_that_are_shown_are_read(ds, monkeypatch, draw):
    asked = queries(ds, monkeypatch)
    draw(ds)
    of_values = [text for text in asked if '"x_rows"' in text and "LIMIT 0" not in text]
    assert of_values and all("WHERE gene_id" in text for text in of_values), asked
    assert not [text for text in asked if '"x"."x" ' in text]


def test_dot_plot_moves_moments_and_no_values(ds, monkeypatch):
    asked = queries(ds, monkeypatch)
    ds.plot_dotplot(GENES, "type", transform=T)
    assert len([text for text in asked if "moments(" in text]) == 1 and not [text for text in asked if "SELECT gene_id, block" in text]


@pytest.mark.parametrize("transform", [T, None])
def test_values_are_those_of_scanpy_to_the_bit(ds, adata, normal, transform):
    numbers = np.array([7, 3, 3, 20])
    theirs = (adata if transform is None else normal).X.toarray()[:, numbers]
    np.testing.assert_array_equal(_values.values(ds, "x", transform, numbers), theirs)
    some = np.array([0, 5, 17])
    np.testing.assert_array_equal(_values.values(ds, "x", transform, numbers, some), theirs[some])


def test_heat_map_of_groups_is_matrixplot(ds, normal):
    for scale in (None, "var", "group"):
        theirs = sc.pl.MatrixPlot(normal, GENES, "type", standard_scale=scale)
        same(ds.plot_heatmap(GENES, "type", by="groups", transform=T, standard_scale=scale).data, theirs.values_df)


def test_heat_map_of_cells_has_each_cell_once(ds, normal):
    plot = ds.plot_heatmap(GENES, "type", transform=T)
    assert list(plot.data.columns) == ["type", *GENES] and plot.data["type"].tolist() == ["T"] * 30 + ["B"] * 30 + ["NK"] * 30
    np.testing.assert_array_equal(plot.data[GENES], normal[plot.data.index, GENES].to_df())
    assert plot.data.index.is_unique and len(plot.data) == 90
    # Of many cells, some of each group in their order.
    few = ds.plot_heatmap(GENES, "type", transform=T, max_cells=60, cells=ds.obs["type"] != "NK")
    assert len(few.data) == 60
    few = ds.plot_heatmap(GENES, "type", transform=T, max_cells=66, swap_axes=True)
    assert few.data["type"].value_counts().tolist() == [22, 22, 22] and "66 of 90 cells" in _texts(few)
    np.testing.assert_array_equal(few.data[GENES], normal[few.data.index, GENES].to_df())


def _texts(plot) -> str:
    figure = plot.figure
    return " ".join(t.get_text() for t in figure.findobj(matplotlib.text.Text))


def test_small_groups_are_kept_where_cells_are_thinned():
    codes = np.r_[np.zeros(100_000, int), np.ones(30, int), -np.ones(50, int)]
    chosen = _values.thinned(codes, 2, 1000)
    assert (codes[chosen] == 1).sum() == 20 and 990 <= (codes[chosen] == 0).sum() <= 1000 and len(np.unique(chosen)) == len(chosen)


def test_violin_shows_genes_and_columns_by_group(ds, normal):
    plot = ds.plot_violin(["g3", "depth"], "type", transform=T)
    assert list(plot.data.columns) == ["type", "g3", "depth"] and len(plot.axes) == 2
    np.testing.assert_array_equal(plot.data["g3"], normal.to_df()["g3"])
    np.testing.assert_array_equal(plot.data["depth"], normal.obs["depth"])
    assert plot.data["type"].tolist() == normal.obs["type"].tolist()
    # Columns alone need no transform; cells without a group are not shown; missing numbers stay missing.
    plot = ds.plot_violin("maybe", "gaps")
    assert len(plot.data) == normal.obs["gaps"].notna().sum() and plot.data["maybe"].isna().any()
    assert len(ds.plot_violin("depth", cells=ds.obs["ok"]).data) == 45
    with pytest.raises(skytether.InvalidError, match="obs column 'note' of t/x has no numbers"):
        ds.plot_violin("note", "type")
    with pytest.raises(skytether.NotFoundError, match="there is no gene 'dept'.*obs has no column 'dept' either; did you mean 'depth'"):
        ds.plot_violin("dept", "type", transform=T)


def test_density_is_the_kernel_estimate_of_scipy():
    from scipy.stats import gaussian_kde

    rng = np.random.default_rng(1)
    values = np.r_[rng.normal(0, 1, 3000), rng.normal(6, 0.5, 900)]
    places, dense = _draw_cells.density(values)
    np.testing.assert_allclose(dense, gaussian_kde(values)(places), rtol=2e-3, atol=1e-5)
    assert [len(part) for part in _draw_cells.density(np.full(10, 3.0))] == [1, 1] and len(_draw_cells.density(np.ones(1))[0]) == 1


def test_embedding_has_coordinates_and_colours(ds, adata, normal):
    plot = ds.plot_embedding("umap", ["type", "g3", "depth"], transform=T, components=(1, 3), legend_loc="both")
    assert list(plot.data.columns) == ["UMAP1", "UMAP3", "type", "g3", "depth"] and len(plot.axes) == 3
    np.testing.assert_array_equal(plot.data[["UMAP1", "UMAP3"]], adata.obsm["X_umap"][:, [0, 2]])
    np.testing.assert_array_equal(plot.data["g3"], normal.to_df()["g3"])
    # The colours that uns has for the categories.
    legend = plot.axes[0].get_legend()
    shown = {t.get_text(): matplotlib.colors.to_hex(h.get_facecolor()[0]) for t, h in zip(legend.get_texts(), legend.legend_handles, strict=True)}
    assert shown == {"T": "#ff0000", "B": "#00ff00", "NK": "#0000ff"}
    some = ds.plot_embedding("umap", "type", groups=["NK"]).axes[0].get_legend()
    assert [t.get_text() for t in some.get_texts()] == ["NK", "(no value)"] and matplotlib.colors.to_hex(some.legend_handles[0].get_facecolor()[0]) == "#0000ff"
    assert len(ds.plot_embedding("X_pca").data) == 90
    with pytest.raises(skytether.NotFoundError, match="no embedding 'umpa': it has .*did you mean 'umap'"):
        ds.plot_embedding("umpa")
    with pytest.raises(skytether.InvalidError, match="has 3 components: it has no 1 and 4"):
        ds.plot_embedding("umap", components=(1, 4))


def test_qc_frames_are_those_of_scanpy(tmp_path):
    made = ad.AnnData(X=counts(80, 30), obs=pd.DataFrame(index=[f"c{i}" for i in range(80)]), var=pd.DataFrame(index=[f"MT-{i}" if i < 4 else f"mtg{i}" for i in range(30)]))
    made.X[5] = 0
    made.var["mt"] = made.var_names.str.startswith("MT-")
    made.var["ends"] = made.var_names.str.endswith("1")
    obs, var = sc.pp.calculate_qc_metrics(made, qc_vars=["mt", "ends"], percent_top=None)
    with msgexpress.open(tmp_path / "fleet", drives=3) as db:
        ds = db.ingest(made, "t/x")
        from msgexpress import _quality

        ours, of_genes = _quality.frames(ds, {"mt": "MT-", "ends": made.var["ends"]})
        for frame, theirs in ((ours, obs), (of_genes, var)):
            assert list(frame.index) == list(theirs.index) and set(theirs.columns) == set(frame.columns)
            for column in theirs:
                np.testing.assert_allclose(frame[column].to_numpy(float), theirs[column].to_numpy(float), rtol=2e-6, atol=1e-6, err_msg=column)
        # The mitochondrial genes are found; they are none of the others.
        plot = ds.plot_qc()
        assert list(plot.data.columns) == ["n_genes_by_counts", "total_counts", "pct_counts_mt"] and len(plot.axes) == 6
        # Frames of scanpy's, as they are; and a method of the data set, where it has one.
        assert ds.plot_qc(obs, var).data["pct_counts_ends"].equals(obs["pct_counts_ends"])
        with pytest.raises(skytether.InvalidError, match="no gene of t/x has a name that begins with 'MITO-'"):
            ds.plot_qc(qc_vars={"mt": "MITO-"})
        with pytest.raises(skytether.InvalidError, match="has no column total_counts"):
            ds.plot_qc(made.obs)


def test_qc_takes_what_the_data_set_itself_counts(ds, monkeypatch):
    said = {}
    frame = pd.DataFrame({"total_counts": np.arange(90.0), "n_genes_by_counts": np.arange(90)}, index=ds.obs_names)

    def qc_metrics(self, qc_vars, percent_top):
        said.update(qc_vars)
        return frame, None

    monkeypatch.setattr(type(ds), "qc_metrics", qc_metrics, raising=False)
    assert ds.plot_qc(qc_vars={"odd": ["g1", "g3"]}).data["total_counts"].equals(frame["total_counts"])
    assert np.flatnonzero(said["odd"]).tolist() == [1, 3]


@pytest.mark.parametrize("options", [{}, {"reference": "B"}, {"groups": ["B"], "n_genes": 3}], ids=str)
def test_dot_plot_of_a_ranking_is_that_of_scanpy(ds, normal, options):
    sc.tl.rank_genes_groups(normal, "type", method="t-test", reference=options.get("reference", "rest"))
    res = ds.rank_genes_groups("type", transform=T, **options)
    few = options.get("n_genes", 4)
    plot = res.plot_dotplot(n_genes=4)
    theirs = sc.pl.rank_genes_groups_dotplot(normal, n_genes=few, groups=res.groups, return_fig=True, dendrogram=False, show=False)
    same(plot.dot_color_df, theirs.dot_color_df)
    same(plot.dot_size_df, theirs.dot_size_df)
    assert list(plot.dot_size_df.columns) == [n for g in res.groups for n in res.to_df(g)["names"][:few]]
    heat = res.plot_heatmap(n_genes=2, by="groups")
    assert list(heat.data.columns) == [n for g in res.groups for n in res.to_df(g)["names"][:2]]


def test_ranking_of_some_cells_is_shown_with_these(ds, normal):
    res = ds.rank_genes_groups("type", transform=T, cells={"ok": True})
    genes = list(res.to_df("T")["names"][:3])
    plot = res.plot_dotplot(n_genes=3, groups="T")
    same(plot.dot_color_df, sc.pl.DotPlot(normal[normal.obs["ok"]], genes, "type").dot_color_df)
    assert len(res.plot_heatmap(n_genes=2, groups=["T"]).data) == 45
    assert set(res.plot_violin("T", n_genes=2).data["type"]) == {"T", "B", "NK"}


def test_least_fold_change_leaves_genes_out(ds):
    res = ds.rank_genes_groups("type", transform=T)
    every = res.to_df("T")
    plot = res.plot_dotplot(n_genes=40, groups=["T"], min_logfoldchange=0.2)
    assert list(plot.dot_size_df.columns) == list(every[every["logfoldchanges"] >= 0.2]["names"])
    with pytest.raises(skytether.InvalidError, match="there are no genes to show"):
        res.plot_dotplot(min_logfoldchange=1e9)


def test_two_sets_of_cells_are_the_groups_of_a_plot(ds, normal):
    res = ds.ttest({"type": "T"}, {"type": "B"}, transform=T)
    plot = res.plot_dotplot(n_genes=3)
    assert list(plot.dot_size_df.index) == ["T", "B"] and set(plot.data["cells"]) == {30}
    same(plot.dot_color_df, sc.pl.DotPlot(normal, list(plot.dot_size_df.columns), "type").dot_color_df.loc[["T", "B"]])
    res = ds.ttest(np.arange(40), np.arange(30, 60), transform=T, overlap=True)
    with pytest.raises(skytether.InvalidError, match="cells are in both sets of this test"):
        res.plot_dotplot()


def test_transform_is_asked_for_where_genes_are_shown(ds):
    for draw in (lambda: ds.plot_dotplot("g1", "type"), lambda: ds.plot_heatmap("g1", "type"), lambda: ds.plot_violin("g1"), lambda: ds.plot_embedding("umap", "g1")):
        with pytest.raises(skytether.InvalidError, match="say transform=: its values are all non-negative integers"):
            draw()


def test_values_that_counts_cannot_be_are_named(ds):
    for draw in (lambda: ds.plot_violin("g3", layer="scaled", transform=T), lambda: ds.plot_dotplot("g3", "type", layer="scaled", transform=T)):
        with pytest.raises(skytether.InvalidError, match="gene 'g[03]' has the value -1.5 in cell 'cell-"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            draw()


def test_too_much_for_a_plot_is_an_error(ds):
    with pytest.raises(skytether.InvalidError, match="no cell of t/x has a value in obs column 'empty'"):
        ds.plot_dotplot("g1", "empty", transform=T)
    with pytest.raises(skytether.InvalidError, match="there are no genes to show"):
        ds.plot_dotplot([], "type", transform=T)
    with pytest.raises(skytether.InvalidError, match="these are 1,200: name fewer"):
        ds.plot_dotplot(["g1"] * 1200, "type", transform=T)
    with pytest.raises(skytether.InvalidError, match="no colour map 'redish'"):
        ds.plot_dotplot("g1", "type", transform=T, cmap="redish")
    with pytest.raises(skytether.InvalidError, match="no standard_scale 'gene'"):
        ds.plot_dotplot("g1", "type", transform=T, standard_scale="gene")


def test_a_plot_is_saved_by_its_ending(ds, tmp_path):
    plot = ds.plot_dotplot(GENES, "type", transform=T, path=tmp_path / "a.svg")
    plot.save(tmp_path / "b.png", dpi=60)
    assert b"<svg" in (tmp_path / "a.svg").read_bytes() and (tmp_path / "b.png").read_bytes()[1:4] == b"PNG"
    with pytest.raises(skytether.InvalidError, match="a.txt: pictures end in one of"):
        plot.save(tmp_path / "a.txt")
    with pytest.raises(skytether.InvalidError, match="cannot write .*No such file"):
        plot.save(tmp_path / "none" / "a.png")
    # A file alone is none of pyplot's figures, and axes that are given are drawn into.
    assert not matplotlib.pyplot.get_fignums()
    ax = matplotlib.pyplot.figure().add_subplot()
    assert ds.plot_violin("depth", "type", ax=ax).ax is ax
