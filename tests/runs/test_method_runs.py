"""Methods that are more than a loss, in whole runs: what they carry is saved, what they need is trained first."""

import json

import numpy as np
import pytest
import torch

import generalist
from generalist import UserError, load_dataset, load_recipe
from generalist.data import Mixture, read_extra_split
from generalist.recipes.cost import passes_per_step
from generalist.runs.experiment import build, build_plan
from generalist.training.learner import Learner
from run_cases import different_models

TINY = ["data.limit=120", "model.width=4", "training.batch_size=40", "validation.images=20", "validation.steps=2",
        "training.epochs=3", "training.checkpoint_minutes=0"]  # fmt: skip


def tiny(method, *more):
    recipe = load_recipe(f"digits-{method}")
    attacked = [name for name, learner in recipe.learners.items() if "steps" in learner.objective.options]
    steps = [f"learners.{name}.objective.steps=2" for name in attacked]
    return load_recipe(f"digits-{method}", [*TINY, *steps, *more])


@pytest.fixture(scope="module")
def robust(tmp_path_factory):
    folder = tmp_path_factory.mktemp("needed")
    return {name: generalist.train(tiny(name), out=folder / name).folder for name in ("nt", "at", "at-l2")}


def needs(method, robust):
    if method == "hat":
        return [f"needs.standard={robust['nt']}"]
    if method == "rmc":
        ends = [f"needs.first={robust['at']}", f"needs.second={robust['at-l2']}"]
        return [*ends, "learners.norms.objective.points=3", "mixing.recalibrate_batches=1"]
    return ["learners.linf.objective.watch_every=2"] if method == "fast-at" else []


@pytest.mark.parametrize("method", ["ramp", "lbgat", "e-at", "fast-at", "at-awp", "hat", "rmc", "generalist-t-mart"])
def test_interrupted_in_the_middle_of_an_epoch_and_resumed_equals_the_whole_run(method, robust, tmp_path, monkeypatch):
    recipe = tiny(method, *needs(method, robust))
    whole = generalist.train(recipe, out=tmp_path / "whole")
    plain_step, left = Learner.step, 5 * len(recipe.learners) if "generalist" in method else 5

    def failing(self, *args, **options):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return plain_step(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "step", failing)
        with pytest.raises(KeyboardInterrupt):
            generalist.train(recipe, out=tmp_path / "cut")
    resumed = generalist.train(recipe, out=tmp_path / "cut", resume=True)
    assert different_models(whole, resumed, ("global", *recipe.learners)) == []


def test_what_is_needed_is_trained_first_and_taken_up_again(tmp_path):
    file = tmp_path / "quick.yaml"
    file.write_text("extends: digits-nt\ntraining: {epochs: 2}\n")
    recipe = tiny("hat", f"needs.standard={file}")
    run = generalist.train(recipe, out=tmp_path / "hat")
    before = generalist.Run(tmp_path / "hat" / "needs" / "standard")
    assert before.finished
    assert before.recipe.training.epochs == 2
    assert before.recipe.model == recipe.model
    assert before.recipe.data == recipe.data
    written = (before.folder / "models" / "global.safetensors").stat().st_mtime_ns
    (run.folder / "summary.json").unlink()
    generalist.train(recipe, out=run.folder, resume=True)
    assert (before.folder / "models" / "global.safetensors").stat().st_mtime_ns == written


