"""What each module can give: measured alone, the same by any number of processes, kept, proposed as the rows say."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
import torch
from torch import Tensor, nn

import generalist
from generalist import Run, UserError, measure_modules
from generalist.core.files import read_json, seal_holds
from generalist.data import Split
from generalist.models.modules import blocks
from generalist.report.modules import Change, Kind, ModuleReport, ModuleRow, csv_text
from generalist.runs import modules
from generalist.runs.modules import _candidate_sets, _choose, _highest_price
from generalist.runs.paths import ModulePaths
from run_cases import killed_at

SMALL = {
    "training.epochs": 2, "training.batch_size": 25, "data.limit": 120, "model.width": 2,
    "validation.images": 10, "validation.steps": 2,
}  # fmt: skip
UNITS = ["conv1", "conv2", "conv3", "conv4", "conv5", "fc"]
QUICK: dict[str, Any] = {"epochs": 1, "images": 12}
State = Mapping[str, Tensor]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return generalist.train("digits-at", out=tmp_path_factory.mktemp("runs") / "at", overrides=SMALL)


@pytest.fixture(scope="module")
def report(run: Run, tmp_path_factory: pytest.TempPathFactory) -> ModuleReport:
    return measure_modules(run, out=tmp_path_factory.mktemp("modules"), **QUICK)


@pytest.fixture
def attacked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[State, Split]]:
    """The states of the models that are judged, in their order, and by which images."""
    judged: list[tuple[State, Split]] = []
    original = modules.evaluate_split

    def spied(model: nn.Module, split: Split, **options: Any) -> Any:
        judged.append(({name: tensor.clone() for name, tensor in model.state_dict().items()}, split))
        return original(model, split, **options)

    monkeypatch.setattr(modules, "evaluate_split", spied)
    return judged


def test_only_the_module_is_moved_and_only_the_validation_split_is_attacked(
    run: Run, tmp_path: Path, attacked: list[tuple[State, Split]]
) -> None:
    measure_modules(run, out=tmp_path, **QUICK)
    model = run.model()
    parameters = {name for name, _ in model.named_parameters()}
    (before, _), (whole, _), *alone = attacked
    moved = [{name for name in before if not torch.equal(state[name], before[name])} for state, _ in alone]
    for unit, names in zip(UNITS, moved, strict=False):
        assert names <= set(blocks(model)[unit])
        assert names & parameters == set(blocks(model)[unit]) & parameters
    assert {name for name in before if not torch.equal(whole[name], before[name])} >= parameters
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    dataset = generalist.load_dataset("digits", limit=120, validation=run.recipe.data.validation)
    assert {split.digest() for _, split in attacked} == {dataset.validation.digest()}


def test_any_number_of_workers_finds_the_same(run: Run, report: ModuleReport, tmp_path: Path) -> None:
    assert measure_modules(run, out=tmp_path, workers=2, **QUICK).record() == report.record()


def test_the_rows_are_what_the_report_says(report: ModuleReport) -> None:
    kinds = [row.kind for row in report.rows]
    assert [row.name for row in report.rows if row.kind == "module"] == UNITS
    assert kinds == sorted(kinds, key=["module", "set", "whole"].index)
    assert kinds[-1] == "whole"
    assert report.rows[-1].parameters == sum(row.parameters for row in report.rows if row.kind == "module")
    assert all((row.criticality is not None) == (row.kind == "module") for row in report.rows)
    assert all(row.criticality is None or row.criticality > 0 for row in report.rows)
    for row in report.rows:
        lost, gained = -row.union.points, row.natural.points
        assert row.price == (pytest.approx(lost / gained) if gained > 0 else None)
    printed = str(report)
    assert all(row.name in printed for row in report.rows)
    assert csv_text(report).count("\n") == len(report.rows) + 1


def test_the_proposal_follows_from_the_rows(report: ModuleReport) -> None:
    singles = [row for row in report.rows if row.kind == "module"]
    assert report.rate == _highest_price(report.rows[-1])
    assert [list(row.modules) for row in report.rows if row.kind == "set"] == _candidate_sets(singles, report.rate)
    chosen = _choose([row for row in report.rows if row.kind != "whole"], report.rate)
    assert report.proposed == (chosen.trains if chosen else ())
    marked = {row.name for row in report.rows if report.is_proposed(row) and row.kind == "module"}
    assert marked == (set(chosen.modules) if chosen else set())


def test_report_and_figures_are_written(report: ModuleReport) -> None:
    record, png, svg = report.files
    assert seal_holds(read_json(record))
    assert {**report.record(), "digest": read_json(record)["digest"]} == read_json(record)
    pixels = matplotlib.image.imread(png)
    assert pixels.std() > 0.05
    for edge in (pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]):
        assert edge.min() == 1.0, "something is cut off"
    assert svg.read_text().count("<text") + svg.read_text().count("<g id=") > 10


def test_a_killed_measurement_goes_on_where_it_was(
    run: Run, report: ModuleReport, tmp_path: Path, attacked: list[tuple[State, Split]]
) -> None:
    killed_at("measured", 4, lambda: measure_modules(run, out=tmp_path, **QUICK), told="the fourth job")
    again = measure_modules(run, out=tmp_path, **QUICK)
    assert again.record() == report.record()
    jobs = len(report.rows) + 1
    assert len(attacked) == jobs - 3
    assert measure_modules(run, out=tmp_path, **QUICK).record() == report.record()
    assert len(attacked) == jobs - 3, "nothing is measured twice"


def test_what_was_measured_otherwise_or_changed_is_not_believed(
    run: Run, report: ModuleReport, tmp_path: Path, attacked: list[tuple[State, Split]]
) -> None:
    measure_modules(run, out=tmp_path, **QUICK)
    jobs = len(attacked)
    measured = sorted(ModulePaths(tmp_path).measured_file("x").parent.iterdir())
    assert len(measured) == jobs
    text = measured[0].read_text()
    measured[0].write_text(text.replace("natural", "unnatural"))
    measured[1].write_text("{")
    with pytest.warns(UserWarning, match="measured again") as told:
        assert measure_modules(run, out=tmp_path, **QUICK).record() == report.record()
    assert (len(told), len(attacked)) == (2, jobs + 2)
    assert measured[0].read_text() == text
    measure_modules(run, out=tmp_path, images=QUICK["images"], epochs=1, lr=0.01)
    assert len(attacked) > jobs + 2 + len(UNITS)


def test_a_run_keeps_its_report_and_a_learner_can_be_measured(run: Run) -> None:
    report = measure_modules(run, name="linf", **QUICK)
    assert report.files[0] == run.modules.report_file("linf").resolve()
    assert report.title == "at/linf"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Run(run.folder).finished


def test_a_recipe_that_starts_from_weights(run: Run, report: ModuleReport, tmp_path: Path) -> None:
    start = {**SMALL, "init.from": str(run.folder)}
    found = measure_modules("digits-at", overrides=start, out=tmp_path, **QUICK)
    assert found.record()["rows"] == report.record()["rows"]


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "untrained": ({"target": "digits-at"}, "digits-at has no trained weights: .* init.from"),
    "no-folder": ({"target": "digits-at", "overrides": {"init.from": "x.pt"}}, "has no folder"),
    "learner": ({"name": "l2"}, "has no model 'l2' yet; it has global, linf"),
    "learner-of-recipe": ({"target": "digits-at", "name": "linf"}, "only a run has several models"),
    "overrides": ({"overrides": {"seed": 1}}, "go with a recipe"),
    "lr": ({"lr": 0.0}, "lr must be above 0, got 0.0"),
    "epochs": ({"epochs": float("nan")}, "epochs must be above 0, got nan"),
    "images": ({"images": 0}, "images must be above 0, got 0"),
    "workers": ({"workers": 0}, "workers must be above 0, got 0"),
    "price": ({"price": -1.0}, "price must be at least 0, got -1.0"),
    "threat": ({"threats": "l3:1"}, "norm 'l3'"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line(run: Run, case: str) -> None:
    given, message = MISTAKES[case]
    with pytest.raises(UserError, match=message) as raised:
        measure_modules(**{"target": run, **given})
    assert "\n" not in str(raised.value)


def row(
    name: str, natural: float, robust: float, *, margin: float = 0.5, last: bool = False, kind: Kind = "module"
) -> ModuleRow:
    change = Change(robust, margin)
    names = tuple(name.split(", "))
    return ModuleRow(name, names, names, kind, 1, Change(natural, margin), {"linf:1/10": change}, change, 0.1, last)


NETWORK = [row("a", 1.0, -20.0), row("b", 2.0, -2.0), row("c", 0.1, -0.3), row("d", 3.0, -3.0, last=True)]


def test_the_highest_price_is_half_of_the_whole_networks_and_at_least_one() -> None:
    assert _highest_price(row("whole", 2.0, -16.0, kind="whole")) == pytest.approx(4.0)
    assert _highest_price(row("whole", 2.0, -1.0, kind="whole")) == 1.0
    assert _highest_price(row("whole", -2.0, -1.0, kind="whole")) == 1.0


def test_sets_are_the_last_modules_until_one_is_surely_too_dear() -> None:
    assert _candidate_sets(NETWORK, 2.0) == [["c", "d"], ["b", "c", "d"], ["b", "d"]]
    dear = [*NETWORK[:2], row("c", 0.1, -9.0), NETWORK[3]]
    assert _candidate_sets(dear, 2.0) == [["b", "d"]]
    deep = [row(str(number), 2.0, -1.0, last=number == 19) for number in range(20)]
    lengths = [len(names) for names in _candidate_sets(deep, 1.0)]
    assert lengths == [2, 3, 4, 5]


CHOICES: dict[str, tuple[list[ModuleRow], str | None]] = {
    "worth-most": ([row("d", 1.0, -1.0, last=True), row("c, d", 3.0, -2.0, last=True, kind="set")], "c, d"),
    "last-before-luck": ([row("d", 1.0, -1.0, last=True), row("b", 1.2, -1.0)], "d"),
    "others-if-surely-better": ([row("d", 1.0, -1.0, last=True), row("b", 5.0, -1.0)], "b"),
    "others-alone": ([row("d", 0.1, -9.0, last=True), row("b", 2.0, -1.0)], "b"),
    "nothing": ([row("d", 0.1, -9.0, last=True), row("b", -1.0, -1.0)], None),
}


@pytest.mark.parametrize("case", CHOICES)
def test_what_is_worth_most_is_chosen_late_modules_preferred(case: str) -> None:
    rows, expected = CHOICES[case]
    chosen = _choose(rows, 2.0)
    assert (chosen and chosen.name) == expected


def test_a_proposal_that_may_be_chance_is_marked(report: ModuleReport) -> None:
    shaky, sure = row("d", 1.0, -0.9, margin=2.0, last=True), row("d", 9.0, -0.9, margin=0.1, last=True)
    assert "may be chance" in str(replace(report, chosen=shaky, rate=1.0))
    assert "may be chance" not in str(replace(report, chosen=sure, rate=1.0))


def test_a_report_that_proposes_nothing_says_so(report: ModuleReport) -> None:
    nothing = replace(report, chosen=None, rate=0.5)
    assert nothing.proposed == ()
    assert "nothing is proposed: no module has a price of at most 0.50" in str(nothing)


def test_rare_classes_are_drawn_as_the_recipe_draws_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []
    original = modules.batches

    def spied(*args: Any, **options: Any) -> Any:
        drawn.append(options["balance"])
        return original(*args, **options)

    monkeypatch.setattr(modules, "batches", spied)
    start = {"init.from": str(run.folder), **SMALL}
    measure_modules("digits-at", out=tmp_path / "even", overrides={**start, "data.balance": 1.0}, **QUICK)
    assert drawn
    assert set(drawn) == {1.0}
