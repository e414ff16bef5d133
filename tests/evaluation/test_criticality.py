"""How much the adversarial loss can rise when one part of the weights is moved."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from generalist import build_model
from generalist.core.rng import generator
from generalist.evaluation.criticality import robust_criticality
from generalist.models.modules import blocks


class WithIdlePart(nn.Module):
    """The loss does not depend on `idle`, and on `silent` only by a gradient that is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.idle, self.silent = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + 0.0 * self.silent(x)


def images(count: int = 12) -> tuple[Tensor, Tensor]:
    return torch.rand(count, 3, 8, 8, generator=generator("x")), torch.arange(count) % 10


@pytest.mark.parametrize("part", ["idle", "silent"])
def test_a_part_that_the_loss_does_not_depend_on_has_none(part: str) -> None:
    x, y = torch.rand(6, 4, generator=generator("x")), torch.arange(6) % 3
    model = WithIdlePart()
    assert robust_criticality(model, [f"{part}.weight", f"{part}.bias"], x, y) == 0.0
    assert robust_criticality(model, ["head.weight"], x, y) > 0.0


def test_the_rise_is_that_of_the_best_point_of_the_ball() -> None:
    """For a linear loss of two logits the best point is known: along the gradient, on the sphere."""
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    x, y = torch.tensor([[0.5, 0.2, 0.1]]), torch.tensor([0])
    before = F.cross_entropy(model(x), y)
    direction = torch.cat([-x, x])  # logit 0 down, logit 1 up
    best = model.weight + 0.1 * model.weight.norm() * direction / direction.norm()
    rise = F.cross_entropy(x @ best.T, y) - before
    assert robust_criticality(model, ["weight"], x, y, radius=0.1) == pytest.approx(rise.item(), rel=1e-4)


def test_a_wider_ball_allows_more_and_the_model_stays_as_it_was() -> None:
    model, (x, y) = build_model("small_cnn", classes=10, size=8, width=2).train(), images()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rises = [robust_criticality(model, blocks(model)["conv3"], x, y, radius=radius) for radius in (0.01, 0.1, 0.3)]
    assert 0 < rises[0] < rises[1] < rises[2]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_it_does_not_depend_on_the_scale_of_weights_before_a_batchnorm_nor_on_the_batch_size() -> None:
    model, (x, y) = build_model("small_cnn", classes=10, size=8, width=2), images(40)
    names = blocks(model)["conv3"]
    first = robust_criticality(model, names, x, y)
    assert robust_criticality(model, names, x, y, batch_size=16) == pytest.approx(first, rel=1e-4)
    with torch.no_grad():  # the same network, written differently
        model.network.conv3.weight.mul_(8.0)
        model.network.bn3.running_mean.mul_(8.0)
        model.network.bn3.running_var.mul_(64.0).add_(63 * model.network.bn3.eps)
    assert robust_criticality(model, names, x, y) == pytest.approx(first, rel=1e-3)
