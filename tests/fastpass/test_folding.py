import gc
import weakref
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from generalist.fastpass.folding import _shadows, fold_batchnorm, folded, refresh_
from model_cases import NAMES, disturb_, images, narrow


def disturbed(name: str, **options: object) -> nn.Module:
    model = narrow(name, mean=[0.5] * 3, std=[0.25] * 3, **options)
    disturb_(model)
    return model


def evaluated(model: nn.Module, x: Tensor) -> Tensor:
    return deepcopy(model).eval()(x)


def close(a: Tensor, b: Tensor) -> bool:
    bound = 1e-4 if a.dtype == torch.float32 else 1e-10
    return bool((a - b).abs().max() <= bound * b.abs().max())


def norms(model: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shadow_computes_what_the_model_does(name, dtype):
    model = disturbed(name).to(dtype)
    x = images().to(dtype)
    shadow = folded(model)
    assert shadow is not model
    assert norms(shadow) < norms(model)
    assert close(shadow(x), evaluated(model, x))


def test_all_of_a_resnet_folds():
    assert norms(folded(disturbed("resnet50"))) == 0


@pytest.mark.parametrize("name", NAMES)
def test_input_gradients_are_equal(name):
    model = disturbed(name).double()
    gradients = []
    for network in (folded(model), deepcopy(model).eval()):
        x = images().double().requires_grad_()
        network(x).square().sum().backward()
        gradients.append(x.grad)
    assert close(gradients[0], gradients[1])


@pytest.mark.parametrize("name", ["resnet18", "wrn-16-2"])
def test_shadow_follows_the_model(name):
    model = disturbed(name)
    shadow = folded(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        model(images(4)).square().mean().backward()
        optimizer.step()
        assert folded(model) is shadow
        assert close(shadow(images()), evaluated(model, images()))


def test_shadow_follows_tensors_that_are_replaced():
    model = disturbed("small_cnn")
    shadow = folded(model)
    model.network.conv2.weight = nn.Parameter(model.network.conv2.weight.detach() * 2)
    model.network.fc.weight.data = model.network.fc.weight.data * 2
    model.network.bn1.running_mean = model.network.bn1.running_mean + 1
    assert folded(model) is shadow
    assert close(shadow(images()), evaluated(model, images()))
    model.load_state_dict(disturbed("small_cnn", seed=5).state_dict(), assign=True)
    assert close(folded(model)(images()), evaluated(model, images()))


def test_refresh_is_explicit_for_a_shadow_of_ones_own():
    model = disturbed("small_cnn")
    shadow = fold_batchnorm(model)
    assert shadow is not None
    disturb_(model, seed=1)
    refresh_(shadow, model)
    assert close(shadow(images()), evaluated(model, images()))


def test_the_model_is_left_alone():
    model = disturbed("preact_resnet18").train()
    model.network.layer1.eval()
    model.network.fc.bias.requires_grad_(False)
    model(images()).sum().backward()
    before = deepcopy(model)
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    rng = torch.get_rng_state()
    for _ in range(2):
        shadow = folded(model)
        x = images().requires_grad_()
        shadow(x).sum().backward()
    assert torch.equal(torch.get_rng_state(), rng)
    for (key, old), new in zip(before.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(old, new), key
    assert [m.training for m in before.modules()] == [m.training for m in model.modules()]
    for old, new, gradient in zip(before.parameters(), model.parameters(), gradients, strict=True):
        assert old.requires_grad == new.requires_grad
        assert new.grad is None if gradient is None else torch.equal(new.grad, gradient)


def test_shadow_is_frozen_shares_memory_and_stays_channels_last():
    model = disturbed("resnet18")
    shadow = folded(model)
    assert not any(module.training for module in shadow.modules())
    assert not any(parameter.requires_grad for parameter in shadow.parameters())
    assert shadow.network.fc.weight.data_ptr() == model.network.fc.weight.data_ptr()
    assert shadow.network.conv1.weight.data_ptr() != model.network.conv1.weight.data_ptr()
    assert shadow.network.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert type(shadow) is type(model)


def test_a_shadow_made_in_inference_mode_carries_gradients():
    model = disturbed("small_cnn")
    with torch.inference_mode():
        shadow = folded(model)
    x = images().requires_grad_()
    folded(model)(x).sum().backward()
    assert folded(model) is shadow
    assert x.grad is not None


def test_copies_and_conversions_do_not_confuse_the_cache():
    model = disturbed("small_cnn")
    first = folded(model)
    twin = deepcopy(model)
    disturb_(twin, seed=9)
    assert folded(twin) is not first
    assert close(folded(twin)(images()), evaluated(twin, images()))
    assert close(folded(model)(images()), evaluated(model, images()))
    model.double()
    x = images().double()
    assert folded(model) is not first
    assert close(folded(model)(x), evaluated(model, x))
    assert folded(folded(model)) is folded(model)


def test_a_changed_structure_or_attribute_is_noticed():
    model = disturbed("small_cnn")
    folded(model)
    model.network.relu = nn.ELU()
    assert close(folded(model)(images()), evaluated(model, images()))
    model.network.relu.alpha = 0.3
    assert close(folded(model)(images()), evaluated(model, images()))
    model.network.fc = nn.Linear(16, 7)
    assert folded(model)(images()).shape == (2, 7)


def test_cache_lets_models_go():
    model = disturbed("small_cnn")
    folded(model)
    known, gone = len(_shadows), weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert len(_shadows) < known


class Net(nn.Module):
    """Convolution and BatchNorm, to be used in every wrong way."""

    def __init__(self, *, bias: bool = True, **norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=bias)
        self.bn = nn.BatchNorm2d(3, **norm)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)).mean((2, 3))


class Twice(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(self.bn(self.conv(x)))).mean((2, 3))


class Branches(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return (self.bn(x) + x).mean((2, 3))


class Untraceable(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class ReadsWeight(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.conv.weight.sum()


class ReadsEps(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.bn.eps


class Uncopyable(Net):
    def __deepcopy__(self, memo: object) -> "Net":
        raise RuntimeError("no")


class Scaled(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Subclassed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.conv = Scaled(3, 3, 3)


class NoNorm(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


class Optional(Net):
    """Reads a second argument that calls leave out."""

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        x = self.conv(x)
        if other is not None:
            x = x + other
        x = self.bn(x)
        return (x if self.training else x * 2).mean((2, 3))


def hooked() -> nn.Module:
    model = Net()
    model.conv.register_forward_hook(lambda module, inputs, output: output + 1)
    return model


def parametrized() -> nn.Module:
    model = Net()
    weight_norm(model.conv)
    return model


@pytest.mark.parametrize(
    "make",
    [
        Twice,
        Branches,
        Untraceable,
        ReadsWeight,
        ReadsEps,
        Uncopyable,
        Subclassed,
        NoNorm,
        hooked,
        parametrized,
        lambda: Net(track_running_stats=False),
    ],
)
def test_what_cannot_fold_falls_back(make):
    model = make()
    assert fold_batchnorm(model) is None
    assert folded(model) is model
    assert folded(model) is model


@pytest.mark.parametrize(
    "model", [Net(), Net(bias=False), Net(affine=False), Net(bias=False, affine=False), Optional()], ids=str
)
def test_every_kind_of_pair_folds(model):
    disturb_(model)
    shadow = folded(model)
    assert norms(shadow) == 0
    assert close(shadow(images()), evaluated(model, images()))
    assert norms(model) == 1


def test_a_hook_that_comes_later_is_honoured():
    model = Net()
    assert folded(model) is not model
    handle = model.conv.register_forward_pre_hook(lambda module, inputs: None)
    assert folded(model) is model
    handle.remove()
    assert folded(model) is not model


def test_a_batchnorm_registered_twice_is_gone_from_both_places():
    model = Net()
    model.alias = model.bn
    disturb_(model)
    assert norms(folded(model)) == 0
    assert close(folded(model)(images()), evaluated(model, images()))


@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_registered_twice_is_folded_and_the_models_own_left_alone(bias):
    model = Net(bias=bias)
    model.alias = nn.ModuleList([model.conv])
    disturb_(model)
    before = deepcopy(model.state_dict())
    for _ in range(3):
        assert norms(folded(model)) == 0
        assert close(folded(model)(images()), evaluated(model, images()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_folds_in_single(dtype):
    model = disturbed("small_cnn").to(dtype)
    x = images().to(dtype)
    expected = deepcopy(model).float().eval()(x.float())
    assert (folded(model)(x).float() - expected).abs().max() <= 0.05 * expected.abs().max()


class Switched(nn.Module):
    """What it computes hangs on a value inside a dictionary."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.settings = (
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            {"flip": False, "more": [1, (2, 3)]},
        )

    def forward(self, x):
        x = x.flip(3) if self.settings["flip"] else x
        return self.norm(self.conv(x)).mean((2, 3))


def test_a_shadow_follows_what_is_inside_attributes():
    model, x = Switched().eval(), torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    first = folded(model)
    assert first is not model
    assert folded(model) is first
    model.settings["flip"] = True
    torch.testing.assert_close(folded(model)(x), model(x))
    assert not torch.allclose(first(x), model(x))
    model.settings["more"] = object()  # which cannot be compared: every shadow is a new one
    assert folded(model) is not folded(model)
