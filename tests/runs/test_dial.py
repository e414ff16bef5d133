"""The dial: mixtures of finished runs, evaluated, kept, chosen and exported."""

import json
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from PIL import Image

import generalist
from generalist import UserError
from generalist.data import ArraySplit, batches
from generalist.evaluation import SuiteResult
from generalist.mixing import MergeWeights, completed
from generalist.models import read_extra, save_model
from generalist.runs import dial_export
from generalist.runs.dial_batchnorm import Recalibration
from generalist.runs.dial_endpoints import Endpoint
from generalist.runs.dial_points import Bench
from generalist.runs.experiment import load_data
from long_tests import LONG
from run_cases import weights

SMALL = {
    "training.epochs": 4,
    "training.batch_size": 40,
    "data.limit": 300,
    "model.width": 4,
    "mixing.recalibrate_batches": 2,
    "mixing.start": 0,
    "validation.every_epochs": 4,
    "select": "last",
}
D = {**SMALL, "learners.linf.objective.steps": 2}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dial")
    return generalist.train("digits-generalist-d-natural", out=folder / "d", overrides=D)


@pytest.fixture
def run(trained, tmp_path):
    """A copy, with nothing kept in it."""
    return generalist.Run(shutil.copytree(trained.folder, tmp_path / "d"))


@pytest.fixture
def judged(monkeypatch):
    """How often a model was attacked."""
    counted, plain = [], Bench._judged

    def counting(bench, model, progress):
        counted.append(1)
        return plain(bench, model, progress)

    monkeypatch.setattr(Bench, "_judged", counting)
    return counted


def test_other_runs_stand_beside_the_points_with_the_figures_of_their_validation(run, judged, tmp_path):
    other = generalist.train("digits-nt", out=tmp_path / "nt", overrides=SMALL)
    found = generalist.dial(run, points=3, beside=other)
    (point,) = found.beside
    kept = other.summary["selected"]["global"]
    assert (point.natural, point.robust) == (kept["natural"], kept["robust"])
    assert f"beside: nt: natural {point.natural:.2f}" in str(found)
    assert found.record()["beside"]["nt"]["robust"] == point.robust
    assert all(mixture is not point for mixture in found.points)
    before = len(judged)
    assert generalist.dial(run, points=3, beside=[other]).beside[0].counts == point.counts
    assert len(judged) == before, "it is kept like the points"


def test_points_are_attacked_under_the_threats_that_are_given(run):
    """Each once; and with the verdicts that they have beside others."""
    own = run.recipe.validation.threats
    both = generalist.dial(run, points=2)
    assert both.threats == [str(threat) for threat in own]
    one = generalist.dial(run, points=2, threats=[str(own[1]), own[1]])
    assert one.threats == [str(own[1])]
    assert [list(point.robust) for point in one.points] == [[str(own[1])]] * 2
    assert [p.robust[str(own[1])] for p in one.points] == [p.robust[str(own[1])] for p in both.points]
    assert generalist.dial(run, points=2, threats="linf:1/100").threats == ["linf:1/100"]


def test_a_run_on_other_data_does_not_stand_beside(run, tmp_path):
    other = generalist.train("digits-nt", out=tmp_path / "nt", overrides={**SMALL, "seed": 5})
    with pytest.raises(UserError, match="other images or splits"):
        generalist.dial(run, points=3, beside=other)


def verdicts(dial):
    return [{name: bits.tolist() for name, bits in point.verdicts.items()} for point in dial.points]


def test_endpoints_have_the_figures_of_their_run(run):
    found = generalist.dial(run, points=3)
    assert found.endpoints == ["linf", "natural"]
    for point in found.points[:2]:
        kept = run.summary["selected"][point.mixture.endpoint]
        assert (point.natural, point.robust) == (kept["natural"], kept["robust"])


