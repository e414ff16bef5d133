"""Whole runs with learners that train part of the network, start late or end early."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import generalist
from generalist.core.errors import UserError
from generalist.models import build_model
from generalist.recipes.cost import Workload, cost_in_at, passes_per_step
from generalist.runs.doctor import outline
from generalist.runs.experiment import build
from generalist.training.learner import Learner
from run_cases import Quiet, different_models, fit_quietly, killed_at, same, stopped_after, weights

TINY = ["data.limit=110", "model.width=4", "training.batch_size=24", "validation.images=10", "validation.steps=1",
        "learners.linf.objective.steps=2", "mixing.decay=0.8"]  # fmt: skip
LATE, LATE_MODELS = "digits-generalist-late-d", ("global", "linf", "natural")
STEPS = 4
"""Of an epoch."""


def late(*more):
    return generalist.load_recipe(LATE, [*TINY, "training.epochs=5", "validation.every_epochs=2", *more])


def rich(*more):
    """Two partial learners that start together and share what they do not train, weights by depth, averages, resets."""
    return generalist.load_recipe("digits-generalist-t", [
        *TINY, "training.epochs=6", "validation.every_epochs=3", "learners.l2.objective.steps=2",
        "learners.linf.gamma=rest", "learners.linf.weight_averaging=true",
        "learners.natural.trains=[conv5, bn5, fc]", "learners.natural.starts=1/2",
        "learners.natural.weight_averaging=true", "learners.natural.gamma={at: [1/2, 1], values: [0, 0.3]}",
        "learners.l2.trains={last: 1/2}", "learners.l2.starts=1/2", "learners.l2.ends=5/6",
        "learners.l2.gamma={depth: [0, 1], at: [1/2, 1], values: [0, 0.6]}",
        "mixing.start=1/2", "mixing.every_epochs=2", "mixing.momentum=keep", "mixing.averages=keep",
        "mixing.batchnorm=recalibrate", "mixing.recalibrate_batches=2", *more,
    ])  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("partial")
    return {make: generalist.train(make(), out=folder / make.__name__) for make in (late, rich)}


class Watch(Quiet):
    """θ_g at the end of every epoch, before anything is handed back."""

    def __init__(self, experiment):
        self.experiment, self.seen = experiment, {}

    def epoch_ended(self, state):
        found = self.experiment.global_model().state_dict()
        self.seen[state.step // self.experiment.plan.steps_per_epoch] = {k: v.clone() for k, v in found.items()}


def watched(recipe):
    experiment = build(recipe)
    watch = Watch(experiment)
    fit_quietly(experiment, events=watch)
    return experiment, watch.seen


def test_a_late_learner_starts_from_the_global_model_and_the_one_before_it_becomes_it(undisturbed):
    run, (experiment, seen) = undisturbed[late], watched(late())
    assert experiment.plan.steps_per_epoch == STEPS
    assert run.models == list(LATE_MODELS)
    assert run.summary["live_epochs"] == {"linf": 4, "natural": 1}
    handed = seen[4]
    assert same(weights(run, "linf"), handed)
    natural, trained = weights(run, "natural"), set(experiment.state.learners["natural"].own)
    assert {key for key in handed if not torch.equal(natural[key], handed[key])} == trained
    found = weights(run)
    for key, tensor in handed.items():
        if not tensor.is_floating_point():
            assert torch.equal(found[key], tensor), key  # of linf, which weighs most
        elif key in trained:
            assert not torch.equal(found[key], tensor), key
        else:
            torch.testing.assert_close(found[key], tensor, atol=1e-6, rtol=0)


def test_the_journal_says_who_was_trained_when(undisturbed):
    rows = [row for row in undisturbed[late].metrics if row["kind"] == "epoch"]
    assert [row["idle"] for row in rows] == [["natural"]] * 4 + [["linf"]]
    assert [row["redistributed"] for row in rows] == [False, False, False, True, False]
    last = [row for row in undisturbed[late].metrics if row["kind"] == "validation"][-1]
    assert list(last["models"]) == list(LATE_MODELS)


def test_the_schedule_of_a_learner_runs_over_its_own_epochs():
    recipe = late("learners.natural.schedule={name: piecewise, at: [0, 1], values: [1, 0]}", "training.epochs=10")
    natural = build(recipe).state.learners["natural"]
    assert [natural.schedule(Fraction(n, 20)) for n in (0, 16, 18, 20)] == [1, 1, 0.5, 0]


MOMENTS = [(late, (2, 15, 17)), (late, (16,)), (rich, (3, 11, 13, 15, 19, 21)), (rich, (12, 16, 20))]


@pytest.mark.parametrize(("make", "steps"), MOMENTS)
def test_interrupted_around_every_start_end_and_reset_it_gives_the_same_bits(make, steps, undisturbed, tmp_path):
    for step in steps:
        stopped_after(make(), tmp_path / "run", step, resume=(tmp_path / "run").exists())
    run = generalist.train(make(), out=tmp_path / "run", resume=True)
    assert different_models(undisturbed[make], run, undisturbed[make].models) == []
    assert run.metrics[-1]["models"] == undisturbed[make].metrics[-1]["models"]


def test_killed_right_after_a_late_learner_was_started_it_goes_on_to_the_same_bits(undisturbed, tmp_path):
    out = tmp_path / "run"
    killed_at("redistribution", 1, lambda: generalist.train(late(), out=out), told="the start")
    assert max(path.stem for path in (out / "checkpoints").glob("*.json")) == "step-000000012"
    assert different_models(undisturbed[late], generalist.train(late(), out=out, resume=True), LATE_MODELS) == []


def test_what_an_existing_robust_model_has_done_is_not_done_again(tmp_path, monkeypatch):
    at = generalist.train(
        generalist.load_recipe("digits-at", [*TINY, "training.epochs=1", "select=last"]), out=tmp_path / "at"
    )
    recipe = late(f"init.from={at.folder}")
    assert recipe.init.epoch == 4
    assert generalist.load_recipe(LATE, ["training.epochs=5", f"init.from={at.folder}", "init.epoch=2"]).init.epoch == 2
    stepped = []
    step = Learner.step
    monkeypatch.setattr(Learner, "step", lambda self, *a, **k: stepped.append(self.name) or step(self, *a, **k))
    run = generalist.train(recipe, out=tmp_path / "run")
    assert stepped == ["natural"] * STEPS
    assert same(weights(run, "linf"), weights(at))
    assert run.summary["live_epochs"] == {"linf": 0, "natural": 1}
    assert [row["epoch"] for row in run.metrics if row["kind"] == "epoch"] == [5]
    assert run.recipe == recipe
    facts = outline(build(recipe))
    assert facts["cost_in_at"] == pytest.approx((1 / 2 + 1 / 6) / 11 / 5, abs=0.01)
    assert facts["learners"]["linf"]["live_epochs"] == 0


SOMEBODYS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4 * 64, num_classes)
    def forward(self, x):
        return self.head(self.stem(x).flatten(1))
"""


