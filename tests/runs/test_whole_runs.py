"""What a whole run promises: the same result however it was interrupted, and no work that cannot matter."""

import json
import os
import resource
import signal
import subprocess
import sys
from functools import partial
from itertools import pairwise

import pytest
import torch

import generalist
from generalist.core.errors import RunError, UserError
from generalist.recipes.cost import Workload, cost_in_at
from generalist.report.console import Silent
from generalist.runs.experiment import build
from run_cases import (
    Quiet,
    different_models,
    exit_code,
    fit_quietly,
    forked,
    forked_command,
    killed_at,
    same,
    stopped_after,
    weights,
)  # fmt: skip

TINY = ["data.limit=160", "model.width=4", "training.batch_size=32", "validation.images=20", "validation.steps=2",
        "learners.linf.objective.steps=2"]  # fmt: skip
T = [*TINY, "learners.l2.objective.steps=2", "training.epochs=6", "mixing.every_epochs=1", "validation.every_epochs=3"]


def tiny(name="digits-generalist-t", *more):
    return generalist.load_recipe(name, [*(T if "generalist-t" in name else [*TINY, "training.epochs=6"]), *more])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return generalist.train(tiny(), out=tmp_path_factory.mktemp("runs") / "undisturbed")


def test_the_same_recipe_gives_the_same_bits(undisturbed, tmp_path):
    again = generalist.train(tiny(), out=tmp_path / "again")
    assert different_models(undisturbed, again) == []
    other = generalist.train(tiny("digits-generalist-t", "seed=1"), out=tmp_path / "other")
    assert "global" in different_models(undisturbed, other)


def test_the_journal_says_when_learners_were_redistributed(undisturbed):
    epochs = [record for record in undisturbed.metrics if record["kind"] == "epoch"]
    plan = build(undisturbed.recipe).plan
    assert [row["redistributed"] for row in epochs] == [plan.redistributes_in(row["epoch"]) for row in epochs]
    assert any(row["redistributed"] for row in epochs)


def test_the_share_of_the_work_counts_learners_that_start_later():
    recipe = generalist.load_recipe("digits-generalist-t", ["training.epochs=24", "validation.every_epochs=24"])
    plan = build(recipe).plan
    work = Workload.of(recipe, plan, validated=0, ranks=1)
    shares = [work.share(step) for step in range(plan.steps + 1)]
    assert (shares[0], shares[-1]) == (0, 1)
    assert all(b > a for a, b in pairwise(shares))
    # linf alone (11 passes a step) for 16 epochs, then with natural (1) and l2 (11)
    assert work.share(16 * plan.steps_per_epoch) == pytest.approx(16 * 11 / (24 * 11 + 8 * 12))
    spread = Workload.of(recipe, plan, validated=0, ranks=3)  # linf on all three, then each learner on its own
    assert spread.share(16 * plan.steps_per_epoch) == pytest.approx((16 / 3) / (16 / 3 + 8))
    judged = Workload.of(recipe, plan, validated=10**6, ranks=1)
    assert judged.share(23 * plan.steps_per_epoch) < 0.1


def arguments(out, *more):
    sets = [part for override in T for part in ("--set", override)]
    return ["generalist", "train", "digits-generalist-t", *sets, "--out", str(out), *more]


