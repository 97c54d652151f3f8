"""What a volcano plot says of p-values and fold changes that don't fit on its axes, and where it puts names."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path as Outline

from msgexpress import _plot

matplotlib.use("Agg")


def drawn(change, adjusted, path, label=12):
    """The axes of a volcano plot of genes G0, G1, ..., best score first."""
    frame = pd.DataFrame({"names": [f"G{i}" for i in range(len(change))], "scores": -np.arange(len(change)), "logfoldchanges": change, "pvals_adj": adjusted})
    return _plot.volcano(frame, "a against b", "a test", None, path / "plot.png", label, 1.0, 0.05)


def heights(ax, marker: str) -> np.ndarray:
    """The y of all points that are drawn with `marker`."""
    style = MarkerStyle(marker)
    outline = style.get_path().transformed(style.get_transform())
    of_it = [c for c in ax.collections if isinstance(c.get_paths()[0], Outline) and np.array_equal(c.get_paths()[0].vertices, outline.vertices)]
    return np.concatenate([np.asarray(c.get_offsets())[:, 1] for c in of_it]) if of_it else np.zeros(0)


def test_underflowed_p_value_has_its_own_marker(tmp_path):
    """It gets a triangle at the top instead of an invented height."""
    ax = drawn([3.0, 2.0, -2.0, 0.1], [0.0, 1e-40, 1e-30, 0.9], tmp_path)
    (top,) = heights(ax, "^")
    assert top >= 308 and top <= ax.get_ylim()[1]
    np.testing.assert_allclose(sorted(heights(ax, "o")), [-np.log10(0.9), 30, 40])
    assert "triangles: p below 1e-308" in ax.get_ylabel()
    # The smallest that a double holds is above where the triangles would begin otherwise.
    ax = drawn([3.0, 2.0], [0.0, 5e-324], tmp_path)
    assert heights(ax, "^")[0] > heights(ax, "o")[0] > 323
    ax = drawn([3.0, 2.0], [1e-50, 1e-40], tmp_path)
    assert "triangles" not in ax.get_ylabel() and len(heights(ax, "^")) == 0


@pytest.mark.parametrize(("farthest", "limit"), [(7.3, "7.5"), (7.9, "8"), (8.2, "8.5")])
def test_the_limit_of_fold_changes_is_said_as_it_is(tmp_path, farthest, limit):
    ax = drawn([farthest, 30.0, -2.0], [1e-9, 1e-8, 1e-7], tmp_path)
    assert f"(diamonds: beyond {limit})" in ax.get_xlabel() and len(heights(ax, "D")) == 1


def test_infinite_fold_changes_are_at_the_edge(tmp_path):
    inf = float("inf")
    ax = drawn([inf, 3.0, 0.2, -inf, float("nan"), -2.0], [1e-9, 1e-8, 0.5, 1e-7, 1e-6, float("nan")], tmp_path)
    np.testing.assert_allclose(sorted(heights(ax, "D")), [7, 9])
    assert len(heights(ax, "o")) == 2 and "(diamonds: beyond 3)" in ax.get_xlabel()
    said = [t.get_text() for t in ax.texts]
    assert {"2 higher", "1 lower", "G0", "G3"} <= set(said) and "G4" not in said and "G5" not in said
    for line in ax.collections:
        assert (np.abs(np.asarray(line.get_offsets())[:, 0]) <= 3).all()
    # Nothing else to measure by.
    ax = drawn([inf, -inf], [1e-9, 1e-7], tmp_path)
    assert len(heights(ax, "D")) == 2 and ax.get_xlim()[1] > 2


def test_significance_line_is_shown_without_significant_genes(tmp_path):
    ax = drawn([0.5, -0.3, 2.0], [1.0, 1.0, 0.8], tmp_path)
    assert ax.get_ylim()[1] > -np.log10(0.05)


def test_names_cover_neither_points_nor_each_other(tmp_path):
    rng = np.random.default_rng(5)
    change = rng.normal(0, 2, 3000)
    adjusted = 10.0 ** -(np.abs(change) * rng.exponential(4, 3000))
    order = np.argsort(-np.sign(change) * -np.log10(adjusted))
    ax = drawn(change[order], adjusted[order], tmp_path)
    renderer = ax.figure.canvas.get_renderer()
    names = [t for t in ax.texts if t.get_text().startswith("G")]
    assert len(names) >= 12
    points = np.concatenate([ax.transData.transform(np.asarray(c.get_offsets())) for c in ax.collections])
    boxes = [t.get_window_extent(renderer) for t in names]
    for i, box in enumerate(boxes):
        assert not ((points[:, 0] > box.x0) & (points[:, 0] < box.x1) & (points[:, 1] > box.y0) & (points[:, 1] < box.y1)).any(), names[i]
        assert not any(box.overlaps(other) for other in boxes[i + 1 :]), names[i]
        # Near its point.
        at = ax.transData.transform(names[i].xy)
        away = np.hypot(*(np.clip(at, (box.x0, box.y0), (box.x1, box.y1)) - at)) * 72 / ax.figure.dpi
        assert away < 40, (names[i], away)


def test_names_that_do_not_fit_are_left_out(tmp_path):
    # All of them in one place, and hidden below other points for a long way.
    across, up = np.meshgrid(np.linspace(1.5, 8, 120), np.linspace(5, 60, 120))
    ax = drawn(across.ravel(), 10.0 ** -up.ravel(), tmp_path)
    inside = [t for t in ax.texts if t.get_text().startswith("G") and t.xy[1] < 50 and 3 < t.xy[0] < 7]
    assert inside == []
    ax = drawn([4.0] * 40, [1e-20] * 40, tmp_path, label=40)
    assert 4 < len([t for t in ax.texts if t.get_text().startswith("G")]) < 40


def test_one_artefact_does_not_rule_the_axes(tmp_path):
    """As platelets among other cells: one gene far beyond all others on both axes is at the edge, and said to be."""
    rng = np.random.default_rng(3)
    change, adjusted = rng.uniform(-2, 2, 400), 10.0 ** -rng.uniform(0, 30, 400)
    change[0], adjusted[0] = 13.7, 1e-290
    ax = drawn(change, adjusted, tmp_path)
    assert ax.get_xlim()[1] < 4 and ax.get_ylim()[1] < 50
    (top,) = heights(ax, "^")
    assert top <= ax.get_ylim()[1]
    bound = int(ax.get_ylabel().split("below 1e-")[1].rstrip(")"))
    assert 25 < bound < 40 and top >= bound
    x = np.concatenate([np.asarray(c.get_offsets())[:, 0] for c in ax.collections])
    assert len(x) == 400 and x.max() <= ax.get_xlim()[1]
    # One on one axis only.
    adjusted[0] = 1e-20
    ax = drawn(change, adjusted, tmp_path)
    assert "diamonds: beyond 2" in ax.get_xlabel() and "triangles" not in ax.get_ylabel() and len(heights(ax, "D")) == 1


def test_many_far_points_stretch_the_axes(tmp_path):
    """What a tenth of the genes have is no artefact."""
    rng = np.random.default_rng(4)
    change, adjusted = rng.uniform(-2, 2, 400), 10.0 ** -rng.uniform(0, 30, 400)
    change[:40], adjusted[:40] = rng.uniform(8, 12, 40), 10.0 ** -rng.uniform(100, 200, 40)
    ax = drawn(change, adjusted, tmp_path)
    assert ax.get_xlim()[1] > 12 and ax.get_ylim()[1] > 190
    assert len(heights(ax, "^")) == len(heights(ax, "D")) == 0


def test_few_significant_genes_are_no_artefacts(tmp_path):
    """The only genes that differ are the finding: the axis has them."""
    rng = np.random.default_rng(5)
    change, adjusted = rng.uniform(-0.5, 0.5, 400), rng.uniform(0.5, 1, 400)
    change[:2], adjusted[:2] = [3.0, -2.5], [1e-102, 4e-95]
    ax = drawn(change, adjusted, tmp_path)
    assert "triangles" not in ax.get_ylabel() and len(heights(ax, "^")) == 0 and ax.get_ylim()[1] > 102
    # With one that is too small for a double.
    change[2], adjusted[2] = 2.0, 0.0
    ax = drawn(change, adjusted, tmp_path)
    assert "p below 1e-308" in ax.get_ylabel() and sorted(heights(ax, "o"))[-2:] == pytest.approx([94.4, 102], abs=0.1)
