"""The domains of a fleet, the cells of several data sets as one frame, their numbers, and SQL over all of them."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
from across import halves, small
from conftest import rich
from fleets import opened_or_connected

import msgexpress
import skytether


def frames() -> dict[str, pd.DataFrame]:
    """obs of two data sets: columns of all kinds, some in one only, some with values missing."""
    x = pd.DataFrame(
        {
            "type": pd.Categorical(np.array(["T", "B", "NK"])[np.arange(30) % 3], categories=["T", "B", "NK"]),
            "stage": pd.Categorical(np.array(["early", "late"])[np.arange(30) % 2], categories=["early", "late"], ordered=True),
            "n": np.arange(30, dtype=np.int32),
            "depth": np.arange(30) / 8,
            "ok": np.arange(30) % 2 == 0,
            "note": pd.Categorical([None if i % 5 == 0 else f"it's \"{i}\"; --" for i in range(30)]),
            "O'Neil \"x\"": [f"v{i % 4}" for i in range(30)],
            "cell": [f"inner {i}" for i in range(30)],
            "only x": np.arange(30),
        },
        index=[f"cell-{i}" for i in range(30)],
    )
    y = x.iloc[:20].copy()
    y["type"] = pd.Categorical(np.array(["Mono", "B"])[np.arange(20) % 2])
    y["n"] = np.arange(20) / 2
    y["only y"] = np.arange(20) % 2 == 0
    return {"t/x": x, "t/y": y.drop(columns="only x")}


@pytest.fixture(scope="module", params=["embedded", "connected"])
def two(request, tmp_path_factory):
    with opened_or_connected(request.param, tmp_path_factory.mktemp("across"), 3) as fleet:
        db = msgexpress.MsgExpress(fleet)
        for name, obs in frames().items():
            made = small(len(obs))
            made.obs = obs
            db.ingest(made, name)
        fleet.ingest(pd.DataFrame({"a": [1]}), "tables.only")
        yield db


def test_domains_list_expression_data_sets_alone(two):
    pd.testing.assert_frame_equal(two.domains(), pd.DataFrame({"domain": ["t"], "datasets": [2], "cells": [50]}))
    domain = two.domain("t")
    assert list(domain) == domain.names == ["t/x", "t/y"] and len(domain) == 2 and "x" in domain and "t.y" in domain and "z" not in domain
    assert domain["x"].name == domain["t/x"].name == "t/x"
    assert domain.datasets.to_dict("list") == {"dataset": ["t/x", "t/y"], "cells": [30, 20], "genes": [30, 30], "layers": ["", ""]}
    assert repr(domain).splitlines()[0] == "<msgexpress.Domain t: 2 data sets, 50 cells>" and '.obs(["cell_type"])' in repr(domain)
    with pytest.raises(skytether.NotFoundError, match="domain t has no data set 'z': it has t/x, t/y"):
        domain["z"]


def test_a_domain_says_what_its_columns_hold(two):
    columns = two.domain("t").columns.set_index(["column", "dataset"])
    for name, frame in frames().items():
        for label in frame.columns:
            row = columns.loc[(label, name)]
            assert (row["values"], row["missing"]) == (frame[label].nunique(), int(frame[label].isna().sum())), label
    kinds = columns["type"].unstack()
    assert kinds.loc["type"].tolist() == ["categories"] * 2 and kinds.loc["n"].tolist() == ["numbers"] * 2 and kinds.loc["ok", "t/x"] == "booleans"
    assert kinds.loc["cell", "t/x"] == "texts" and pd.isna(kinds.loc["only x", "t/y"]) and kinds.loc["only y", "t/y"] == "booleans"


def test_obs_of_several_is_what_pandas_concatenates(two):
    with pytest.warns(UserWarning) as told:
        found = two.obs("t")
    assert sorted(str(w.message) for w in told) == [
        "t/x has no obs column 'only y': the cells miss a value there",
        "t/y has no obs column 'only x': the cells miss a value there",
    ]
    parts = frames()
    assert list(found.columns) == ["dataset", *parts["t/x"].columns, "only y"]
    assert list(found.index) == [*parts["t/x"].index, *parts["t/y"].index] and list(found["dataset"]) == ["t/x"] * 30 + ["t/y"] * 20
    wanted = pd.concat(parts.values())
    for name in ("depth", "ok", "cell", "O'Neil \"x\"", "stage"):
        pd.testing.assert_series_equal(found[name], wanted[name], check_index_type=False)
    assert found["stage"].cat.ordered and list(found["type"].cat.categories) == ["T", "B", "NK", "Mono"]
    assert list(found["type"]) == list(wanted["type"].astype(object))
    assert found["note"].astype(object).fillna("-").tolist() == wanted["note"].astype(object).fillna("-").tolist()
    assert found["n"].dtype == np.float64 and found["n"].tolist() == wanted["n"].tolist()
    assert found["only x"].dtype == "Int64" and found["only x"].tolist()[:30] == list(range(30)) and found["only x"].isna().sum() == 20
    assert found["only y"].dtype == "boolean" and found["only y"].isna().sum() == 30


@pytest.mark.parametrize(
    ("where", "same"),
    [
        ({"type": "B"}, lambda f: f["type"] == "B"),
        ({"type": ["B", "Mono"], "ok": True}, lambda f: f["type"].isin(["B", "Mono"]) & f["ok"]),
        ({"ok": "False"}, lambda f: ~f["ok"]),
        ({"n": [1, 3.5, "7"]}, lambda f: f["n"].isin([1, 3.5, 7])),
        ({"depth": 0.25}, lambda f: f["depth"] == 0.25),
        ({"note": "it's \"7\"; --"}, lambda f: f["note"] == "it's \"7\"; --"),
        ({"O'Neil \"x\"": ("v1", "v3")}, lambda f: f["O'Neil \"x\""].isin(["v1", "v3"])),
        ({"cell": "inner 4"}, lambda f: f["cell"] == "inner 4"),
        ({"only x": np.int64(4)}, lambda f: f["only x"] == 4 if "only x" in f else f["ok"] & False),
        ("n > 2 AND type = 'B'", lambda f: (f["n"] > 2) & (f["type"] == "B")),
        ("\"only x\" < 5 OR \"only y\"", lambda f: f["only x"] < 5 if "only x" in f else f["only y"]),
        ("\"O'Neil \"\"x\"\"\" LIKE '%2' -- those", lambda f: f["O'Neil \"x\""] == "v2"),
        ("note IS NULL", lambda f: f["note"].isna()),
    ],
)
def test_cells_are_chosen_over_all_data_sets(two, where, same):
    found = two.obs("t", "n", where=where)
    parts = {name: frame[same(frame).to_numpy(bool)] for name, frame in frames().items()}
    assert list(found.index) == [cell for part in parts.values() for cell in part.index]
    assert list(found["n"]) == [v for part in parts.values() for v in part["n"]] and len(found) > 0
    counted = two.cells("t", where=where)
    assert counted["cells"].tolist() == [len(part) for part in parts.values()]


@pytest.mark.parametrize("by", ["type", "n", "ok", "note", "only x", ["type", "ok"], ["stage", "only y", "type"]])
def test_cells_are_counted_by_data_set_and_group(two, by):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = two.cells("t", by)
    names = [by] if isinstance(by, str) else by
    wanted = {}
    for name, frame in frames().items():
        filled = frame.reindex(columns=names).astype(object)
        for row in filled.where(filled.notna(), None).itertuples(index=False):
            wanted[(name, *row)] = wanted.get((name, *row), 0) + 1
    rows = found.astype(object).where(found.notna(), None).itertuples(index=False)
    assert {tuple(row[:-1]): row[-1] for row in rows} == wanted
    assert list(found.columns) == ["dataset", *names, "cells"] and found["dataset"].tolist() == sorted(found["dataset"])
    if by == "type":
        assert found["type"].tolist() == ["T", "B", "NK", "B", "Mono"]


def test_sql_reads_all_data_sets_together(two):
    """A union of obs, a join of var, and counts by the text that the domain writes."""
    domain = two.domain("t")
    text = f"SELECT dataset, type, count(*) AS cells FROM ({domain.sql('obs', ['type'])}) GROUP BY dataset, type ORDER BY dataset, type"
    counts = {(row["dataset"], row["type"]): row["cells"] for row in two.sql(text).to_arrow().to_pylist()}
    assert counts == {("t/x", "B"): 10, ("t/x", "NK"): 10, ("t/x", "T"): 10, ("t/y", "B"): 10, ("t/y", "Mono"): 10}
    shared = two.sql("SELECT count(*) AS n FROM t.x.var AS a JOIN t.y.var AS b ON a.gene_ids = b.gene_ids").to_pandas()["n"][0]
    assert shared == 30 == two.sql(f"SELECT count(DISTINCT gene) AS n FROM ({domain.sql('var')})").to_pandas()["n"][0]
    assert len(two.sql(domain.sql()).to_pandas()) == 50
    assert two.sql("SELECT count(*) AS n FROM t.x.obs WHERE n < ?", params=[5]).to_pandas()["n"][0] == 5


def test_filters_run_on_the_drives(pbmc3k_fleet):
    with msgexpress.open(pbmc3k_fleet) as db:
        text = "SELECT cell FROM blood.pbmc3k.obs WHERE cell_type = 'NK'"
        result = db.sql(text)
        assert len(result.to_arrow()) == len(db.obs("blood", [], where={"cell_type": "NK"})) == 155
        moved = result.receipt.to_dict()
        # One drive reads its copy, and sends the cells that are chosen.
        assert [(d["rung"], d["rows_out"]) for d in moved["drives"] if d["rows_out"]] == [("full", 155)] and moved["bytes_moved"] < 2700 * 20 / 4


def clashing(db, **columns):
    for name, values in zip(("t/x", "t/y"), zip(*columns.values())):
        made = small(12)
        made.obs = pd.DataFrame(dict(zip(columns, values)), index=made.obs_names)
        db.ingest(made, name)


def test_columns_of_other_types_ask_what_they_become(db):
    clashing(db, age=(np.arange(12), [str(i) for i in range(12)]), type=(["T"] * 12, ["B"] * 12))
    clashes = r"obs column 'age' clashes: it is numbers in t/x, texts in t/y; say what it becomes with clash=\{'age': \"text\"\}, \"number\" or \"drop\""
    with pytest.raises(skytether.InvalidError, match=clashes):
        db.obs("t")
    with pytest.raises(skytether.InvalidError, match="obs column 'age' clashes: it is numbers in t/x, texts in t/y"):
        db.cells("t", "age")
    assert db.obs("t", clash={"age": "number"})["age"].tolist() == [*range(12)] * 2
    assert db.obs("t", clash={"age": "text"})["age"].tolist() == [str(i) for i in range(12)] * 2
    assert list(db.obs("t", clash={"age": "drop"}).columns) == ["dataset", "type"] and list(db.obs("t", "type").columns) == ["dataset", "type"]
    assert set(db.cells("t", "age", clash={"age": "text"})["age"]) == {str(i) for i in range(12)}
    with pytest.raises(skytether.InvalidError, match="clash names the obs column 'agee', which no source has; did you mean 'age'"):
        db.obs("t", clash={"agee": "text"})
    with pytest.raises(skytether.InvalidError, match="clash says 'texts' for obs column 'age'"):
        db.obs("t", clash={"age": "texts"})


def test_other_orders_of_categories_ask_as_well(db):
    one, other = (pd.Categorical(["low", "high"] * 6, categories=order, ordered=True) for order in (["low", "high"], ["high", "low"]))
    clashing(db, grade=(one, other))
    with pytest.raises(skytether.InvalidError, match="'grade' clashes: it is texts in the order low, high in t/x, texts in the order high, low in t/y"):
        db.obs("t")
    assert db.obs("t", clash={"grade": "text"})["grade"].tolist() == ["low", "high"] * 12


def test_column_called_dataset_asks_for_a_label(db):
    clashing(db, dataset=(["a"] * 12, ["b"] * 12))
    with pytest.raises(skytether.InvalidError, match="obs has a column 'dataset' of its own: say with label="):
        db.obs("t")
    assert list(db.obs("t", label="from").columns) == ["from", "dataset"]
    with pytest.raises(skytether.InvalidError, match="obs has a column 'dataset' of its own"):
        db.cells("t", "dataset")


def test_one_data_set_and_several_are_named_in_any_way(db):
    for name in ("t/x", "t/y", "u-1/z"):
        db.ingest(small(10), name)
    for which, cells in (("t/x", 10), ("t.x", 10), (db["t/x"], 10), ("t", 20), (db.domain("t"), 20), (["t", "t/x", "u-1/z"], 30), (None, 30), (("u-1",), 10)):
        assert db.cells(which)["cells"].sum() == cells
        assert len(db.obs(which, ["type"])) == cells
    assert list(db.obs(db.domain("u-1"), "type")["type"].cat.categories) == ["T", "B", "NK", "unused"]
    assert list(db.domain("t").obs("type").columns) == ["dataset", "type"]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda db: db.domain("tt"), "NotFoundError", "there is no domain 'tt' with expression data sets: this fleet has t"),
        (lambda db: db.obs("tables"), "NotFoundError", "there is no domain 'tables'"),
        (lambda db: db.obs([]), "InvalidError", "the list of names is empty"),
        (lambda db: db.obs(3), "InvalidError", "3 names no data sets"),
        (lambda db: db.obs({"t": 1}), "InvalidError", "names no data sets"),
        (lambda db: db.obs("t/z"), "NotFoundError", "there is no data set t/z"),
        (lambda db: db.obs("tables/only"), "InvalidError", "tables/only is a table, not an expression data set"),
        (lambda db: db.obs("t", "typ"), "NotFoundError", "no data set has the obs column 'typ'.*did you mean 'type'"),
        (lambda db: db.obs("t", 3), "InvalidError", "columns is 3"),
        (lambda db: db.obs("t", label=""), "InvalidError", "label is ''"),
        (lambda db: db.obs("t", where={"typ": "B"}), "NotFoundError", "obs of t/x, t/y has no column 'typ'"),
        (lambda db: db.obs("t", where={"type": "Bx"}), "NotFoundError", "no cell of t/x, t/y has 'Bx' in obs column 'type': there are B, Mono, NK, T"),
        (lambda db: db.obs("t", where={"type": None}), "NotFoundError", "no cell of t/x, t/y has None"),
        (lambda db: db.obs("t", where={"n": "many"}), "NotFoundError", "no cell of t/x, t/y has 'many' in obs column 'n'"),
        (lambda db: db.obs("t", where={"type": []}), "InvalidError", "names no value of obs column 'type'"),
        (lambda db: db.obs("t", where={"type": [["B"]]}), "InvalidError", "is no value of obs column 'type'"),
        (lambda db: db.obs("t", where={}), "InvalidError", "chooses no cells"),
        (lambda db: db.obs("t", where=" "), "InvalidError", "empty condition"),
        (lambda db: db.obs("t", where="type = "), "InvalidError", "where= of t/x: "),
        (lambda db: db.obs("t", where="nope = 1"), "InvalidError", "where= of t/x: .*nope"),
        (lambda db: db.obs("t", where=3), "InvalidError", "where= is 3"),
        (lambda db: db.cells("t", 3), "InvalidError", "groupby is 3"),
        (lambda db: db.cells("t", "type", clash={"type": "x"}), "InvalidError", "clash says 'x'"),
    ],
)
def test_what_cannot_be_read_says_why(two, call, error, text):
    with pytest.raises(getattr(skytether, error), match=text):
        call(two)


def test_empty_fleet_has_no_domains(db):
    assert len(db.domains()) == 0
    with pytest.raises(skytether.NotFoundError, match="there is no domain 'blood' with expression data sets: this fleet has no expression data sets"):
        db.domain("blood")
    with pytest.raises(skytether.NotFoundError, match="this fleet has no expression data sets: ingest one"):
        db.obs()


def test_data_sets_without_cells_or_columns_take_part(db):
    empty = rich(cells=6)[:0].copy()
    bare = small(7)
    bare.obs = bare.obs[[]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        db.ingest(empty, "t/a")
        db.ingest(bare, "t/b")
        db.ingest(small(5), "t/c")
        found = db.obs("t", ["type", "n"])
        counted = db.cells("t", "type")
    assert found["dataset"].value_counts().to_dict() == {"t/a": 0, "t/b": 7, "t/c": 5} and found["type"].isna().sum() == 7
    assert counted["cells"].tolist() == [7, 2, 2, 1] and len(db.domain("t").columns) == 16


def test_ordered_categories_are_noted_by_an_ingest(db):
    ds = db.ingest(rich(), "t/x")
    assert ds._kept["ordered"] == ["batch"] and db.obs("t", "batch")["batch"].cat.ordered and not db.obs("t", "type")["type"].cat.ordered


def test_halves_of_an_experiment_are_read_as_one(db):
    """Cells' names of two real data sets, in order and over slices on all drives."""
    pair = halves()
    for name, adata in zip("ab", pair):
        db.ingest(adata, f"blood/{name}")
    found = db.obs("blood", ["cell_type", "label"], where="cell_type = 'B' OR label = 'B cell'")
    assert list(found.index) == [*pair[0].obs_names[pair[0].obs["cell_type"] == "B"], *pair[1].obs_names[pair[1].obs["label"] == "B cell"]]