def python(script, *argv):
    """`python -c script` with these arguments; its coverage is not measured, for that writes files."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    command = [sys.executable, "-c", f"import sys; sys.argv = sys.argv[1:]\n{script}", *argv]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


MOMENTS = {
    "a step": ("step", 7),
    "a checkpoint that is written but not in place": ("checkpoints", 5),
    "a model that is written but not in place": ("models", 3),
    "a redistribution": ("redistribution", 1),
    "a step of the last phase": ("step", 11),
}


def test_killed_at_five_moments_and_resumed_equals_the_uninterrupted_run(undisturbed, tmp_path):
    out, often = tmp_path / "killed", tiny("digits-generalist-t", "training.checkpoint_minutes=0")
    reached = []
    for moment, (what, occasion) in MOMENTS.items():
        killed_at(what, occasion, lambda: generalist.train(often, out=out, resume=True), told=moment)
        reached.append(max(int(path.stem.split("-")[1]) for path in (out / "checkpoints").glob("*.json")))
    assert reached == sorted(set(reached))  # each of them went on from where the one before was killed
    assert 0 < reached[0] < reached[-1] < 30
    run = generalist.train(tiny(), out=out, resume=True)
    assert different_models(undisturbed, run) == []
    ours, theirs = (
        [{k: v for k, v in record.items() if k != "seconds"} for record in generalist.Run(folder).metrics]
        for folder in (undisturbed.folder, out)
    )
    assert ours == theirs


SIGNALLED = """
import os
from generalist.training.learner import Learner
step, left = Learner.step, 7
def signalled(*args, **options):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    return step(*args, **options)
Learner.step = signalled
"""
MAIN = "from generalist.__main__ import main\nmain()\n"


def stopped_well(out, said):
    assert "--resume" in said
    assert "Traceback" not in said
    assert not (out / "summary.json").exists()
    assert (out / "checkpoints" / "step-000000007.json").is_file()


def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(undisturbed, tmp_path, monkeypatch):
    out, log = tmp_path / "stopped", tmp_path / "log"
    monkeypatch.setenv("SIGNAL", str(int(signal.SIGTERM)))
    done = python(SIGNALLED + MAIN, *arguments(out))
    assert done.returncode == 143, done.stderr
    stopped_well(out, done.stderr)
    program, *again = done.stderr.split("go on with: ")[1].split()
    assert program == "generalist"
    assert exit_code(forked_command(again, log)) == 0, log.read_text()
    assert same(weights(undisturbed), weights(out))


def test_so_does_an_interrupt(tmp_path):
    out, log = tmp_path / "stopped", tmp_path / "log"
    child = forked_command(arguments(out)[1:], log, first=lambda: exec(SIGNALLED, {}), SIGNAL=str(int(signal.SIGINT)))
    assert exit_code(child) == 130, log.read_text()
    stopped_well(out, log.read_text())


def test_a_second_process_on_the_same_folder_is_refused(tmp_path):
    out = tmp_path / "busy"

    class Waiting(Silent):
        """Says that the run has begun, and goes no further."""

        def advance(self, done, total, *, share=None):
            os.write(begun, b"!")
            signal.pause()

    began, begun = os.pipe()
    child = forked(lambda: generalist.train(tiny(), out=out, reporter=Waiting()))
    os.close(begun)
    try:
        assert os.read(began, 1) == b"!", "the first run ended before its first step"
        with pytest.raises(UserError, match=f"in use by process {child}"):
            generalist.train(tiny(), out=out, resume=True)
    finally:
        os.close(began)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_broken_checkpoint_is_named_and_the_one_before_is_used(undisturbed, tmp_path):
    out = tmp_path / "broken"
    stopped_after(tiny(), out, step=18)
    newest = sorted((out / "checkpoints").glob("*.safetensors"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match=newest.stem):
        generalist.train(tiny(), out=out, resume=True)
    assert same(weights(undisturbed.folder), weights(out))


def test_a_broken_checkpoint_with_none_before_it_is_an_error(tmp_path):
    out = tmp_path / "broken"
    stopped_after(tiny(), out, step=3)
    for path in (out / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"step-\d+ is corrupt"):
        generalist.train(tiny(), out=out, resume=True)


def test_a_full_disk_leaves_the_last_good_checkpoint_whole(undisturbed, tmp_path):
    out = tmp_path / "full"
    stopped_after(tiny(), out, step=7)
    before = {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()}
    size = max(len(content) for content in before.values())
    log, most = tmp_path / "log", (size // 2, size // 2)
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, most)
    assert exit_code(forked_command(arguments(out, "--resume")[1:], log, first=full)) == 1, log.read_text()
    assert "could not write" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert {path.name: path.read_bytes() for path in (out / "checkpoints").iterdir()} == before
    generalist.train(tiny(), out=out, resume=True)
    assert same(weights(undisturbed.folder), weights(out))


def test_divergence_stops_after_a_bounded_number_of_bad_steps_and_names_the_learner(tmp_path):
    recipe = tiny(
        "digits-generalist-t", "learners.natural.optimizer.lr=1e30", "mixing.train_idle=true", "training.bad_steps=3"
    )
    with pytest.raises(RunError, match="'natural' diverged: 3 steps in a row"):
        generalist.train(recipe, out=tmp_path / "diverged")
    recipe = tiny("digits-at", "training.bad_steps=3", "training.checkpoint_minutes=0")
    experiment = build(recipe)
    poisoned = list(experiment.feed(0))[:12]
    for batch in poisoned[6:]:
        batch.x.fill_(float("nan"))
    state = experiment.state
    with pytest.raises(RunError, match="'linf'"):
        fit_quietly(
            experiment,
            events=Saving(),
            feed=lambda _: iter(poisoned),
            checkpoints=tmp_path / "checkpoints",
            bad_steps=3,
        )
    assert state.step == 8
    assert all(torch.isfinite(tensor).all() for tensor in state.learners["linf"].tree.values())
    assert all(torch.isfinite(tensor).all() for tensor in state.materialise_global_().state_dict().values())
    assert build(recipe).state.load(tmp_path / "checkpoints")


class Saving(Quiet):
    def save_due(self, state):
        return True


class TestIdleLearners:
    """With everything replaced at a reset, learners without weight need not be trained."""

    PLAN = ("training.epochs=12", "mixing.start=2/3", "mixing.every_epochs=4")

    def train(self, out, *more):
        return generalist.train(tiny("digits-generalist-t", *self.PLAN, *more), out=out)

    @pytest.mark.parametrize(
        "more", [(), ("learners.natural.weight_averaging=true", "learners.l2.weight_averaging=true")]
    )
    def test_the_global_model_is_the_same_bit_for_bit(self, tmp_path, more):
        """And the learners after the last reset, which replaces all that they had learned before."""
        skipped = self.train(tmp_path / "skipped", "select=last", *more)
        trained = self.train(tmp_path / "trained", "select=last", "mixing.train_idle=true", *more)
        assert skipped.summary["live_epochs"] == {"linf": 12, "natural": 4, "l2": 4}
        assert trained.summary["live_epochs"] == {"linf": 12, "natural": 12, "l2": 12}
        assert different_models(skipped, trained) == []
        last = [record["models"]["global"] for record in skipped.metrics if record["kind"] == "validation"]
        assert last == [record["models"]["global"] for record in trained.metrics if record["kind"] == "validation"]

    @pytest.mark.parametrize("keeps", ["mixing.momentum=keep", "mixing.averages=keep"])
    def test_what_a_reset_keeps_must_be_trained(self, keeps):
        recipe = tiny("digits-generalist-t", *self.PLAN, keeps, "learners.natural.weight_averaging=true")
        assert build(recipe).plan.active_epochs("natural") == 12

    @pytest.mark.parametrize(
        ("method", "cost"),
        [("generalist-t", 1 + (11 + 1) / 33), ("generalist-d-norms", 4 / 3), ("generalist-d-natural", 1 + 1 / 33)],
    )
    def test_the_passes_made_are_the_predicted_share_of_an_at_run(self, method, cost):
        """Forward passes counted on the models themselves, at the printed schedule over 24 short epochs."""
        recipe = generalist.load_recipe(
            f"digits-{method}",
            ["training.epochs=24", "data.limit=64", "model.width=2", "training.batch_size=32", "mixing.every_epochs=1"],
        )
        assert generalist.load_recipe(f"cifar10-resnet18-{method}").mixing.start * 120 == 75
        experiment = build(recipe)
        counts = dict.fromkeys(recipe.learners, 0)
        for name, learner in experiment.state.learners.items():

            def count(*_, name=name):
                counts[name] += 1

            learner.model.register_forward_hook(count)
        fit_quietly(experiment)
        at = 11 * experiment.plan.steps
        assert sum(counts.values()) / at == pytest.approx(cost, abs=1e-9)
        assert cost_in_at(recipe, experiment.plan) == pytest.approx(cost)


def test_one_learner_is_a_generalist_too_and_is_reported_raw_and_averaged(tmp_path):
    """Its global model is its plain EMA."""
    recipe = tiny("digits-at", "select=last")
    run = generalist.train(recipe, out=tmp_path / "at")
    assert run.models == ["global", "linf"]
    final = [record for record in run.metrics if record["kind"] == "validation"][-1]
    assert set(final["models"]) == {"global", "linf"}
    experiment = build(recipe)
    ema = {key: value.clone() for key, value in experiment.state.global_model.state_dict().items()}
    learner = experiment.state.learners["linf"]

    class Average(Quiet):
        def tick(self, state):
            d = min(0.999, state.step / (9 + state.step))
            for key, value in learner.tree.items():
                ema[key] = d * ema[key] + (1 - d) * value if value.is_floating_point() else value.clone()

    fit_quietly(experiment, events=Average())
    for key, value in weights(run).items():
        torch.testing.assert_close(ema[key], value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["nt", "at", "trades", "avg", "at-awp", "lbgat"])
def test_a_lone_learner_is_the_plain_method_bit_for_bit(method, tmp_path):
    """Whatever the recipe's mixing says: steps of the learner alone, with nothing mixed, give the same weights."""
    recipe = generalist.load_recipe(f"digits-{method}", [*TINY[:-1], "training.epochs=4", "select=last"])
    run = generalist.train(recipe, out=tmp_path / method)
    experiment = build(recipe)
    (learner,) = experiment.state.learners.values()
    for step, batch in enumerate(experiment.feed(0)):
        learner.step(batch, progress=experiment.plan.progress(step), key=(recipe.seed, learner.name, step))
        if experiment.plan.ends_epoch(step):
            learner.end_epoch_()
    assert recipe.mixing.redistribute == "boundary"
    assert same(weights(run.folder, learner.name), dict(learner.model.state_dict()))


