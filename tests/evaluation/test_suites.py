"""Suites: what they report, that nothing depends on how the work is split, and that nothing is computed twice."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch
from flawed import Quantised, digits_model

import generalist
from generalist import Threat, UserError, load_suite
from generalist.attacks import counted_passes, misclassified
from generalist.data import ArraySplit
from generalist.evaluation import Suite, Verdicts, evaluate_suite, model_hash, verdict_key
from generalist.evaluation.attacked import attack_suite
from run_cases import exit_code, forked_command

LINF, L2 = Threat.parse("linf:1/10"), Threat.parse("l2:2/5")


@pytest.fixture(scope="module")
def robust(tmp_path_factory):
    model, x, y = digits_model(tmp_path_factory.mktemp("run"))
    return model, ArraySplit(x, y)


def small(*names, cascade=True):
    """The shipped stages with small budgets."""
    budgets = {"APGD_ce": {"steps": 15}, "APGD_t": {"steps": 10, "targets": 3}, "FAB_t": {"steps": 10, "targets": 2}}
    budgets |= {"Square": {"queries": 60}, "PGD20": {}}
    stages = [stage for stage in load_suite("paper").stages if stage.label in names]
    stages = [type(s)(s.label, s.attack, {**s.options, **budgets.get(s.label, {})}) for s in stages]
    return Suite("small", tuple(stages), {"all": names, **{n: (n,) for n in names if not cascade}}, cascade)


FOUR = ("APGD_ce", "APGD_t", "FAB_t", "Square")


def run(model, split, suite, threats=(LINF,), **options):
    return evaluate_suite(model, split, suite, threats=threats, **options)


def test_verdicts_do_not_depend_on_batch_size_order_or_split(robust):
    model, split = robust
    suite = small(*FOUR)
    whole = run(model, split, suite, (LINF, L2))
    for batch_size in (1, 7, 500):
        other = run(model, split.take(torch.arange(12)), suite, (LINF, L2), batch_size=batch_size)
        for threat in (LINF, L2):
            assert torch.equal(other.robust(threat, "all"), whole.robust(threat, "all")[:12])
    back = torch.arange(len(split)).flip(0)
    turned = run(model, split.take(back), suite, (LINF, L2), batch_size=50)
    for threat in (LINF, L2):
        for label in FOUR:
            assert torch.equal(turned.verdicts[threat][label], whole.verdicts[threat][label][back])
    assert 0 < whole.robust(LINF, "all").sum() < whole.natural.sum()


def test_a_larger_suite_never_raises_the_figure_and_a_cascade_reports_what_standing_alone_does(robust):
    model, split = robust
    alone = run(model, split, small(*FOUR, cascade=False))
    cascade = run(model, split, small(*FOUR))
    assert torch.equal(alone.robust(LINF, "all"), cascade.robust(LINF, "all"))
    for count in range(1, 4):
        fewer = run(model, split, small(*FOUR[:count]))
        assert not (cascade.robust(LINF, "all") & ~fewer.robust(LINF, "all")).any()
    for label in FOUR:
        assert cascade.robust(LINF, "all").sum() <= alone.robust(LINF, label).sum()
    costs = cascade.costs[LINF]
    assert costs["FAB_t"]["forward"] < alone.costs[LINF]["FAB_t"]["forward"]


def test_the_record_says_everything(robust):
    model, split = robust
    record = run(model, split, small("APGD_ce", "Square"), (LINF, L2), limit=30, seed=3).record()
    again = json.loads(json.dumps(record))
    assert again["accuracy"].keys() == {"linf:1/10", "l2:2/5", "mean over norms", "true union"}
    assert again["accuracy"]["true union"]["all"] <= again["accuracy"]["mean over norms"]["all"]
    assert again["seed"] == 3
    assert again["model_sha256"] == model_hash(model)
    assert again["stages"]["Square"]["queries"] == 60
    assert again["versions"]["torch"] == torch.__version__
    assert len(again["examples"]) == len(again["per_image"]["linf:1/10"]["Square"]) == again["images"] == 30
    cost = again["costs"]["l2:2/5"]
    assert cost["APGD_ce"]["backward"] > 0
    assert cost["Square"]["forward"] > cost["Square"]["backward"] == 0
    assert cost["APGD_ce"]["seconds"] > 0
    assert again["threats"]["l2:2/5"] == {"norm": "l2", "eps": "2/5", "eps_float": 0.4}
    assert datetime.fromisoformat(again["date"]).utcoffset() == timedelta(0)
    assert again["wall_seconds"] > 0
    assert again["cpu_seconds"] > 0
    for threat in (LINF, L2):
        after = again["after_stages"][str(threat)]
        assert again["natural"] >= after["APGD_ce"] >= after["Square"] == again["accuracy"][str(threat)]["all"]
        assert 0.9 * threat.radius < again["largest_perturbation"][str(threat)] <= threat.radius * 1.0001
    bounds = again["interval_95"]
    assert bounds["natural"][0] < again["natural"] <= bounds["natural"][1]
    assert bounds["accuracy"].keys() == {"linf:1/10", "l2:2/5", "true union"}
    low, high = bounds["accuracy"]["linf:1/10"]["all"]
    assert low < again["accuracy"]["linf:1/10"]["all"] < high


def test_the_largest_perturbation_is_kept_with_the_verdicts(robust, tmp_path):
    model, split = robust
    first = run(model, split, small("APGD_ce"), cache=tmp_path, limit=20)
    assert run(model, split, small("APGD_ce"), cache=tmp_path, limit=20).largest == first.largest


def test_a_finished_evaluation_costs_a_sample_and_others_reuse_its_verdicts(robust, tmp_path):
    model, split = robust
    name = verdict_key(model, split.shape)
    with counted_passes() as passes:
        first = attack_suite(
            model, split, small("APGD_ce"), threats=[LINF], verdicts=Verdicts(tmp_path, model=name, seed=0)
        )
    whole = passes.backward
    with counted_passes() as passes:
        again = attack_suite(
            model, split, small("APGD_ce"), threats=[LINF], verdicts=Verdicts(tmp_path, model=name, seed=0)
        )
    assert 0 < passes.backward < whole / 3
    assert torch.equal(first.robust(LINF, "all"), again.robust(LINF, "all"))
    assert again.costs[LINF]["APGD_ce"] == first.costs[LINF]["APGD_ce"]
    with counted_passes() as passes:
        longer = small("APGD_ce", "Square")
        attack_suite(model, split, longer, threats=[LINF], verdicts=Verdicts(tmp_path, model=name, seed=0))
    assert passes.backward < whole / 3
    for other in ({"seed": 1}, {"model": "another"}):
        with counted_passes() as passes:
            key = {"model": name, "seed": 0} | other
            attack_suite(model, split, small("APGD_ce"), threats=[LINF], verdicts=Verdicts(tmp_path, **key))
        assert passes.backward > whole / 2


def test_verdicts_survive_a_line_cut_short(robust, tmp_path):
    model, split = robust
    first = run(model, split, small("APGD_ce"), cache=tmp_path, batch_size=40)
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-25])
    again = run(model, split, small("APGD_ce"), cache=tmp_path, batch_size=40)
    assert torch.equal(first.robust(LINF, "all"), again.robust(LINF, "all"))
    whole = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    assert len({name for row in whole for name in row["robust"]}) == int(first.natural.sum())


class Scaled(torch.nn.Module):
    """Its factor is neither a tensor nor printed."""

    def __init__(self, net, factor):
        super().__init__()
        self.net, self.factor = net, [factor]

    def forward(self, x):
        return self.net(x * self.factor[0])


def test_verdicts_of_a_model_that_computes_something_else_are_not_used(robust, tmp_path):
    model, split = robust
    dark = Scaled(model, 0.2)
    fresh = run(dark, split, small("APGD_ce"))
    assert (
        run(Scaled(model, 1.0), split, small("APGD_ce"), cache=tmp_path).record()["accuracy"]
        != fresh.record()["accuracy"]
    )
    assert model_hash(dark) == model_hash(Scaled(model, 1.0))
    again = run(dark, split, small("APGD_ce"), cache=tmp_path)
    assert again.record()["per_image"] == fresh.record()["per_image"]


def test_code_that_was_changed_between_two_processes_is_noticed(tmp_path):
    """The file of a stranger's model is edited: tensors and structure stay, what it computes does not."""
    (tmp_path / "cut.yaml").write_text("attacks: [{attack: pgd, steps: 1}]")
    data = generalist.load_dataset("digits").test
    centres = torch.stack([data.images[data.labels == k].float().mean(0).flatten() / 255 for k in range(10)])
    torch.save({"fc.weight": 4 * centres, "fc.bias": -2 * centres.square().sum(1)}, tmp_path / "theirs.pt")
    found = []
    for factor in (1, 0.1):
        source = FOREIGN.replace("x.flatten(1)", f"{factor} * x.flatten(1)")
        assert str(factor) in source
        (tmp_path / "theirs.py").write_text(source)
        given = ["eval", "--model", "theirs:Net", "--weights", "theirs.pt", "--data", "digits"]
        more = ["--threat", "linf:1/20", "--suite", "cut.yaml", "--json", "record.json"]
        child = forked_command([*given, *more], tmp_path / "log", folder=tmp_path, **environment(tmp_path))
        assert exit_code(child) == 0, (tmp_path / "log").read_text()
        (record,) = json.loads((tmp_path / "record.json").read_text()).values()
        found.append(record["accuracy"]["linf:1/20"]["cut"])
    assert found[0] > found[1] + 10


