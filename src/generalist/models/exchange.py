"""A model as one file for other programs, pt2 (torch.export) or ONNX, and the check that it computes the same.

Normalisation is part of the file. The number of images per call is free, all else is fixed.
"""

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from generalist.core.errors import RunError, UserError
from generalist.core.extras import import_extra
from generalist.core.user_code import first_line
from generalist.models.spec import Classifier

IMAGES, LOGITS = "images", "logits"
"""What the input and the output are called in ONNX."""
TOLERANCE = 1e-4  # of the largest logit: rounding in another order
BATCHES = (1, 2, 5)
Predict = Callable[[Tensor], Tensor]


def to_pt2(model: Classifier) -> bytes:
    """The model as `torch.export.save` writes it; `torch.export.load(file).module()` needs nothing but torch."""
    plain, x = _plain(model), example_images(model, 2)
    with _quiet(), _told("pt2"):
        program = torch.export.export(plain, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        file = io.BytesIO()
        torch.export.save(program, file)
    return file.getvalue()


def from_pt2(content: bytes) -> Predict:
    with _quiet():
        module: Predict = torch.export.load(io.BytesIO(content)).module()
    return module


def import_onnx() -> Any:
    """onnxruntime, and what torch makes ONNX files with."""
    for module in ("onnx", "onnxscript"):
        import_extra(module, extra="onnx", needed_by="ONNX")
    return import_extra("onnxruntime", extra="onnx", needed_by="ONNX")


def to_onnx(model: Classifier) -> bytes:
    """The model as one ONNX file, weights included."""
    import_onnx()
    plain, x = _plain(model), example_images(model, 2)
    with _quiet(), _told("ONNX"):
        program: Any = torch.onnx.export(
            plain, (x,), dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), input_names=[IMAGES],
            output_names=[LOGITS], verbose=False,
        )  # fmt: skip
        content: bytes = program.model_proto.SerializeToString()
    return content


def from_onnx(content: bytes) -> Predict:
    """The file in onnxruntime, on the CPU."""
    runtime = import_onnx()
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run([LOGITS], {IMAGES: x.numpy()})[0])


def example_images(model: Classifier, count: int) -> Tensor:
    """Random images [count, C, H, W] in [0, 1] of the model's size and type, always the same."""
    spec, generator = model.spec, torch.Generator().manual_seed(count)
    x = torch.rand(count, spec.channels, spec.size, spec.size, generator=generator)
    return x.to(next((p.dtype for p in model.parameters()), torch.float32))


@torch.no_grad()
def largest_difference(model: Classifier, again: Predict, *, what: str) -> float:
    """Between the logits of a model and of what was loaded back, for several numbers of images.

    Raises:
        RunError: It is more than rounding.
    """
    plain, largest = _plain(model), 0.0
    for count in BATCHES:
        x = example_images(model, count)
        expected = plain(x)
        try:
            found = again(x)
        except Exception as error:
            raise RunError(f"{what} does not take {count} images: {first_line(error)}; nothing was written") from error
        difference = (found - expected).abs().max().item() if found.shape == expected.shape else float("nan")
        if not difference <= TOLERANCE * max(1.0, expected.abs().max().item()):
            raise RunError(
                f"{what} gives other logits than the model (they differ by {difference:.3g}); nothing was written"
            )
        largest = max(largest, difference)
    return largest


def _plain(model: Classifier) -> Classifier:
    """A copy on the CPU in eval mode, its tensors in the usual memory order."""
    made = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    return made.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # missing from torch's stubs


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever goes wrong with somebody's network while it is traced, in one line."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"this network cannot be exported as {what} ({type(error).__name__}: {first_line(error)});"
            " safetensors takes any network"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporters tell much of themselves."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