def test_asking_for_the_redistribution_of_a_lone_learner_is_answered():
    with pytest.warns(UserWarning, match="has one learner, and a lone learner is never reset"):
        build(tiny("digits-at", "mixing.redistribute=boundary"))


def test_a_generalist_can_start_from_an_existing_model(tmp_path):
    """From an AT run's last state at two thirds of the plan, only the last third is left to do."""
    plan = ("training.epochs=12", "mixing.start=2/3", "mixing.every_epochs=4")
    first = generalist.train(tiny("digits-at", "select=last", "training.epochs=8"), out=tmp_path / "at")
    recipe = tiny("digits-generalist-t", *plan, f"init.from={first.folder}", "init.epoch=8")
    experiment = build(recipe)
    assert experiment.state.step == 8 * experiment.plan.steps_per_epoch
    start = experiment.state.materialise_global_().state_dict()
    assert same(dict(start), weights(first.folder))
    assert all(
        same(dict(learner.model.state_dict()), weights(first.folder)) for learner in experiment.state.learners.values()
    )
    run = generalist.train(recipe, out=tmp_path / "generalist")
    epochs = [record["epoch"] for record in run.metrics if record["kind"] == "epoch"]
    assert epochs == [9, 10, 11, 12]


def test_recalibrated_statistics_are_those_of_the_mixed_weights(undisturbed, tmp_path):
    """Of every BatchNorm: the averages over clean batches and over what each learner feeds the model in training."""
    recipe = tiny("digits-generalist-t", "mixing.batchnorm=recalibrate", "mixing.redistribute=never")
    fresh = generalist.train(recipe, out=tmp_path / "fresh")
    assert json.dumps(undisturbed.summary["selected"]) != json.dumps(fresh.summary["selected"])
    experiment = fit_quietly(build(recipe))
    model, seen = experiment.state.global_model, {}

    def keep(module, args):
        if module.training:
            seen.setdefault(module, []).append(args[0].detach().clone())

    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for module in (model, *norms):
        module.register_forward_pre_hook(keep)
    assert experiment.global_model() is model
    clean, linf, natural, l2 = (seen[model][offset::4] for offset in range(4))
    assert len(clean) == experiment.plan.steps_per_epoch  # all batches of an epoch: there are fewer than 16
    assert all(torch.equal(a, b) for a, b in zip(clean, natural, strict=True))
    for name, attacked in (("linf", linf), ("l2", l2)):
        threat = recipe.learners[name].objective.options["threat"]
        for a, b in zip(clean, attacked, strict=True):
            assert 0 < threat.size(b - a).max() <= threat.radius * (1 + 1e-5)
    assert len(norms) > 2
    for norm in norms:
        means = torch.stack([x.mean((0, 2, 3)) for x in seen[norm]])
        variances = torch.stack([x.var((0, 2, 3)) for x in seen[norm]])
        torch.testing.assert_close(norm.running_mean, means.mean(0), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(norm.running_var, variances.mean(0), atol=1e-5, rtol=1e-4)


def test_selection_keeps_the_best_and_says_on_which_split(undisturbed):
    validations = [record for record in undisturbed.metrics if record["kind"] == "validation"]
    best = max(record["models"]["global"]["score"] for record in validations)
    kept = undisturbed.summary["selected"]["global"]
    assert kept["score"] == best
    assert kept["selected_by"] == "validation"
    assert {record["split"] for record in validations} == {"validation"}


def test_selecting_on_test_is_allowed_and_marked(tmp_path):
    run = generalist.train(tiny("digits-at", "select=test"), out=tmp_path / "test")
    assert run.summary["selected_by"] == "test"
    assert {record["split"] for record in run.metrics if record["kind"] == "validation"} == {"test"}


def test_at_most_two_checkpoints_are_kept_and_nothing_is_left_half_written(undisturbed):
    names = sorted(path.suffix for path in (undisturbed.folder / "checkpoints").iterdir())
    assert names == [".json", ".json", ".safetensors", ".safetensors"]
    assert not list(undisturbed.folder.rglob("*.tmp"))


def test_instruments_are_in_the_metrics(undisturbed):
    last = [record for record in undisturbed.metrics if record["kind"] == "epoch"][-1]
    assert last["regret"]["tasks"].keys() == {"linf", "natural", "l2"}
    assert last["regret"]["bound"] > last["regret"]["mean"] >= 0
    assert last["drift"]["term"] > 0
    assert last["drift"]["cosine"].keys() == {"linf|natural", "linf|l2", "natural|l2"}
    assert sum(last["gamma"].values()) == pytest.approx(1)