def test_a_mixture_has_mixed_parameters_and_statistics_of_its_own(run):
    found = generalist.dial(run, points=2, batchnorm="clean")
    state, a, b = found.model({"natural": 0.25}).state_dict(), weights(run, "linf"), weights(run, "natural")
    for name, tensor in state.items():
        mixed = (0.75 * a[name].double() + 0.25 * b[name].double()).float()
        assert name.endswith(STATISTICS) or torch.equal(tensor, mixed)
    x = [batch.x for batch in islice(batches(load_data(run.recipe).train, batch_size=40, seed=1, epoch=0), 2)]
    spec = found.model({"natural": 0.25})
    maps = [spec.network.conv1(spec.normalize(images)) for images in x]
    assert torch.allclose(state["network.bn1.running_mean"], torch.stack([m.mean((0, 2, 3)) for m in maps]).mean(0))
    kept = found.model({"linf": 1.0}).state_dict()
    assert all(torch.equal(kept[name], a[name]) for name in a)


def statistics_of(run, weights, batchnorm=""):
    state = generalist.dial(run, points=2, images=1, batchnorm=batchnorm).model(weights).state_dict()
    return {name: tensor for name, tensor in state.items() if name.endswith(STATISTICS[:2])}


def test_statistics_are_of_the_inputs_that_are_named(run):
    """Each kind of input changes them, and all kinds together are the plain average of each."""
    kinds = ("clean", "linf", "l2", "clean,linf,l2")
    mean = {kind: statistics_of(run, {"natural": 0.5}, kind)["network.bn1.running_mean"] for kind in kinds}
    assert not torch.equal(mean["clean"], mean["linf"])
    assert not torch.equal(mean["linf"], mean["l2"])
    average = (mean["clean"] + mean["linf"] + mean["l2"]) / 3
    assert (mean[kinds[-1]] - average).abs().max() < 0.2 * (mean["clean"] - mean["linf"]).abs().max()


@pytest.mark.parametrize(("natural", "share"), [(0.25, 0.25), (0.5, 0.5), (1.5, 1.0)])
def test_statistics_are_of_what_the_learners_saw_in_proportion_to_their_weights(run, natural, share):
    """The ℓ∞ learner saw attacked images, the natural one clean images; one with a negative weight counts as absent."""
    mixture = {"natural": natural}
    found, attacked, clean = (statistics_of(run, mixture, inputs) for inputs in ("", "linf", "clean"))
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, (1 - share) * attacked[name] + share * clean[name])
    assert any(not torch.allclose(attacked[name], clean[name]) for name in found)


def test_statistics_change_little_close_to_a_learner(run):
    """Measured as the learner itself saw images, a mixture of next to nothing else has the learner's statistics."""
    found = generalist.dial(run, points=2, images=1)._bench
    for name in ("linf", "natural"):
        same = found.model(MergeWeights(completed({name: 1.0}, ["linf", "natural"]), remeasured=True)).state_dict()
        near = statistics_of(run, {"natural": 1e-6 if name == "linf" else 1 - 1e-6})
        for tensor, value in near.items():
            torch.testing.assert_close(value, same[tensor], rtol=1e-3, atol=1e-4)


def test_a_module_that_a_learner_does_not_train_is_measured_as_the_base(tmp_path):
    changes = {**SMALL, "learners.linf.objective.steps": 2, "learners.natural.trains": ["conv5", "bn5", "fc"]}
    late = generalist.train("digits-generalist-late-d", out=tmp_path / "late", overrides=changes)
    shares = generalist.dial(late, points=2, images=1)._bench._shares(MergeWeights({"linf": 0.75, "natural": 0.25}))
    last = {name for name in shares if name.startswith("network.bn5.")}
    assert len(last) == 2
    assert all(shares[name] == {"linf": 0.75, "natural": 0.25} for name in last)
    assert all(shares[name] == {"linf": 1.0} for name in shares.keys() - last)


def test_statistics_follow_the_weights_of_their_module(run):
    bench = generalist.dial(run, points=2, images=1)._bench
    own = {"conv2": {"linf": 0.0, "natural": 1.0}, "conv3": {"linf": -0.5, "natural": 1.5}}
    shares = bench._shares(MergeWeights({"linf": 0.75, "natural": 0.25}, own))
    assert shares["network.bn1.running_var"] == {"linf": 0.75, "natural": 0.25}
    assert shares["network.bn2.running_var"] == shares["network.bn3.running_mean"] == {"natural": 1.0}


