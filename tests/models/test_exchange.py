"""Models as files for other programs: the same logits for any number of images, or an error."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from generalist import RunError, UserError, build_model
from generalist.models.exchange import example_images, from_onnx, from_pt2, largest_difference, to_onnx, to_pt2
from generalist.models.normalize import Normalize
from generalist.models.spec import Classifier

NETWORKS = {
    "small_cnn": {"channels": 1, "size": 8, "width": 2, "mean": [0.3], "std": [0.4]},
    "resnet18": {"channels": 3, "size": 16, "width": 2, "mean": [0.3] * 3, "std": [0.4] * 3},
    "wrn-10-1": {"channels": 3, "size": 16, "width": 2},
}


def network(name: str) -> Classifier:
    """With statistics that normalisation and BatchNorm both matter for."""
    model = build_model(name, classes=4, **NETWORKS[name])
    model.train()
    model(torch.rand(8, NETWORKS[name]["channels"], NETWORKS[name]["size"], NETWORKS[name]["size"]))
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_pt2_has_the_same_logits_for_any_number_of_images(name: str) -> None:
    model = network(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = from_pt2(to_pt2(model))
    assert largest_difference(model, again, what="it") < 1e-5
    assert model.training  # it was copied, not changed
    model.eval()
    x = example_images(model, 11)
    assert torch.allclose(again(x), model(x), atol=1e-5)
    x.requires_grad_()
    again(x).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0  # so it can be attacked


def test_onnx_has_the_same_logits_for_any_number_of_images(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    model = network("resnet18").eval()
    again = from_onnx(to_onnx(model))
    assert largest_difference(model, again, what="it") < 1e-4
    x = example_images(model, 11)
    assert torch.allclose(again(x), model(x), atol=1e-4)
    assert capfd.readouterr() == ("", "")  # torch's exporter likes to talk


def test_float64_stays_float64() -> None:
    model = network("small_cnn").double().eval()
    assert example_images(model, 2).dtype == torch.float64
    assert largest_difference(model, from_pt2(to_pt2(model)), what="it") < 1e-12


def test_other_logits_other_shapes_and_fixed_batches_are_refused() -> None:
    model = network("small_cnn").eval()
    unnormalised = Classifier(normalize=nn.Identity(), network=model.network, spec=model.spec).eval()
    with pytest.raises(
        RunError, match=r"^a.pt2 gives other logits than the model \(they differ by [\d.]+\); nothing was"
    ):
        largest_difference(model, unnormalised, what="a.pt2")
    with pytest.raises(RunError, match="gives other logits"):
        largest_difference(model, lambda x: model(x)[:, :2], what="a.pt2")
    with pytest.raises(RunError, match="differ by nan"):
        largest_difference(model, lambda x: model(x) * float("nan"), what="a.pt2")

    def of_two(x: Tensor) -> Tensor:
        if len(x) != 2:
            raise ValueError("two images\nonly")
        return model(x)

    with pytest.raises(RunError, match=r"a.pt2 does not take 1 images: two images; nothing was written"):
        largest_difference(model, of_two, what="a.pt2")


class Untraceable(nn.Module):
    """Branches on its input, which no graph can hold."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) if x.sum() > 0 else x.flatten(1) * 2


@pytest.mark.parametrize(("convert", "what"), [(to_pt2, "pt2"), (to_onnx, "ONNX")])
def test_a_network_that_cannot_be_traced_is_one_line(convert, what: str) -> None:
    if what == "ONNX":
        pytest.importorskip("onnxruntime")
    spec = network("small_cnn").spec
    model = Classifier(normalize=Normalize([0.0], [1.0]), network=Untraceable(), spec=spec)
    with pytest.raises(UserError, match=f"this network cannot be exported as {what} .*safetensors takes any") as caught:
        convert(model)
    assert "\n" not in str(caught.value)