def test_the_key_covers_the_users_own_files_that_a_model_refers_to(tmp_path, monkeypatch):
    (tmp_path / "helping.py").write_text("def prepared(x):\n    return x\n")
    forward = "    def forward(self, x):\n        return helping.prepared(x).flatten(1)\n"
    (tmp_path / "helped.py").write_text(f"import helping\nfrom torch import nn\n\nclass Net(nn.Module):\n{forward}")
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("helped").Net()
    before = verdict_key(model, (1, 4, 4))
    assert verdict_key(model, (1, 4, 4)) == before
    (tmp_path / "helping.py").write_text("def prepared(x):\n    return x if x.mean() > 0.1 else 1 - x\n")
    assert verdict_key(model, (1, 4, 4)) != before
    model.table = {"a": [1, 2]}
    changed = verdict_key(model, (1, 4, 4))
    model.table["a"][0] = 3
    assert verdict_key(model, (1, 4, 4)) != changed


def test_two_labels_of_one_attack_are_two_attacks_with_and_without_a_cache(robust, tmp_path):
    model, split = robust
    (pgd,) = small("PGD20").stages
    stages = tuple(type(pgd)(label, pgd.attack, {**pgd.options, "steps": 1}) for label in "ab")
    suite = Suite("two", stages, {"a": ("a",), "b": ("b",), "two": ("a", "b")}, cascade=False)
    threat = (Threat.parse("linf:1/10"),)
    fresh = run(model, split, suite, threat)
    assert not torch.equal(fresh.verdicts[threat[0]]["a"], fresh.verdicts[threat[0]]["b"])
    assert run(model, split, suite, threat, cache=tmp_path).record()["per_image"] == fresh.record()["per_image"]


