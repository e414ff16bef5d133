"""A search: its knobs, its front, hopeless and failed trials, killed ones, and the file that it writes."""

from pathlib import Path
from typing import Any

import pytest

from generalist.core.errors import RunError
from generalist.recipes.catalogue import load_recipe
from generalist.recipes.differences import first_difference
from generalist.runs.folder import Run
from generalist.runs.studies import tune as tuning
from generalist.runs.studies.space import knobs_of
from generalist.runs.studies.tune import is_hopeless, tune
from run_cases import killed_at
from study_cases import TINY

SETS = [f"{field}={value}" for field, value in TINY.items()]


def fields(recipe: str) -> list[str]:
    return [knob.name for knob in knobs_of(load_recipe(recipe))]


def test_knobs_are_those_that_a_recipe_has() -> None:
    assert fields("digits-nt") == ["learners.natural.optimizer.lr"]
    assert fields("digits-at") == ["learners.linf.optimizer.lr", "learners.linf.objective"]
    found = fields("digits-generalist-t")
    assert {"mixing.every_epochs", "mixing.start", "learners.linf.gamma", "learners.natural.gamma"} <= set(found)
    assert "learners.natural.trains" in found
    assert "learners.l2.trains" not in found  # it has the rest of γ, so it must have all of the network
    late = fields("digits-generalist-late-d")
    assert "mixing.every_epochs" not in late  # nobody is reset
    assert "learners.natural.trains" in late


def test_every_end_of_every_knob_is_a_recipe() -> None:
    for name in ("digits-generalist-t", "digits-generalist-late-t", "digits-generalist-d-natural", "digits-half"):
        recipe = load_recipe(name)
        for knob in knobs_of(recipe):
            for value in knob.choices or (knob.low, knob.high):
                changed = load_recipe(name, {knob.name: knob.override(value)})
                assert changed.learners.keys() == recipe.learners.keys()
        given = {knob.name: knob.override(knob.given) for knob in knobs_of(recipe)}
        assert first_difference(load_recipe(name, given), recipe) is None


def test_hopeless_is_behind_in_everything() -> None:
    peers = [(50.0, 30.0), (60.0, 20.0), (55.0, 25.0), (52.0, 28.0)]
    assert is_hopeless((40.0, 10.0), peers)
    assert not is_hopeless((40.0, 29.0), peers)
    assert not is_hopeless((40.0, 10.0), peers[:3])


def test_stopped_and_failed_trials_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, begun = tuning.train, 0

    def failing(*args: Any, **options: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == 3:
            raise RunError("learner 'linf' diverged")
        return train(*args, **options)

    monkeypatch.setattr(tuning, "train", failing)
    monkeypatch.setattr(tuning, "is_hopeless", lambda values, peers: begun == 2)
    overrides = [*SETS, "validation.every_epochs=1", "training.epochs=3"]
    found = tune("digits-at", objectives=("natural", "linf"), trials=4, overrides=overrides, out=tmp_path)
    rows = {row.label: row.missing for row in found.table.rows}
    assert rows["trial 0 (as given)"] == {}
    assert rows["trial 1"][0].startswith("stopped: below the median of")
    assert rows["trial 2"] == {0: "failed: learner 'linf' diverged"}
    assert rows["trial 3"] == {}
    assert "1 trials were stopped early" in found.table.notes
    assert not Run(next(Path(row.runs[0]) for row in found.table.rows if row.label == "trial 1")).finished
    assert "failed: trial 2: learner 'linf' diverged" in found.table.notes


def test_the_chosen_recipe_is_that_of_its_trial(tmp_path: Path) -> None:
    found = tune("digits-generalist-late-t", trials=4, overrides=SETS, out=tmp_path, maximise="natural", seed=3)
    chosen = next(row for row in found.table.rows if row.label.startswith(found.chosen))
    assert chosen.group == "on the front"
    best = max(row.figures["natural"][0] for row in found.table.rows)
    assert chosen.figures["natural"][0] == best
    written, trained = load_recipe(found.file), Run(chosen.runs[0]).recipe
    assert first_difference(written.model_copy(update={"name": trained.name}), trained) is None
    assert written.name == "digits-generalist-late-t-tuned"


def test_a_wish_that_nothing_meets_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no trial reaches natural at least 100"):
        tune(
            "digits-at", objectives=("natural", "linf"), trials=1, overrides=SETS, out=tmp_path,
            at_least={"natural": 100.0},
        )  # fmt: skip


def test_a_killed_search_takes_its_trial_up_again(tmp_path: Path) -> None:
    def search() -> Any:
        return tune("digits-at", objectives=("natural", "linf"), trials=2, overrides=SETS, out=tmp_path / "s")

    killed_at("step", 4, search, told="the steps of two trials")
    found = search()
    assert [row.missing for row in found.table.rows] == [{}, {}]
    assert len(list((tmp_path / "s" / "runs").iterdir())) == 2


def test_an_interrupted_search_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> Any:
        return tune("digits-at", objectives=("natural", "linf"), trials=1, overrides=SETS, out=tmp_path)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            search()
    assert [row.missing for row in search().table.rows] == [{}]


def test_nothing_finished_is_an_error_that_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise RunError("it diverged")

    monkeypatch.setattr(tuning, "train", failing)
    with pytest.raises(RunError, match="no trial of tune-digits-at-natural-linf was finished: it diverged"):
        tune("digits-at", objectives=("natural", "linf"), trials=2, overrides=SETS, out=tmp_path)


def test_a_budget_ends_a_search(tmp_path: Path) -> None:
    found = tune("digits-at", objectives=("natural", "mean"), budget_seconds=2.0, overrides=SETS, out=tmp_path)
    assert found.table.rows