def test_somebody_elses_checkpoint_and_data_become_adjustable(tmp_path, monkeypatch):
    """Nothing is trained adversarially, the file is one end of the dial, and its stem is in all mixtures."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "somebodys_net.py").write_text(SOMEBODYS)
    theirs = build_model("somebodys_net:Net", classes=10).network.state_dict()
    torch.save(theirs, "theirs.pt")
    x, y = torch.rand(120, 1, 8, 8).numpy(), (torch.arange(120) % 10).numpy()
    np.savez("own.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    stepped = []
    step = Learner.step
    monkeypatch.setattr(Learner, "step", lambda self, *a, **k: stepped.append(self.name) or step(self, *a, **k))
    run = generalist.train(LATE, out="run", overrides={
        "model.name": "somebodys_net:Net", "data": {"name": "npz", "root": "own.npz"}, "training.batch_size": 24,
        "init.from": "theirs.pt", "learners.natural.trains": ["head"], "validation.steps": 1,
    })  # fmt: skip
    assert set(stepped) == {"natural"}
    dial = generalist.dial(run, points=3, beyond=1.5)
    ends = {name: load_file(Path("run/models", f"{name}.safetensors")) for name in ("linf", "natural")}
    mixed = dial.model({"linf": -0.5, "natural": 1.5}).network.state_dict()
    for name, value in theirs.items():
        linf, natural = (ends[end][f"network.{name}"] for end in ("linf", "natural"))
        assert torch.equal(linf, value)
        if name.startswith("head"):
            assert not torch.equal(natural, value)
            assert torch.allclose(mixed[name], 1.5 * natural - 0.5 * value, atol=1e-6)
        elif "running" not in name and "batches" not in name:
            assert torch.equal(natural, value)
            assert torch.equal(mixed[name], value)


@pytest.mark.parametrize("make", [late, rich])
def test_idle_learners_cannot_be_told_from_the_global_model(make):
    """Whoever is trained though it cannot matter makes no difference to a bit of it."""
    resets = ("mixing.momentum=reset", "mixing.averages=reset", "mixing.batchnorm=mix")
    more = () if make is late else ("learners.natural.gamma={at: [2/3, 1], values: [0, 0.3]}", *resets)
    found = [watched(make(*more, f"mixing.train_idle={idle}")) for idle in ("false", "true")]
    plans = [experiment.plan for experiment, _ in found]
    if make is rich:
        assert plans[0].active_epochs("natural") < plans[1].active_epochs("natural")
    assert all(same(found[0][1][epoch], found[1][1][epoch]) for epoch in found[0][1])


def test_a_learner_that_starts_carries_nothing_from_before_whatever_a_reset_keeps():
    """With averages and momentum kept, the running average of a learner that starts would be the untrained network."""
    experiment = build(rich())
    seen = {}

    class Started(Watch):
        def tick(self, state):
            if state.step == 3 * STEPS:
                seen.update({name: {k: v.clone() for k, v in a.mixed.items()} for name, a in state.learners.items()})

    watch = Started(experiment)
    fit_quietly(experiment, events=watch)
    for name in ("natural", "l2"):
        handed = {key: watch.seen[3][key] for key in seen[name]}
        assert same(seen[name], handed), name
    assert not same(seen["linf"], watch.seen[3])


def test_what_is_not_trained_is_shared_by_learners_of_the_same_window_and_copied_for_others():
    experiment = build(rich("learners.l2.ends=1"))
    linf, natural, l2 = experiment.state.learners.values()
    both = set(natural.frozen_tree) & set(l2.frozen_tree)
    assert both == set(l2.frozen_tree)
    assert all(natural.tree[key].data_ptr() == l2.tree[key].data_ptr() for key in both)
    assert all(natural.tree[key].data_ptr() != l2.tree[key].data_ptr() for key in set(natural.tree) - both)
    others = {tensor.data_ptr() for a in (linf,) for tensor in a.tree.values()}
    others |= {tensor.data_ptr() for tensor in experiment.state.global_model.state_dict().values()}
    assert others.isdisjoint(tensor.data_ptr() for tensor in (*natural.tree.values(), *l2.tree.values()))
    apart = build(rich()).state.learners
    assert (
        apart["natural"].tree["network.conv1.weight"].data_ptr() != apart["l2"].tree["network.conv1.weight"].data_ptr()
    )


def test_a_checkpoint_has_what_is_frozen_once_and_no_state_of_it(tmp_path):
    experiment = build(rich("learners.l2.ends=1"))
    fit_quietly(experiment)
    experiment.state.save(tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    keys = set(load_file(file))
    frozen = set(experiment.state.learners["natural"].frozen_tree)
    assert {key for key in keys if key.startswith("frozen/")} == {f"frozen/natural/{key}" for key in frozen}
    for kind in ("model", "average", "optimizer/momentum_buffer"):
        assert not any(f"learner/natural/{kind}/{key}" in keys for key in frozen)
    assert not any(
        key.startswith("mix") and "/share/natural/" in key and key.rpartition("/")[2] in frozen for key in keys
    )
    sizes = {}
    for make in (
        lambda: rich("learners.l2.ends=1"),
        lambda: rich("learners.natural.trains=null", "learners.l2.trains=null"),
    ):
        state = fit_quietly(build(make())).state
        sizes[make] = sum(t.numel() for a in state.learners.values() for t in a.save()[0].values())
    small, large = sizes.values()
    assert small < 0.85 * large


def test_a_checkpoint_of_other_modules_is_refused(tmp_path):
    experiment = build(late())
    fit_quietly(experiment)
    experiment.state.save(tmp_path)
    other = build(late("learners.natural.trains=[fc]"))
    with pytest.raises(UserError, match="does not fit this run"):
        other.state.load(tmp_path)


def test_a_saved_learner_is_the_average_that_is_mixed(tmp_path):
    recipe = late("learners.natural.weight_averaging=true")
    run = generalist.train(recipe, out=tmp_path / "run")
    experiment, _ = watched(recipe)
    natural = experiment.state.learners["natural"]
    saved = weights(run, "natural")
    assert same({key: saved[key] for key in natural.average}, natural.average)
    assert not same({key: saved[key] for key in natural.own}, natural.own)
    assert same({key: saved[key] for key in natural.frozen_tree}, natural.frozen_tree)


def test_the_work_of_a_partial_learner_is_what_its_backward_pass_is():
    recipe = late("training.epochs=10", "validation.every_epochs=10", "learners.linf.objective.steps=10")
    experiment = build(recipe)
    assert experiment.depths == {"linf": 1, "natural": pytest.approx(1 / 3)}
    natural = recipe.learners["natural"]
    assert passes_per_step(natural) == 1
    assert passes_per_step(natural, depth=1 / 3) == pytest.approx(1 / 2 + 1 / 6)
    assert passes_per_step(recipe.learners["linf"], depth=1 / 3) == pytest.approx(10 + 1 / 2 + 1 / 6)
    cost = cost_in_at(recipe, experiment.plan, experiment.depths)
    assert cost == pytest.approx((8 * 11 + 2 * 2 / 3) / 110)
    work = Workload.of(recipe, experiment.plan, validated=0, ranks=1, depths=experiment.depths)
    assert work.share(8 * STEPS) == pytest.approx(8 * 11 / (8 * 11 + 2 * 2 / 3))
    judged = Workload.of(recipe, experiment.plan, validated=10**6, ranks=1)  # global, natural, and linf that has ended
    once = judged.until[-1] - judged.until[-2] - STEPS
    assert once == pytest.approx(3 * 10**6 / 24 * (0.5 + 2 * 1.5))


def test_the_outline_says_what_is_trained_and_when():
    facts = outline(build(late()), ranks=2)
    assert facts["learners"]["linf"]["trains"] is None
    assert facts["learners"]["linf"]["epochs"] == [1, 4]
    assert facts["learners"]["natural"]["epochs"] == [5, 5]
    trains = facts["learners"]["natural"]["trains"]
    assert trains["modules"] == "conv5, bn5, fc"
    model = build(late()).state.learners["natural"].model
    assert trains["parameters"] == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert facts["resets_after_epochs"] == [4]
    assert [phase["ranks"] for phase in facts["placement"]] == [{"linf": [0, 1]}, {"natural": [0, 1]}]
    json.dumps(facts)


@pytest.mark.parametrize("epochs", [*range(2, 14), 24])
def test_a_late_recipe_of_any_length_can_be_planned(epochs):
    recipe = late(f"training.epochs={epochs}")
    assert build(recipe).plan.active_epochs("natural") == epochs - epochs * 4 // 5
    assert recipe.window("linf")[1] == recipe.window("natural")[0] == epochs * 4 // 5