def test_kept_verdicts_are_believed_only_after_a_sample_was_attacked_again(robust, tmp_path):
    """Right lines under the right key, but of another model: say, one that behaves otherwise on the fixed images."""
    model, split = robust
    key = verdict_key(model, split.shape)
    options = {"threats": [LINF], "verdicts": Verdicts(tmp_path, model=key, seed=0)}
    wrong = attack_suite(Scaled(model, 0.2), split, small("APGD_ce"), **options)
    with pytest.warns(UserWarning, match="kept verdicts are not those of this model"):
        again = attack_suite(model, split, small("APGD_ce"), **options)
    fresh = run(model, split, small("APGD_ce"))
    assert torch.equal(again.robust(LINF, "all"), fresh.robust(LINF, "all"))
    assert not torch.equal(again.robust(LINF, "all"), wrong.robust(LINF, "all"))


@pytest.mark.parametrize("change", [('": 1', '": 0'), ('": 0', '": 1'), ('"seconds": ', '"seconds": 1')])
def test_an_edited_line_of_verdicts_is_named_and_computed_again(robust, tmp_path, change):
    model, split = robust
    first = run(model, split, small("APGD_ce"), cache=tmp_path, batch_size=40)
    (path,) = tmp_path.glob("*.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    assert change[0] in lines[0]
    path.write_text("".join([lines[0].replace(*change, 1), *lines[1:]]))
    with pytest.warns(UserWarning, match=r"1 damaged line\(s\) of verdicts are computed again"):
        again = run(model, split, small("APGD_ce"), cache=tmp_path, batch_size=40)
    assert first.record()["per_image"] == again.record()["per_image"]


def test_verdicts_of_another_evaluation_under_this_name_are_not_used(robust, tmp_path):
    model, split = robust
    run(model, split, small("APGD_ce"), (LINF,), cache=tmp_path)
    (ours,) = tmp_path.glob("*.jsonl")
    run(model, split, small("APGD_ce"), (Threat.parse("linf:1/1000"),), cache=tmp_path)
    (other,) = set(tmp_path.glob("*.jsonl")) - {ours}
    fresh = run(model, split, small("APGD_ce"), (LINF,))
    other.replace(ours)
    with pytest.warns(UserWarning, match="damaged line"):
        again = run(model, split, small("APGD_ce"), (LINF,), cache=tmp_path)
    assert again.record()["per_image"] == fresh.record()["per_image"]


def test_a_cache_that_cannot_be_written_costs_a_warning_and_no_result(robust, tmp_path):
    model, split = robust
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="verdicts are not kept"):
        result = run(model, split, small("APGD_ce"), cache=tmp_path / "file")
    assert result.record()["per_image"] == run(model, split, small("APGD_ce")).record()["per_image"]


