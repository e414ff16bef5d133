"""The figures of a run: complete, of one look, and nothing cut off."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from generalist.report import figures
from generalist.report.figures import draw_run, pictures
from generalist.report.scatter import Point, place_labels
from run_cases import rendered_figures

Drawn = dict[str, Figure]


@pytest.fixture
def rendered() -> Iterator[None]:
    """Given before `drawn`."""
    with rendered_figures():
        yield


def journal(
    learners: list[str],
    *,
    epochs: int,
    live_from: dict[str, int],
    resets: tuple[int, ...] = (),
    split: str = "validation",
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for epoch in range(1, epochs + 1):
        live = [name for name in learners if epoch >= live_from.get(name, 1)]
        pairs = [f"{a}|{b}" for i, a in enumerate(live) for b in live[i + 1 :]]
        rows.append(
            {
                "kind": "epoch",
                "epoch": epoch,
                "redistributed": epoch in resets,
                "gamma": {name: 1 / len(learners) for name in learners},
                "train": {name: {"loss": 2 / epoch} for name in live},
                "regret": {"tasks": dict.fromkeys(live, 0.1), "mean": 0.1, "bound": 1.0},
                "drift": {
                    "term": 0.3,
                    "from_global": dict.fromkeys(live, 1 / epoch),
                    "cosine": dict.fromkeys(pairs, -0.2),
                },
            }
        )
        if epoch % 5 == 0:
            scores = {"natural": 50.0 + epoch, "robust": {"linf:8/255": 20.0 + epoch, "l2:128/255": 30.0}}
            models = dict.fromkeys(["global", *live], scores)
            rows.append({"kind": "validation", "epoch": epoch, "split": split, "models": models})
    return rows


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """The figures by file name, as they were saved."""
    saved: Drawn = {}
    write = figures.write_atomically

    def made(figure: Figure) -> dict[str, bytes]:
        saved[""] = figure
        return pictures(figure)

    def keep(path: Path, content: bytes) -> None:
        write(path, content)
        saved[path.stem] = saved[""]

    monkeypatch.setattr(figures, "pictures", made)
    monkeypatch.setattr(figures, "write_atomically", keep)
    return saved


def lines(axis: Axes) -> dict[str, Any]:
    return {str(line.get_label()): line for line in axis.get_lines()}


def test_one_learner(tmp_path: Path, rendered: None, drawn: Drawn) -> None:
    paths = draw_run(
        journal(["linf"], epochs=10, live_from={}), tmp_path / "figures", title="digits-at", select="validation"
    )
    assert {path.name for path in paths} == {
        f"{name}.{kind}" for name in ("loss", "regret", "drift", "accuracy") for kind in ("png", "svg")
    }
    assert len(drawn["drift"].axes) == 2
    assert len(drawn["accuracy"].axes) == 3
    for path in paths:
        if path.suffix == ".svg":
            assert path.read_text().count("<g id=") > 50
            continue
        pixels = np.asarray(Image.open(path).convert("L"))
        assert pixels.shape[0] >= 500
        assert (pixels < 128).mean() > 0.005


def test_three_learners_two_of_them_idle_at_first(tmp_path: Path, drawn: Drawn) -> None:
    rows = journal(["linf", "natural", "l2"], epochs=60, live_from={"natural": 41, "l2": 41})
    draw_run(rows, tmp_path, title="digits-generalist-t", select="validation")
    loss = lines(drawn["loss"].axes[0])
    assert list(loss["linf"].get_xdata()) == list(range(1, 61))
    assert list(loss["l2"].get_xdata()) == list(range(41, 61))
    assert set(lines(drawn["drift"].axes[2])) == {"linf – natural", "linf – l2", "natural – l2"}
    for figure in drawn.values():
        for axis in figure.axes:
            assert axis.get_xlim() == drawn["loss"].axes[0].get_xlim()
    colours = {
        (label, line.get_color())
        for name in ("loss", "gamma", "accuracy", "regret")
        for axis in drawn[name].axes
        for label, line in lines(axis).items()
    }
    assert len(colours) == len({label for label, _ in colours}) == len({"linf", "natural", "l2", "global", "mean"})


def test_equal_weights_can_be_told_apart(tmp_path: Path, drawn: Drawn) -> None:
    draw_run(journal(["linf", "natural", "l2"], epochs=60, live_from={}), tmp_path, title="t", select="last")
    widths = [line.get_linewidth() for line in drawn["gamma"].axes[0].get_lines()]
    assert widths == sorted(set(widths), reverse=True)


def test_nothing_is_cut_off_or_on_top_of_another(tmp_path: Path, rendered: None, drawn: Drawn) -> None:
    rows = journal(["linf", "natural", "l2"], epochs=60, live_from={"natural": 41})
    draw_run(rows, tmp_path, title="cifar100-wrn32-10-generalist-d-natural", select="validation")
    for name, figure in drawn.items():
        figure.draw_without_rendering()
        canvas = figure.bbox
        legend = figure.legends[0].get_window_extent()
        title = figure._suptitle.get_window_extent()  # type: ignore[attr-defined]
        for box in (legend, title):
            assert box.x0 >= 0, name
            assert box.x1 <= canvas.x1, name
        panels = [axis.get_tightbbox() for axis in figure.axes]
        for panel in panels:
            assert panel.y0 >= legend.y1 - 1, name
            assert panel.y1 <= title.y0 + 1, name
        for left, right in pairwise(panels):
            assert left.x1 <= right.x0 + 1, name


def test_threats_are_written_as_in_a_paper(tmp_path: Path, drawn: Drawn) -> None:
    draw_run(journal(["linf"], epochs=5, live_from={}), tmp_path, title="t", select="last")
    titles = [axis.get_title() for axis in drawn["accuracy"].axes]
    assert titles == ["natural", r"$\ell_\infty$, $\epsilon$ = 8/255", r"$\ell_2$, $\epsilon$ = 128/255"]


def test_nothing_to_draw(tmp_path: Path) -> None:
    assert draw_run([], tmp_path / "figures", title="t", select="last") == []
    assert not (tmp_path / "figures").exists()


THREE = ["linf", "natural", "l2"]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_accuracies_reach_from_0_to_100(tmp_path: Path, drawn: Drawn) -> None:
    draw_run(journal(THREE, epochs=10, live_from={}), tmp_path, title="t", select="last")
    assert {axis.get_ylim() for axis in drawn["accuracy"].axes} == {(0, 100)}


def test_redistributions_are_marked_in_every_panel(tmp_path: Path, drawn: Drawn) -> None:
    draw_run(journal(THREE, epochs=20, live_from={}, resets=(10, 15)), tmp_path, title="t", select="last")
    for name, figure in drawn.items():
        assert legend(figure)[-1] == "redistribution", name
        for axis in figure.axes:
            (marks,) = [drawn for drawn in axis.collections if drawn.get_label() == "redistribution"]
            assert [segment[0][0] for segment in marks.get_segments()] == [10, 15], name  # type: ignore[attr-defined]
    draw_run(journal(THREE, epochs=20, live_from={}), tmp_path, title="t", select="last")
    assert "redistribution" not in legend(drawn["loss"])


def test_a_learner_has_one_colour_in_all_runs_and_every_colour_is_in_the_legend(tmp_path: Path, drawn: Drawn) -> None:
    ten = ["linf", "l2", "l1", "linf-half", "linf-double", "l2-half", "l2-double", "mine", "other", "natural"]
    colours: dict[str, set[Any]] = {}
    for learners in (THREE, ["l2", "linf"], ["natural"], ten):
        draw_run(journal(learners, epochs=10, live_from={}, resets=(5,)), tmp_path, title="t", select="last")
        for name, figure in drawn.items():
            lines_of = {str(line.get_label()): line for axis in figure.axes for line in axis.get_lines()}
            assert set(lines_of) <= set(legend(figure)), name
            for label, line in lines_of.items():
                colours.setdefault(label, set()).add(line.get_color())
    alone = {name: colours[name] for name in ten}
    assert all(len(of) == 1 for of in alone.values())
    assert len({next(iter(of)) for of in alone.values()}) == 10


def test_titles_say_the_split_and_what_selected(tmp_path: Path, drawn: Drawn) -> None:
    titles = {}
    for select, split in (("validation", "validation"), ("last", "validation"), ("test", "test")):
        draw_run(journal(["linf"], epochs=5, live_from={}, split=split), tmp_path, title="t", select=select)
        titles[select] = drawn["accuracy"]._suptitle.get_text()  # type: ignore[attr-defined]
    assert titles == {
        "validation": "t: accuracy on the validation split, select: validation",
        "last": "t: accuracy on the validation split, select: last",
        "test": "t: accuracy on the test split, select: test (!)",
    }


def test_labels_at_the_edge_are_not_cut_off_and_hide_nothing() -> None:
    figure = Figure(figsize=(4, 3))
    axis = figure.subplots()
    axis.set(xlim=(0, 1), ylim=(0, 1))
    points = [Point("a rather long name", x, 0.0, "black") for x in (0.93, 0.96, 1.0)]
    place_labels(axis, points, points)
    page, labels = figure.bbox, [text.get_window_extent() for text in axis.texts]
    assert len(labels) == 3
    assert all(page.x0 <= box.x0 and box.x1 <= page.x1 for box in labels)
    assert not any(a.overlaps(b) for a, b in combinations(labels, 2))