def test_where_a_learner_cannot_be_repeated_all_inputs_count():
    recipe = generalist.load_recipe("digits-lbgat")
    threats = recipe.validation.threats
    end = Endpoint("lbgat", None, "global", None, "", next(iter(recipe.learners.values())))
    alone = Endpoint("mixed", None, "global", None, "", None)
    found = Recalibration.of(recipe, [end, alone], threats, []).inputs
    assert found["lbgat"] == found["mixed"]
    assert found["mixed"].clean
    assert [one.options["threat"] for one in found["mixed"].objectives] == list(map(str, threats))


def test_what_is_known_is_not_computed_again(run, judged):
    first = generalist.dial(run, points=5, images=20)
    assert len(judged) >= 5
    judged.clear()
    again = generalist.dial(run.folder, points=5, images=20)
    assert judged == []
    assert verdicts(again) == verdicts(first)
    generalist.dial(run, points=3, images=20)  # 0, ½ and 1 are among those
    assert judged == []


@pytest.mark.parametrize("change", [{"images": 19}, {"seed": 1}, {"batchnorm": "clean"}, {"attack": "fast.yaml"}])
def test_another_question_is_another_point(run, judged, change, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fast.yaml").write_text("attacks: [{attack: pgd, steps: 2, label: PGD2}]\n")
    generalist.dial(run, points=3, images=20)
    judged.clear()
    generalist.dial(run, points=3, **{"images": 20, **change})
    assert len(judged) >= (1 if "batchnorm" in change else 3)  # endpoints keep their own statistics


def test_another_model_is_another_point(run, judged):
    before = generalist.dial(run, points=3, images=20)
    judged.clear()
    model, card = run.model("natural"), read_extra(run.model_file("natural"))
    with torch.no_grad():
        model.network.fc.weight.mul_(-1)
    save_model(model, run.model_file("natural"), extra=card)
    after = generalist.dial(run, points=3, images=20)
    assert len(judged) >= 2
    assert verdicts(after)[0] == verdicts(before)[0]
    assert verdicts(after)[1] != verdicts(before)[1]


def test_a_killed_dial_goes_on_where_it_stopped(run, judged, monkeypatch, tmp_path):
    other = generalist.Run(shutil.copytree(run.folder, tmp_path / "other"))
    whole = generalist.dial(other, points=6, images=20)
    judged.clear()
    keep = Bench._keep

    def dying(bench, key, point, *, seconds):
        keep(bench, key, point, seconds=seconds)
        if len(judged) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(Bench, "_keep", dying)
    with pytest.raises(KeyboardInterrupt):
        generalist.dial(run, points=6, images=20)
    monkeypatch.setattr(Bench, "_keep", keep)
    assert len(list(run.dial_folder.glob("*.json"))) == 4
    judged.clear()
    assert verdicts(generalist.dial(run, points=6, images=20)) == verdicts(whole)
    assert len(judged) >= 2
    assert len(judged) < 6


@pytest.mark.parametrize("harm", [lambda text: text.replace('"0', '"1', 1), lambda text: text[:50], lambda text: "[]"])
def test_a_damaged_point_is_named_and_computed_again(run, judged, harm):
    before = verdicts(generalist.dial(run, points=3, images=20))
    judged.clear()
    path = sorted(run.dial_folder.glob("*.json"))[0]
    path.write_text(harm(path.read_text()))
    with pytest.warns(UserWarning, match=path.name):
        again = generalist.dial(run, points=3, images=20)
    assert verdicts(again) == before
    assert len(judged) == 1


def test_a_folder_that_cannot_be_written_to_costs_no_results(run):
    run.dial_folder.write_text("a file where a folder should be")
    with pytest.warns(UserWarning, match="points are not kept"):
        found = generalist.dial(run, points=3, images=20)
    assert len(found.points) == 3


def test_beyond_the_simplex(run):
    found = generalist.dial(run, points=7, images=20, beyond=1.5)
    assert sorted(point.weights["natural"] for point in found.points) == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5]
    assert found.record()["beyond"] == "3/2"


