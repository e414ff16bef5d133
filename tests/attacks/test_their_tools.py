"""A trained model needs no adapter in other people's tools, nor their modules in ours, and the attacks agree.

`generalist.load` gives a module that takes images in [0, 1], in eval mode, with its normalisation inside. That is what
foolbox, ART and torchattacks ask for.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import generalist
from generalist import Threat, attacks
from oracles import robust_accuracy, robust_digits

COUNT, STEPS = 300, 20
POINTS = 2.0  # of robust accuracy: random starts differ
THREATS = [Threat.parse("linf:1/5"), Threat.parse("l2:3/4")]
Attack = Callable[[nn.Module, Tensor, Tensor, Threat], Tensor]


def by_foolbox(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    foolbox = pytest.importorskip("foolbox")
    kind = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD}[threat.norm]
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _, x_adv, _ = kind(rel_stepsize=0.25, steps=STEPS)(wrapped, x, y, epsilons=threat.radius)
    return x_adv


def by_art(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    evasion = pytest.importorskip("art.attacks.evasion")
    estimators = pytest.importorskip("art.estimators.classification")
    classifier = estimators.PyTorchClassifier(
        model, loss=nn.CrossEntropyLoss(), input_shape=tuple(x.shape[1:]), nb_classes=10, clip_values=(0, 1),
        device_type="cpu",
    )  # fmt: skip
    norm = {"linf": "inf", "l2": 2}[threat.norm]
    attack = evasion.ProjectedGradientDescent(
        classifier, norm=norm, eps=threat.radius, eps_step=threat.radius / 4, max_iter=STEPS, num_random_init=1,
        batch_size=len(x), verbose=False,
    )  # fmt: skip
    return torch.from_numpy(attack.generate(x.numpy(), y.numpy()))


def by_torchattacks(model: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    torchattacks = pytest.importorskip("torchattacks")
    kind = {"linf": torchattacks.PGD, "l2": torchattacks.PGDL2}[threat.norm]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x_adv: Tensor = kind(model, eps=threat.radius, alpha=threat.radius / 4, steps=STEPS)(x, y)
    return x_adv


THEIRS = {"foolbox": by_foolbox, "art": by_art, "torchattacks": by_torchattacks}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, nn.Module]:
    """Robust models as a user has them: loaded from a file."""
    folder = tmp_path_factory.mktemp("models")
    return {
        norm: generalist.load(generalist.save_model(robust_digits(norm).model, folder / norm))
        for norm in ("linf", "l2")
    }


@pytest.mark.parametrize("threat", THREATS, ids=str)
@pytest.mark.parametrize("tool", THEIRS)
def test_their_pgd_finds_on_our_model_what_ours_finds(tool: str, threat: Threat, ours: dict[str, nn.Module]) -> None:
    model = ours[threat.norm]
    _, x, y = robust_digits(threat.norm).first(COUNT)
    x_adv = THEIRS[tool](model, x, y, threat)
    assert not model.training
    assert threat.size(x_adv - x).max() <= threat.radius * (1 + 1e-4)
    theirs = robust_accuracy(model, x_adv, y)
    own = robust_accuracy(model, attacks.pgd(model, x, y, threat=threat, steps=STEPS), y)
    assert theirs == pytest.approx(own, abs=POINTS)
    assert 10 < own < robust_accuracy(model, x, y) - 10  # something was at stake


class Theirs(nn.Module):
    """A plain module of somebody else, its normalisation inside, as these tools want it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.network((x - self.mean) * 2)
        return scores


@pytest.fixture(scope="module")
def theirs() -> nn.Module:
    """Trained on digits by a loop of its own."""
    x, y = robust_digits("linf").x[:800], robust_digits("linf").y[:800]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
        model = Theirs(layers)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.eval()


@pytest.mark.parametrize("tool", THEIRS)
def test_our_evaluation_of_their_module_agrees_with_their_own(tool: str, theirs: nn.Module) -> None:
    threat = Threat.parse("linf:1/8")
    x, y = robust_digits("linf").x[800:1100], robust_digits("linf").y[800:1100]
    record = generalist.evaluate(theirs, (x, y), threats=threat).record()
    assert record["natural"] == pytest.approx(robust_accuracy(theirs, x, y), abs=0.01)
    own = record["accuracy"][str(threat)]["PGD20"]
    assert robust_accuracy(theirs, THEIRS[tool](theirs, x, y, threat), y) == pytest.approx(own, abs=POINTS)
    assert 10 < own < record["natural"] - 10


def test_a_program_of_torch_export_is_evaluated_like_the_model_that_it_is_of(
    ours: dict[str, nn.Module], tmp_path: Path
) -> None:
    """Its mode is traced in: it refuses `eval()`."""
    path = generalist.save_model(ours["linf"], tmp_path / "mine")
    program = torch.export.load(generalist.export(path, "pt2", out=tmp_path / "mine.pt2").path).module()
    _, x, y = robust_digits("linf").first(60)
    records = [generalist.evaluate(one, (x, y), threats="linf:1/5").record() for one in (ours["linf"], program)]
    assert records[0]["accuracy"] == records[1]["accuracy"]
    assert program.training  # as it was