def test_a_need_that_is_not_there_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="unknown recipe 'digits-nx'"):
        generalist.train(tiny("hat", "needs.standard=digits-nx"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"needs a trained network 'standard'.*give needs"):
        load_recipe("digits-at", ["learners.linf.objective.name=hat"])


def test_networks_of_another_kind_and_needs_in_a_circle_are_refused(robust, tmp_path):
    for method, sets in (("rmc", needs("rmc", robust)), ("hat", needs("hat", robust))):
        with pytest.raises(UserError, match=r"not of the run's own kind|size 8 was given, this run has 16"):
            generalist.train(tiny(method, *sets, "data.size=16", "model.width=6"), out=tmp_path / f"other-{method}")
    with pytest.raises(UserError, match="not of the run's own kind"):
        generalist.train(tiny("rmc", *needs("rmc", robust), "model.width=6"), out=tmp_path / "wider")
    circle = tmp_path / "circle.yaml"
    circle.write_text(f"extends: digits-hat\nneeds: {{standard: {circle}}}\n")
    with pytest.raises(UserError, match="in a circle"):
        generalist.train(tiny("hat", f"needs.standard={circle}"), out=tmp_path / "round")
    assert not (tmp_path / "round").exists()
    with pytest.raises(UserError, match="'stendard' that nothing here uses; what is used: standard"):
        tiny("hat", "needs.stendard=x")


def test_the_best_of_the_curve_is_kept(robust, tmp_path):
    run = generalist.train(tiny("rmc", *needs("rmc", robust)), out=tmp_path / "rmc")
    rows = [row for row in run.metrics if row["kind"] == "validation"]
    assert run.summary["selected"]["global"]["score"] >= max(row["models"]["global"]["score"] for row in rows[:-1])
    experiment = build(tiny("rmc", *needs("rmc", robust)))
    assert len(list(experiment.variants("global", experiment.state.global_model))) == 3


def test_a_learner_that_carries_something_past_a_reset_is_never_idle():
    recipe = tiny("generalist-d-norms", "training.epochs=24", "learners.l2.objective.name=lbgat")
    plan = build_plan(recipe, 3)
    assert plan.active_epochs("l2") == 24
    assert build_plan(tiny("generalist-d-norms", "training.epochs=24"), 3).active_epochs("l2") < 24


def test_a_renamed_objective_keeps_its_attack():
    recipe = load_recipe("digits-at", ["learners.linf.objective.name=trades"])
    options = recipe.learners["linf"].objective.options
    assert (str(options["threat"]), options["steps"], options["beta"]) == ("linf:3/20", 10, 6.0)
    assert (
        not load_recipe("digits-at", ["learners.linf.objective.name=natural"])
        .learners["linf"]
        .objective.options["label_smoothing"]
    )


def test_radii_by_the_multiple():
    learners = load_recipe("cifar10-resnet18-generalist-10").learners
    assert len(learners) == 10
    found = {name: str(row.objective.options["threat"]) for name, row in learners.items() if name != "natural"}
    assert found["linf-half"] == "linf:4/255"
    assert found["l2-double"] == "l2:256/255"
    assert str(learners["linf-half"].objective.options["step_size"]) == "1/255"
    assert [len(load_recipe(f"digits-generalist-{count}").learners) for count in (5, 7, 10)] == [5, 7, 10]


def test_authors_defaults_and_the_unified_setting():
    theirs, ours = (load_recipe(f"cifar10-{name}-trades") for name in ("resnet18", "unified"))
    assert str(theirs.learners["linf"].objective.options["step_size"]) == "7/1000"
    assert theirs.learners["linf"].schedule.name == "staircase"
    at = load_recipe("cifar10-unified-at")
    for method in ("trades", "fat", "iat", "rst", "score", "agr", "part", "mart", "at-awp", "hat", "lbgat"):
        recipe = load_recipe(f"cifar10-unified-{method}")
        assert (recipe.training, recipe.model, recipe.data) == (at.training, at.model, at.data)
        options, wanted = (r.learners["linf"].objective.options for r in (recipe, at))
        assert all(options[field] == wanted[field] for field in ("threat", "steps", "step_size")), method
        assert recipe.learners["linf"].optimizer == at.learners["linf"].optimizer
    assert ours.training.epochs == 120


@pytest.mark.parametrize(
    ("method", "passes"),
    [("nt", 1), ("at", 11), ("trades", 12.5), ("at-awp", 12), ("avg", 22), ("fast-at", 2), ("half", 12), ("agr", 12)],
)
def test_passes_of_a_step_are_counted(method, passes):
    (section,) = load_recipe(f"digits-{method}").learners.values()
    assert passes_per_step(section) == passes


# Extra data


def extra_file(tmp_path, count=30, **arrays):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.integers(0, 255, (count, 8, 8), dtype=np.uint8), "y": np.arange(count) % 10, **arrays}
    np.savez(tmp_path / "extra.npz", **{key: value for key, value in arrays.items() if value is not None})
    return tmp_path / "extra.npz"


def test_extra_images_come_last_marked_and_each_as_often(tmp_path):
    dataset = load_dataset("digits", limit=100)
    mixture = Mixture(dataset.train, read_extra_split(extra_file(tmp_path), dataset), 0.3)
    assert mixture.sizes(20) == (14, 6)
    assert mixture.steps(20) == 7
    seen = []
    for epoch in range(5):
        found = list(mixture.batches(batch_size=20, seed=0, epoch=epoch))
        assert len(found) == 7
        for batch in found:
            assert batch.x.shape == (20, 1, 8, 8)
            assert batch.extra.tolist() == [False] * 14 + [True] * 6
            seen += (batch.ids[batch.extra] - 100).tolist()
            assert torch.equal(batch.y[batch.extra], (batch.ids[batch.extra] - 100) % 10)
    counts = torch.bincount(torch.tensor(seen), minlength=30)
    assert counts.min() == counts.max() == 7  # 5 epochs × 7 steps × 6 of 30
    late = list(mixture.batches(batch_size=20, seed=0, epoch=3, start=4))
    whole = list(mixture.batches(batch_size=20, seed=0, epoch=3))[4:]
    assert all(torch.equal(a.x, b.x) and torch.equal(a.ids, b.ids) for a, b in zip(late, whole, strict=True))


def test_a_run_with_extra_images_whose_labels_a_network_gives(robust, tmp_path):
    file = extra_file(tmp_path, y=None)
    sets = [f"data.extra={{file: {file}, share: 0.25}}"]
    with pytest.raises(UserError, match="has no labels; add y, or give needs"):
        generalist.train(tiny("rst", *sets), out=tmp_path / "unlabelled")
    run = generalist.train(tiny("rst", *sets, f"needs.labels={robust['nt']}"), out=tmp_path / "run")
    assert json.loads((run.folder / "summary.json").read_text())["steps"] == 3 * (120 // 30)
    quick = tmp_path / "quick.yaml"
    quick.write_text("extends: digits-nt\ntraining: {epochs: 1}\n")
    labelled = generalist.train(tiny("rst", *sets, f"needs.labels={quick}"), out=tmp_path / "labelled")
    assert generalist.Run(labelled.folder / "needs" / "labels").recipe.data.extra is None


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.zeros((30, 9, 9), np.uint8)}, "must be alike"),
        ({"y": np.full(30, 12)}, "12"),
        ({"x": np.zeros((0, 8, 8), np.uint8), "y": np.zeros(0, np.int64)}, "has no images"),
        ({"x": None}, "needs x"),
    ],
)
def test_extra_data_that_does_not_fit_is_refused(arrays, said, tmp_path):
    file = extra_file(tmp_path, **arrays)
    with pytest.raises(UserError, match=said):
        generalist.train(tiny("rst", f"data.extra={{file: {file}}}"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