def test_front_and_pick(run):
    found = generalist.dial(run, points=5, images=40)
    assert found.front == sorted(found.front, key=lambda point: point.natural)
    assert all(not other.dominates(point) for point in found.front for other in found.points)
    best = found.pick(maximise="natural")
    assert best.natural == max(point.natural for point in found.points)
    text = str(found)
    assert text.splitlines()[0].startswith("digits-generalist-d-natural: front of 5 mixtures of linf and natural, 40")
    assert all(f"{point.natural:.2f}" in text for point in found.front)
    assert "chosen" in found.text(best)
    rows = found.csv().splitlines()
    assert len(rows) == 6
    assert rows[0].startswith("weight:linf,weight:natural,natural,linf:3/20")
    json.dumps(found.record())


def test_by_module_is_never_worse_than_its_line_and_goes_the_same_way_again(run, judged):
    found = generalist.dial(run, points=12, images=40, by="module")
    line, searched = found.points[:6], found.points[6:]
    assert len(searched) == 6
    assert all(not point.modules for point in line)
    assert all(point.modules for point in searched)
    assert len({point.mixture.key(found.modules) for point in found.points}) == 12
    for point in line:
        assert any(other.counts == point.counts or other.dominates(point) for other in found.front)
    judged.clear()
    again = generalist.dial(run, points=12, images=40, by="module")
    assert judged == []
    assert [point.record() for point in again.points] == [point.record() for point in found.points]
    state = found.model(searched[0]).state_dict()
    (module,) = searched[0].modules
    a, b = weights(run, "linf"), weights(run, "natural")
    name = found._bench.groups[module][0]
    share = searched[0].modules[module]
    assert torch.equal(state[name], (share["linf"] * a[name].double() + share["natural"] * b[name].double()).float())


def test_modules_that_no_endpoint_changed_are_left_alone(run):
    model, card = run.model("natural"), read_extra(run.model_file("natural"))
    state = run.model("linf").state_dict()
    state["network.fc.weight"] = model.state_dict()["network.fc.weight"]
    model.load_state_dict(state)
    save_model(model, run.model_file("natural"), extra=card)
    found = generalist.dial(run, points=9, images=20, by="module")
    assert {name for point in found.points for name in point.modules} == {"fc"}


def test_an_exported_point_is_a_run_like_any_other(run, tmp_path):
    found = generalist.dial(run, points=3, images=40)
    middle = found.points[2]
    exported, result = found.export(tmp_path / "new" / "picked", middle)
    assert isinstance(result, SuiteResult)
    assert exported.folder == tmp_path / "new" / "picked"
    assert exported.models == ["global"]
    assert exported.recipe.name == "digits-generalist-d-natural-dial"
    mixed = found.model(middle).state_dict()
    assert all(torch.equal(tensor, mixed[name]) for name, tensor in weights(exported).items())
    assert generalist.load(exported.folder).spec == run.model().spec
    again = generalist.evaluate(exported)
    assert again.record()["per_image"] == result.record()["per_image"]
    record = exported.record("pgd20")
    assert record["images"] == len(load_data(run.recipe).test)
    assert record["split"] == "test"
    assert record["weights"] == {
        "path": str(exported.model_file().absolute()),
        "sha256": exported.model_digest(),
    }
    generalist.evaluate(run)
    rows = generalist.compare([exported, run]).record()["runs"]
    assert [row["method"] for row in rows] == [None, "generalist-d-natural"]
    made = exported.summary["dial"]
    assert made["weights"] == {"linf": 0.5, "natural": 0.5}
    assert made["endpoints"]["linf"]["sha256"] == run.model_digest("linf")
    assert made["chosen"]["natural"] == middle.natural
    assert made["batchnorm"]["recalibrated"]["batches"] == 2
    assert made == json.loads(exported.model_file().with_suffix(".json").read_text())["extra"]["dial"]
    assert exported.finished
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"picked"}


