import pytest
import torch

from generalist.core.errors import UserError
from generalist.models import MODELS, Classifier, ModelSpec, Normalize, build_from_spec, build_model
from model_cases import NAMES, images, narrow


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [1, 3])
def test_logits_are_finite_and_of_the_right_shape(name, batch):
    model = narrow(name).eval()
    logits = model(images(batch))
    assert logits.shape == (batch, 5)
    assert logits.isfinite().all()


def test_small_cnn_takes_the_smallest_digits():
    model = build_model("small_cnn", classes=10, channels=1, size=8)
    assert model(images(1, channels=1, size=8)).shape == (1, 10)


@pytest.mark.parametrize("name", ["resnet18", "preact_resnet18", "wrn-10-1"])
def test_residual_networks_take_small_and_odd_images(name):
    for size in (8, 28, 33):
        assert narrow(name, channels=1, size=size)(images(2, channels=1, size=size)).shape == (2, 5)


@pytest.mark.parametrize("name", NAMES)
def test_backward_reaches_every_parameter(name):
    model = narrow(name)
    x = images(4).requires_grad_()
    model(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", NAMES)
def test_width_shrinks_the_model(name):
    with torch.device("meta"):
        assert count(narrow(name, width=4)) < count(narrow(name, width=8)) < count(build_model(name, classes=5))


@pytest.mark.parametrize("name", NAMES)
def test_weights_depend_on_the_seed_alone(name):
    torch.manual_seed(1)
    first = narrow(name).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    again, other = narrow(name).state_dict(), narrow(name, seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    learned = [key for key in first if first[key].ndim > 1]
    assert not any(torch.equal(first[key], other[key]) for key in learned)


@pytest.mark.parametrize("name", NAMES)
def test_model_is_channels_last_and_carries_its_spec(name):
    model = narrow(name, mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.2])
    assert isinstance(model, Classifier)
    for parameter in model.parameters():
        assert parameter.ndim != 4 or parameter.is_contiguous(memory_format=torch.channels_last)
    assert ModelSpec.from_json(model.spec.to_json()) == model.spec
    rebuilt = build_from_spec(model.spec)
    assert rebuilt.spec == model.spec
    assert torch.equal(rebuilt.eval()(images()), model.eval()(images()))


@pytest.mark.parametrize(
    ("name", "classes", "size", "expected"),
    [
        ("resnet18", 10, 32, 11_173_962),
        ("resnet34", 1000, 224, 21_797_672),
        ("resnet50", 1000, 224, 25_557_032),
        ("wide_resnet50_2", 1000, 224, 68_883_240),
        ("preact_resnet18", 10, 32, 11_171_146 + 1024),
        ("wrn-28-10", 10, 32, 36_479_194),
        ("wrn-34-10", 10, 32, 46_160_474),
    ],
)
def test_parameter_counts_are_the_published_ones(name, classes, size, expected):
    with torch.device("meta"):
        assert count(build_model(name, classes=classes, size=size)) == expected


def test_both_ways_of_counting_a_wide_resnets_layers_agree():
    with torch.device("meta"):
        assert count(build_model("wrn-32-10", classes=10)) == count(build_model("wrn-34-10", classes=10))


@pytest.mark.parametrize("size", [32, 64, 65, 224])
def test_stem_follows_the_image_size(size):
    with torch.device("meta"):
        for name in ("resnet18", "preact_resnet18"):
            kernel = narrow(name, size=size).network.conv1.kernel_size
            assert kernel == ((3, 3) if size <= 64 else (7, 7))
        assert narrow("resnet18", size=32, stem="imagenet").network.conv1.kernel_size == (7, 7)


def test_imagenet_stem_runs():
    for name in ("resnet18", "preact_resnet18", "resnet50"):
        assert narrow(name, size=96).eval()(images(1, size=96)).shape == (1, 5)


def test_dropout_of_a_wide_resnet_is_off_in_eval():
    plain, dropped = narrow("wrn-10-1"), narrow("wrn-10-1", dropout=0.5)
    assert torch.equal(plain.eval()(images()), dropped.eval()(images()))


def test_normalisation_is_inside_and_not_among_the_weights():
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    model, bare = narrow("small_cnn", mean=mean, std=std).eval(), narrow("small_cnn").eval()
    assert model.state_dict().keys() == bare.state_dict().keys()
    x = images()
    shifted = (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(model(x), bare(shifted))
    assert isinstance(model.normalize, Normalize)
    assert model.double().normalize.mean.dtype == torch.float64


def test_every_registered_model_is_tested():
    assert set(MODELS.names()) <= set(NAMES)


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("resnet19", {}, "unknown model 'resnet19'; did you mean 'resnet18'?"),
        ("zzzzz", {}, "wrn-D-K"),
        ("wrn-29-10", {}, "wrn of depth 29"),
        ("wrn-4-1", {}, "wrn of depth 4"),
        ("wrn-28-0", {}, "widening factor"),
        ("wrn-28-x", {}, "unknown model 'wrn-28-x'"),
        ("resnet18", {"width": 0}, "width"),
        ("resnet18", {"stem": "vgg"}, "stem"),
        ("resnet18", {"dropout": 0.1}, "dropout"),
        ("wrn-10-1", {"dropout": 2.0}, "dropout"),
        ("wrn-10-1", {"dropuot": 0.2}, "did you mean 'dropout'?"),
        ("resnet18", {"classes": 0}, "classes=0"),
        ("resnet18", {"channels": 0}, "channels=0"),
        ("small_cnn", {"size": 4}, "size 4"),
        ("small_cnn", {"mean": [0.5] * 3}, "give both"),
        ("small_cnn", {"mean": [0.5], "std": [0.5]}, "mean has 1 values"),
        ("small_cnn", {"mean": [0.5] * 3, "std": [0.5, 0.0, 0.5]}, "above 0"),
        ("small_cnn", {"mean": [float("nan")] * 3, "std": [0.5] * 3}, "finite"),
        ("timm/resnet18", {}, "generalist[timm]"),
    ],
)
def test_mistakes_are_told_in_one_line(name, arguments, told, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)  # as if it were not installed
    with pytest.raises(UserError) as caught:
        build_model(name, **{"classes": 5, **arguments})
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("plain", [{"name": "resnet18"}, {"name": "resnet18", "classes": 3, "clases": 3}])
def test_a_bad_spec_is_told(plain):
    with pytest.raises(UserError, match="classes"):
        ModelSpec.from_json(plain)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1, 4, 7])
def test_gradients_of_the_narrowest_models_are_right(name, width):
    """A guard against the kernels of narrow channels-last convolutions; see resnet.thinning."""
    single = narrow(name, width=width).eval()
    double = narrow(name, width=width).double().eval()
    x = images(2)
    single(x).square().sum().backward()
    double(x.double()).square().sum().backward()
    for (key, given), exact in zip(single.named_parameters(), double.parameters(), strict=True):
        assert (given.grad - exact.grad).norm() <= 0.1 * exact.grad.norm() + 1e-6, key  # a ReLU may flip


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "preact_resnet18"])
def test_a_narrow_strided_shortcut_is_the_wide_ones_equal(name, monkeypatch):
    x, narrowed = images(size=33), narrow(name).eval()
    for block in ("resnet", "preact_resnet"):
        monkeypatch.setattr(f"generalist.models.{block}.thinning", lambda inputs, stride: 1)
    plain = narrow(name).eval()
    pointwise = [m.stride for m in plain.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size == (1, 1)]
    assert (2, 2) in pointwise
    torch.testing.assert_close(narrowed(x), plain(x))