def test_a_masked_model_is_exposed_and_flagged(tmp_path):
    model, x, y = digits_model(tmp_path, natural=True)
    masked = Quantised(model, levels=6)
    result = run(masked, ArraySplit(x, y), small("PGD20", "Square"), (Threat.parse("linf:1/5"),))
    survived = {
        label: int((result.verdicts[Threat.parse("linf:1/5")][label] == 1).sum()) for label in ("PGD20", "Square")
    }
    assert survived["Square"] < 0.8 * survived["PGD20"]
    names = {flag.name for flag in result.flags}
    assert {"zero_gradients", "huge_eps", "black_box"} <= names


def test_attacked_images_can_be_kept_and_are_what_they_are_said_to_be(robust):
    model, split = robust
    result = run(model, split, small("APGD_ce", "Square"), (LINF, L2), keep_images=True)
    for threat in (LINF, L2):
        x_adv = result.x_adv[threat]
        wrong = misclassified(model, x_adv, split.labels)
        assert torch.equal(~wrong & result.natural, result.robust(threat, "all"))
        assert (threat.size(x_adv - split.images) <= threat.radius * 1.0001).all()


def test_the_model_is_put_back_even_when_interrupted(robust, monkeypatch):
    model, split = robust
    model.train()

    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model, split, small("APGD_ce"), progress=interrupted)
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    model.eval()


@pytest.mark.parametrize(("classes", "channels"), [(2, 1), (3, 3)])
def test_few_classes_one_image_gray_or_colour(classes, channels):
    model = generalist.build_model("small_cnn", classes=classes, channels=channels, size=8, width=4)
    x = torch.rand(9, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    y = model.eval()(x).argmax(1)
    with pytest.warns(UserWarning, match="margin"):
        result = run(model, ArraySplit(x, y), small(*FOUR), (LINF, L2))
    with pytest.warns(UserWarning, match="margin"):
        alone = run(model, ArraySplit(x[:1], y[:1]), small(*FOUR), (LINF, L2))
    for threat in (LINF, L2):
        assert torch.equal(alone.robust(threat, "all"), result.robust(threat, "all")[:1])


def test_a_suite_of_ones_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("cascade: false\nattacks:\n  - {attack: pgd, steps: 3, label: short}\n  - mim\n")
    suite = load_suite(path)
    assert [stage.label for stage in suite.stages] == ["short", "mim"]
    assert suite.columns == {"short": ("short",), "mim": ("mim",), "mine": ("short", "mim")}
    assert not suite.cascade


@pytest.mark.parametrize(
    ("text", "says"),
    [("attacks: [pgdd]", "did you mean 'pgd'"), ("attacks: [{attack: pgd, stepz: 1}]", "did you mean 'steps'"),
     ("attacks: [{steps: 1}]", "needs `attack`"), ("attacks: []", "list of `attacks`"), ("[1, 2", "not readable YAML"),
     ("attacks: [pgd, pgd]", "share a label"), ("attack: [pgd]", "list of `attacks`"),
     ("attacks: [pgd]\ncascad: true", "did you mean 'cascade'")],
)  # fmt: skip
def test_a_mistake_in_a_suite_is_one_clear_line(tmp_path, text, says):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=says) as error:
        load_suite(path)
    assert "\n" not in str(error.value)