def test_where_endpoints_were_selected_on_test_so_was_the_mixture(run):
    recipe = run.recipe
    marked = recipe.model_copy(update={"select": "test"})
    assert dial_export.exported_recipe(recipe, [recipe]).select == "validation"
    assert dial_export.exported_recipe(recipe, [recipe, marked]).select == "test"


def test_an_export_that_fails_leaves_nothing(run, tmp_path, monkeypatch):
    found = generalist.dial(run, points=2, images=20)

    def failing(*_, **__):
        raise RuntimeError("no power")

    monkeypatch.setattr(dial_export, "evaluate_target", failing)
    with pytest.raises(RuntimeError, match="no power"):
        found.export(tmp_path / "new" / "picked")
    assert not (tmp_path / "new").exists()


def test_an_export_folder_must_be_free(run, tmp_path):
    found = generalist.dial(run, points=2, images=20)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    with pytest.raises(UserError, match="full is not empty"):
        found.export(tmp_path / "full")
    (tmp_path / "empty").mkdir()
    (tmp_path / f".empty.{2**30}.partial").mkdir()  # of a process that was killed
    assert found.export(tmp_path / "empty")[0].finished
    assert list(tmp_path.glob(".*")) == []


def test_red_flags_of_a_point(run):
    found = generalist.dial(run, points=2, images=20)
    assert all(flag.message for flag in found.red_flags(found.points[0]))


def test_without_batchnorm_nothing_is_measured(tmp_path, monkeypatch):
    (tmp_path / "plain_dialled.py").write_text(
        "from torch import nn\n\n\ndef plain(**_):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = {**D, "model": {"name": "plain_dialled:plain", "width": None}}
    run = generalist.train("digits-generalist-d-natural", out=tmp_path / "plain", overrides=overrides)
    found = generalist.dial(run, points=3, images=20)
    assert found.modules == ["1", "3"]
    assert found.record()["batchnorm"] is None
    half = found.model({"natural": 0.5}).state_dict()
    a, b = weights(run, "linf"), weights(run, "natural")
    assert all(torch.equal(half[k], (0.5 * a[k].double() + 0.5 * b[k].double()).float()) for k in a)
    exported, _ = found.export(tmp_path / "out", found.points[2])
    assert exported.summary["dial"]["batchnorm"] == "none in this network"


@pytest.fixture(scope="module")
def lone(tmp_path_factory):
    """AT, NT from the same start, and half-half that went on from AT."""
    folder = tmp_path_factory.mktemp("several")
    steps = {"learners.linf.objective.steps": 2}
    at = generalist.train("digits-at", out=folder / "at", overrides={**SMALL, **steps})
    nt = generalist.train("digits-nt", out=folder / "nt", overrides=SMALL)
    on = {**SMALL, **steps, "init": {"from": str(at.folder)}}
    return {"at": at, "nt": nt, "on": generalist.train("digits-half", out=folder / "on", overrides=on)}


def test_runs_with_one_learner_give_their_average(lone):
    found = generalist.dial([lone["nt"], lone["at"]], points=3, images=20)
    assert found.endpoints == ["at:global", "nt:global"]  # the base is the one that was trained on ℓ∞
    assert len(list(lone["nt"].dial_folder.glob("*.json"))) >= 3  # the first run keeps the points
    state = found.model({"nt:global": 1.0}).state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights(lone["nt"]).items())


def test_learners_are_called_by_folder_and_name(lone):
    found = generalist.dial([lone["at"], lone["nt"]], between=["nt:natural", "at:linf"], points=2, images=20)
    assert found.endpoints == ["nt:natural", "at:linf"]


def test_a_run_that_went_on_from_the_other_shares_its_trajectory(lone):
    assert len(generalist.dial([lone["on"], lone["at"]], points=2, images=20).points) == 2


def test_one_run_with_one_learner_is_not_enough(lone):
    with pytest.raises(UserError, match="needs two endpoints or more, got global; give another run"):
        generalist.dial(lone["at"])


