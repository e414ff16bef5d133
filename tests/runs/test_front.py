"""Fronts read from run folders, from dials and from records: what is grouped, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import generalist
from compare_cases import record, write_run
from generalist import UserError
from generalist.core.files import sealed
from generalist.recipes.catalogue import load_recipe
from generalist.runs.folder import Run
from generalist.runs.front import conditions, judged_run

BETA = "learners.linf.objective.beta"
LINF = ("linf:8/255",)


def made(folder: Path, method: str, natural: float, robust: float, *changes: str, **options: Any) -> Path:
    """A run of cifar10-resnet18 that was never trained, with a record of pgd20."""
    recipe = load_recipe(f"cifar10-resnet18-{method}", ["select=last", *changes])
    found = record(natural, robust, suite="pgd20", threats=LINF, **options)
    return write_run(folder, recipe, found)


@pytest.fixture
def swept(tmp_path: Path) -> list[Path]:
    """AT, half-half and TRADES, the last two swept, with two seeds."""
    found = []
    for seed, shift in ((0, 0), (1, 1)):
        own = f"seed={seed}"
        found += [
            made(tmp_path / f"at-s{seed}", "at", 80 + shift, 50, own),
            made(tmp_path / f"half50-s{seed}", "half", 82 + shift, 48, own),
            made(tmp_path / f"half25-s{seed}", "half", 88 + shift, 42, own, f"{BETA}=0.25"),
            made(tmp_path / f"trades3-s{seed}", "trades", 83 + shift, 49, own, f"{BETA}=3"),
            made(tmp_path / f"trades1-s{seed}", "trades", 87 + shift, 45, own, f"{BETA}=1"),
        ]
    return found


def test_swept_runs_make_one_front_and_seeds_are_replicates(swept: list[Path]) -> None:
    found = generalist.fronts(swept, baselines=["half", "trades"])
    assert found.names == ["at", "half", "trades"]
    assert found.seeds == [0, 1]
    half = found.of("half")
    assert [[point.name for point in front.points] for front in half] == [["beta=0.5", "beta=0.25"]] * 2
    assert [point.pair for point in half[0].points] == [(82, 48), (88, 42)]
    assert [point.name for point in found.of("at")[0].points] == ["at"]
    assert (found.data, found.split, found.suite, found.threat) == ("cifar10", "test", "pgd20", "linf:8/255")
    assert generalist.fronts(swept).levels == (84.8, 85.5, 86.2)  # 84 to 87 are shared by all, with both seeds
    assert found.levels == (85, 86, 87)  # 83 to 88 by the baselines taken together, 84 to 89 with the other seed
    half_row, trades = found.rows[1], found.rows[2]
    assert half_row.gaps[1].mean == pytest.approx(-2, abs=1e-4)  # seed 0: 44 and 46; seed 1: 45 and 47
    assert half_row.gaps[1].sd == pytest.approx(0, abs=1e-4)
    assert trades.chosen_by == ("last",)
    assert found.notes == ()


def test_groups_by_hand(swept: list[Path], tmp_path: Path) -> None:
    found = generalist.fronts(swept, groups={"cross-entropy": ["at-*", "half*"], "one": [tmp_path / "trades3-s0"]})
    assert found.names == ["cross-entropy", "one", "trades"]
    first = found.of("cross-entropy")[0]
    assert [point.name for point in first.points] == ["at", "half beta=0.5", "half beta=0.25"]
    alone = generalist.fronts([], groups={"a": [swept[0], swept[1]], "b": [swept[2]]})
    assert [(front.name, len(front.points)) for front in alone.fronts] == [("a", 2), ("b", 1)]
    with pytest.raises(UserError, match=r"group a: no run is called or lies at 'nothing-\*'"):
        generalist.fronts(swept, groups={"a": ["nothing-*"]})


def test_the_same_recipe_and_seed_twice_is_refused(tmp_path: Path) -> None:
    both = [made(tmp_path / name, "at", 80, 50) for name in ("a", "b")]
    with pytest.raises(UserError, match=r"a and .*b are the same recipe with the same seed"):
        generalist.fronts(both)
    with pytest.raises(UserError, match="is given twice"):
        generalist.fronts([both[0], both[0]])


def test_what_is_no_knob_of_a_method_is_said(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / "a", "at", 80, 50),
        made(tmp_path / "b", "at", 82, 45, "training.epochs=60"),
        made(tmp_path / "c", "at", 84, 40, "training.epochs=30", "select=test"),
    ]
    found = generalist.fronts(runs)
    assert any("runs of at differ in training.epochs" in note for note in found.notes)
    assert any("selected on the test split" in note and "(c)" in note for note in found.notes)
    assert found.rows[0].chosen_by == ("last", "test (!)")


def test_runs_that_were_not_evaluated_alike_are_refused(tmp_path: Path) -> None:
    first = made(tmp_path / "a", "at", 80, 50)
    with pytest.raises(UserError, match="different numbers of images: 100 and 50"):
        generalist.fronts([first, made(tmp_path / "b", "half", 82, 48, images=50)])
    with pytest.raises(UserError, match="no record of suite pgd20; make it with: generalist eval"):
        generalist.fronts([first, write_run(tmp_path / "c", "cifar10-resnet18-half")])
    with pytest.raises(UserError, match="unknown suite 'quik'"):
        generalist.fronts([first], suite="quik")
    with pytest.raises(UserError, match="unknown split 'train'"):
        generalist.fronts([first], split="train")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="nothing to compare"):
        generalist.fronts([])
    with pytest.raises(UserError, match="keeps no dial"):
        generalist.fronts([first], split="validation")


def test_the_strongest_suite_that_all_have(tmp_path: Path) -> None:
    records = [record(80, 50, suite=suite, threats=LINF) for suite in ("pgd20", "quick")]
    at = write_run(tmp_path / "at", "cifar10-resnet18-at", *records)
    half = made(tmp_path / "half", "half", 82, 48)
    assert generalist.fronts([at, half]).suite == "pgd20"
    assert generalist.fronts([at]).suite == "quick"


def test_robust_is_what_survives_all_of_a_suite(tmp_path: Path) -> None:
    """As for a dial, and not one column of it."""
    found = record(80, 50, suite="paper", threats=LINF)
    rows = found["per_image"][LINF[0]]
    rows["MIM"] = [0] * 10 + rows["MIM"][10:]
    found["accuracy"][LINF[0]]["MIM"] = 40.0
    run = write_run(tmp_path / "at", "cifar10-resnet18-at", found)
    (front,) = generalist.fronts([run]).fronts
    assert front.points[0].pair == (80, 40)


def test_records_of_fronts_add_up_with_runs(swept: list[Path], tmp_path: Path) -> None:
    run = Run(swept[5])
    kept = run.record("pgd20")
    model = judged_run(run, {"pgd20": kept}, name="at-new", group="at")
    alike = conditions(kept, seed=2, setting="cifar10-resnet18")
    replace(alike, models=(model,)).write(tmp_path / "cifar10-s2.json")
    found = generalist.fronts([*swept, tmp_path / "cifar10-s2.json"])
    at = {front.seed: front.points[0].pair for front in found.of("at")}
    assert list(at.items()) == [(0, (80, 50)), (1, (81, 50)), (2, (81, 50))]
    renamed = generalist.fronts([tmp_path / "cifar10-s2.json"], groups={"mine": ["at-n*"]})
    assert renamed.names == ["mine"]
    with pytest.raises(UserError, match="has figures of the test split"):
        generalist.fronts([tmp_path / "cifar10-s2.json"], split="validation")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match="neither a run folder nor a record of fronts"):
        generalist.fronts([tmp_path / "other.json"])


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run, Run]:
    """A late Generalist with a dial beside AT, two points of it exported, and AT; all on digits."""
    folder = tmp_path_factory.mktemp("late")
    small = {
        "training.epochs": 3, "data.limit": 120, "model.width": 2, "validation.images": 20, "validation.steps": 2,
        "validation.threats": ["linf:1/10"],
    }  # fmt: skip
    run = generalist.train("digits-generalist-late-half", out=folder / "late", overrides=small)
    at = generalist.train("digits-at", out=folder / "at", overrides=small)
    dial = generalist.dial(run, points=4, images=20, beside=at)
    exported = [dial.export(folder / f"e{i}", point)[0] for i, point in enumerate(dial.points[1:3])]
    generalist.evaluate(at)
    return run, at, *exported  # type: ignore[return-value]


def test_exported_points_of_one_dial_are_a_front_of_one_training(late: tuple[Run, ...]) -> None:
    run, at, *exported = late
    found = generalist.fronts([at, *exported])
    assert found.names == ["at", "generalist-late-half-dial"]
    (front,) = found.of("generalist-late-half-dial")
    names = [point.name for point in front.points]
    assert names == [one.summary["dial"]["mixture"] for one in exported]
    assert len({point.training for point in front.points}) == 1
    assert front.cost == run.summary["cost_in_at"]
    assert found.rows[1].chosen_by == ("dial on validation (by hand)",)


def test_dials_are_compared_on_validation_alone(late: tuple[Run, ...]) -> None:
    run, _, *_ = late
    found = generalist.fronts([run], split="validation", baselines=["at"])
    assert found.names == ["generalist-late-half, dial", "at"]
    assert (found.split, found.images, found.data) == ("validation", 20, "digits")
    kept = run.dial_record
    assert kept is not None
    pairs = [point.pair for point in found.of("generalist-late-half, dial")[0].points]
    assert [(round(a, 2), round(b, 2)) for a, b in pairs] == [
        (point["natural"], point["robust"]["linf:1/10"]) for point in kept["points"]
    ]
    assert "judged by the images that choose among them" in str(found)
    by_hand = generalist.fronts([run], split="validation", groups={"mine": [run.folder]})
    assert [(front.name, len(front.points)) for front in by_hand.fronts] == [("mine", 4), ("at", 1)]
    with pytest.raises(UserError, match="no record of suite"):
        generalist.fronts([run])  # on test nothing of it was evaluated


def test_a_run_beside_two_dials_counts_once(late: tuple[Run, ...], tmp_path: Path) -> None:
    run, *_ = late
    twin = tmp_path / "twin"
    (twin / "dial").mkdir(parents=True)
    text = run.recipe_file.read_text().replace("generalist-late-half\n", "generalist-late-half-twin\n", 1)
    (twin / "recipe.yaml").write_text(text.partition("\n")[2])
    (twin / "dial" / "last.json").write_text(run.dial_record_file.read_text())
    found = generalist.fronts([run, twin], split="validation")
    assert [(front.name, len(front.points)) for front in found.fronts] == [
        ("generalist-late-half, dial", 4), ("at", 1), ("generalist-late-half-twin, dial", 4)
    ]  # fmt: skip


def test_a_dial_of_an_earlier_version_is_refused(late: tuple[Run, ...], tmp_path: Path) -> None:
    run, *_ = late
    old = json.loads(run.dial_record_file.read_text())
    old = {key: value for key, value in old.items() if key not in ("judged", "digest")}
    (tmp_path / "old" / "dial").mkdir(parents=True)
    (tmp_path / "old" / "recipe.yaml").write_text(run.recipe_file.read_text())
    (tmp_path / "old" / "dial" / "last.json").write_text(json.dumps(sealed(old)))
    with pytest.raises(UserError, match="of an earlier version; dial it again"):
        generalist.fronts([tmp_path / "old"], split="validation")