def test_the_paper_suite_has_the_columns_of_the_tables():
    suite = load_suite("paper")
    printed = ["PGD20", "PGD100", "MIM", "CW", "APGD_ce", "APGD_dlr", "APGD_t", "FAB_t", "Square", "AA"]
    assert list(suite.columns) == printed
    budgets = {stage.label: stage.options for stage in suite.stages}
    assert (budgets["PGD20"]["steps"], budgets["PGD100"]["steps"]) == (20, 100)
    assert (budgets["APGD_ce"]["steps"], budgets["APGD_t"]["steps"], budgets["APGD_t"]["targets"]) == (100, 100, 9)
    assert (budgets["FAB_t"]["steps"], budgets["FAB_t"]["targets"], budgets["Square"]["queries"]) == (100, 9, 5000)


FOREIGN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.fc = nn.Linear(64, num_classes)
    def forward(self, x):
        return self.fc(x.flatten(1))
"""


@pytest.fixture
def foreign(tmp_path):
    """Somebody's module with somebody's weights, and images of their own."""
    (tmp_path / "theirs.py").write_text(FOREIGN)
    split = generalist.load_dataset("digits").test
    x = split.images[:60].float() / 255
    centres = torch.stack([x[split.labels[:60] == k].mean(0).flatten() for k in range(10)])
    weights = {"fc.weight": 4 * centres, "fc.bias": -2 * centres.square().sum(1)}
    torch.save({"state_dict": weights}, tmp_path / "theirs.pt")
    labels = split.labels[:60].numpy()
    np.savez(tmp_path / "theirs.npz", x_train=x.numpy(), y_train=labels, x_test=x.numpy(), y_test=labels)
    return tmp_path


def arguments(*more):
    base = ["eval", "--model", "theirs:Net", "--weights", "theirs.pt"]
    return [*base, "--data", "theirs.npz", "--threat", "linf:1/20", "--threat", "l2:1/4", *more]


def environment(folder):
    return {"GENERALIST_CACHE": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}


def test_anybodys_model_is_attacked_from_the_command_line(foreign):
    given = arguments("--suite", "quick", "--save-adv", "adv.npz", "--json", "record.json")
    done = subprocess.run(
        [sys.executable, "-m", "generalist", *given],
        cwd=foreign,
        env={**os.environ, **environment(foreign)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "theirs:Net" in done.stdout
    (record,) = json.loads((foreign / "record.json").read_text()).values()
    assert record["images"] == 60
    adv = np.load(foreign / "adv.npz")
    assert adv["threats"].tolist() == ["linf:1/20", "l2:1/4"]
    assert np.abs(adv["x_adv_0"] - np.load(foreign / "theirs.npz")["x_test"]).max() <= 0.05 + 1e-5
    assert 100 * adv["robust_0"].mean() == pytest.approx(record["accuracy"]["linf:1/20"]["quick"], abs=0.01)


def test_killed_and_run_again_it_goes_on(foreign):
    (foreign / "mine.yaml").write_text(
        "attacks: [{attack: apgd-ce, steps: 9}, {attack: fab-t, steps: 9, targets: 2}, {attack: square, queries: 99}]"
    )
    log, cache = foreign / "log", foreign / "cache"

    def start(name):
        given = arguments("--suite", "mine.yaml", "--batch-size", "12", "--json", f"{name}.json")
        return forked_command(given, log, folder=foreign, **environment(foreign))

    assert exit_code(start("reference")) == 0, log.read_text()
    for path in cache.glob("*"):
        path.unlink()
    child, deadline = start("killed"), time.monotonic() + 60
    while not any(path.stat().st_size for path in cache.glob("*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    assert exit_code(child) == -signal.SIGKILL, "ended before it was killed"
    rows = sum(len(path.read_text().splitlines()) for path in cache.glob("*.jsonl"))
    assert exit_code(start("again")) == 0, log.read_text()
    (ours,), (theirs,) = (
        json.loads((foreign / f"{name}.json").read_text()).values() for name in ("again", "reference")
    )
    assert rows > 0
    assert ours["per_image"] == theirs["per_image"]
    assert ours["accuracy"] == theirs["accuracy"]