def test_strangers_are_refused(lone, run, tmp_path):
    other = build_start(tmp_path / "start.safetensors")
    on = {**SMALL, "training.epochs": 1, "init": {"from": str(other)}}
    stranger = generalist.train("digits-nt", out=tmp_path / "stranger", overrides=on)
    with pytest.raises(UserError, match="share no start"):
        generalist.dial([lone["at"], stranger])
    wide = generalist.train("digits-nt", out=tmp_path / "wide", overrides={**on, "model.width": 5, "init": None})
    with pytest.raises(UserError, match="different networks: width is 4 and 5"):
        generalist.dial([lone["at"], wide])
    few = generalist.train("digits-nt", out=tmp_path / "few", overrides={**SMALL, "training.epochs": 1, "seed": 1})
    with pytest.raises(UserError, match="other images or splits"):
        generalist.dial([lone["at"], few])
    with pytest.raises(UserError, match="is given twice"):
        generalist.dial([lone["at"], lone["at"].folder])


def build_start(path):
    """Weights of the network of these runs that none of them started from."""
    model = generalist.build_model("small_cnn", classes=10, channels=1, size=8, width=4, seed=7)
    return generalist.save_model(model, path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"between": "lnf,natural"}, "unknown endpoint 'lnf'; did you mean 'linf'"),
        ({"between": "linf"}, "two endpoints or more, got linf"),
        ({"between": "linf,linf"}, "given twice"),
        ({"points": 1}, "at least the number of endpoints, 2, got 1"),
        ({"beyond": 0.5}, "beyond is 1"),
        ({"beyond": "far"}, "not a number"),
        ({"by": "layer"}, "way to dial"),
        ({"images": 0}, "images must be at least 1"),
        ({"attack": "pgd2"}, "did you mean 'pgd20'"),
        ({"batchnorm": "linff"}, "unknown inputs for BatchNorm"),
    ],
)
def test_bad_input_is_said_in_a_line(run, options, said, judged):
    with pytest.raises(UserError, match=said):
        generalist.dial(run, **options)
    assert judged == []


def test_a_run_that_is_not_finished_is_refused(run):
    run.summary_file.unlink()
    with pytest.raises(UserError, match="not finished"):
        generalist.dial(run)


@pytest.mark.filterwarnings("error")
def test_the_picture_has_a_panel_for_each_threat(run):
    found = generalist.dial(run, points=7, images=20, beyond=1.5)
    png, svg, *ways = found.draw(found.pick())
    with Image.open(png) as picture:
        assert picture.format == "PNG"
    text = svg.read_text()
    assert text.count('id="axes_') == 2
    assert found.draw(found.pick()) == [png, svg, *ways]
    assert [path.name for path in ways] == ["dial-ways.png", "dial-ways.svg"]
    assert svg.read_text() == text


@LONG
def test_two_ranks_find_the_same_points(run, tmp_path):
    alone = generalist.dial(run, points=5, images=40)
    shared = shutil.copytree(run.folder, tmp_path / "shared", ignore=shutil.ignore_patterns("dial"))
    launch = ["--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command = [*launch, "-m", "generalist", "dial", str(shared), "--points", "5", "--images", "40"]
    command += ["--json", str(tmp_path / "record.json"), "--export", str(tmp_path / "picked"), "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(generalist.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command],
        capture_output=True, text=True, timeout=240, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["points"] == json.loads(json.dumps([point.record() for point in alone.points]))
    assert generalist.Run(tmp_path / "picked").finished


def test_batchnorm_is_measured_on_classes_as_training_draws_them():
    labels = torch.tensor([0] * 90 + [1] * 10)
    split = ArraySplit(torch.rand(100, 1, 8, 8), labels)
    recipe = generalist.load_recipe("digits-at", {"data.balance": 1.0, "training.batch_size": 50})
    chosen = Recalibration.of(recipe, [], [], [])
    drawn = torch.cat([batch.y for batch in chosen._sample(split, torch.device("cpu"), 0)])
    assert drawn.bincount().tolist() == [50, 50]
    assert chosen.record()["balance"] == 1.0
