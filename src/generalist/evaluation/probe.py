"""A model looked at once before it is attacked: what it takes, what it gives, and whether attacks can work on it."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from generalist.attacks import BLACK_BOX, frozen
from generalist.core.errors import UserError
from generalist.evaluation.red_flags import Flag, batch_dependent, checked, not_deterministic, unchanged_rng
from generalist.models import alike

IMAGES = 16


@dataclass(frozen=True)
class Probed:
    """The model to attack, what was done to it (`notes`), and what is wrong with it already (`flags`)."""

    model: nn.Module
    differentiable: bool
    notes: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()


class Adapted(nn.Module):
    """A model behind the interface that attacks know: float32 images of any layout in, float32 logits [B, K] out."""

    def __init__(
        self, model: nn.Module, *, contiguous: bool, copied: bool, dtype: torch.dtype, pick: str | int | None
    ) -> None:
        super().__init__()
        self.model, self.contiguous, self.copied, self.dtype, self.pick = model, contiguous, copied, dtype, pick

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous() if self.contiguous else x
        x = x.clone() if self.copied else x
        out = self.model(x if self.dtype == torch.float32 else x.to(self.dtype))
        return _picked(out, self.pick).float()


def probe(model: nn.Module, x: Tensor, labels: Tensor, *, gradients: bool) -> Probed:
    """The model as it can be attacked on images like x [B, ...], with labels [N]; refused where it cannot be.

    `gradients`: whether any of the attacks to come needs them.
    """
    if any(isinstance(p, nn.UninitializedParameter) for p in model.parameters()):
        raise UserError(
            "the model has lazy layers that were never run; run it on one image, or load its weights, first"
        )
    notes: list[str] = []
    model, dtype = _in_one_precision(model, x, notes)
    with frozen(model), unchanged_rng():
        given = x.contiguous().clone()
        before = given._version
        out = _run(model, given, dtype)
        copied = given._version != before
        if copied:
            notes.append("the model changes its images in place; it is given copies")
        pick = _choice(out, len(x), labels, classes=_known_classes(model))
        if pick is not None:
            notes.append(f"the model returns {_shapes(out)}: {_entry(pick)} is taken for the logits")
        logits = _picked(out, pick)
        _check_logits(logits, len(x), labels)
        # Attacks leave the whole 255ths, and the images that are left are of any number.
        _run(model, (0.99 * torch.cat([x, x[:1]])).contiguous(), dtype)
        if logits.dtype != torch.float32 and dtype == torch.float32:
            notes.append(f"the model's logits are {_name(logits.dtype)}; they are cast to float32")
        contiguous = not _takes_channels_last(model, x, dtype, pick, logits)
        changed = contiguous or copied or pick is not None or {dtype, logits.dtype} != {torch.float32}
        adapted = model
        if changed:
            adapted = Adapted(model, contiguous=contiguous, copied=copied, dtype=dtype, pick=pick)
        reason = _no_gradient(adapted, x)
    if reason and gradients:
        raise UserError(
            f"the logits have no gradient with respect to the images ({reason}); gradient attacks cannot work on this "
            f"model: remove no_grad, detach or numpy from its forward, or give a suite of black-box attacks "
            f"({', '.join(BLACK_BOX)})"
        )
    with frozen(adapted):
        flags = [
            checked("not_deterministic", lambda: not_deterministic(adapted, x)),
            checked("batch_dependent", lambda: batch_dependent(adapted, x)),
        ]
    return Probed(adapted, not reason, tuple(notes), tuple(flag for flag in flags if flag is not None))


def _in_one_precision(model: nn.Module, x: Tensor, notes: list[str]) -> tuple[nn.Module, torch.dtype]:
    """The model and the type of its weights: float64 is run as it is, half precision as a copy in float32.

    One that casts inside may work only as it is.
    """
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if kinds & {torch.float16, torch.bfloat16}:
        names = ", ".join(sorted(_name(kind) for kind in kinds))
        try:
            other = copy.deepcopy(model).float()
            with frozen(other), unchanged_rng(), torch.no_grad():
                other(x.contiguous().clone())
        except Exception:  # whatever a model does in another precision than its own
            notes.append(f"the model's weights are {names}; a copy in float32 fails, so it is attacked as it is")
            return model, torch.float32
        notes.append(f"the model's weights are {names}; a copy in float32 is attacked")
        return other, torch.float32
    if kinds == {torch.float64}:
        notes.append("the model's weights are float64; it is run in float64, its logits are cast to float32")
        return model, torch.float64
    return model, torch.float32


def _run(model: nn.Module, x: Tensor, dtype: torch.dtype) -> Any:
    try:
        with torch.no_grad():
            return model(x.to(dtype))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the model fails on images of shape {list(x.shape)}: {_first_line(error)}") from error


def _choice(out: Any, rows: int, labels: Tensor, *, classes: int | None) -> str | int | None:
    """Which of several outputs are the logits, if that is clear; None where the output is one tensor."""
    if isinstance(out, Tensor):
        return None
    named = _outputs(out)
    if not named:
        raise UserError(f"the model returns a {type(out).__name__}; it must return logits, a tensor [B, K]")
    if "logits" in named:
        return "logits"
    needed = int(labels.max()) + 1
    rows_of = [
        key
        for key, value in named.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 2 and len(value) == rows
    ]
    exact = [key for key in rows_of if named[key].shape[1] == (classes or needed)]
    for found in (exact,) if classes else (rows_of, exact):
        if len(found) == 1:
            return found[0]
    raise UserError(
        f"the model returns {_shapes(out)}: which of them are the logits is not clear; wrap it in a module that "
        f"returns them alone"
    )


def _outputs(out: Any) -> dict[str | int, Any]:
    if isinstance(out, Mapping):
        return {key: value for key, value in out.items() if isinstance(key, str)}
    if isinstance(out, tuple | list):
        return dict(zip(getattr(out, "_fields", range(len(out))), out, strict=True))
    return {"logits": out.logits} if isinstance(getattr(out, "logits", None), Tensor) else {}


def _picked(out: Any, pick: Any) -> Any:
    if pick is None:
        return out
    return out[pick] if isinstance(out, Mapping) or isinstance(pick, int) else getattr(out, pick)


def _check_logits(logits: Any, rows: int, labels: Tensor) -> None:
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = _name(logits.dtype) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise UserError(f"the model returns {kind}; logits are a tensor [B, K] of floats")
    if logits.dim() != 2 or len(logits) != rows:
        raise UserError(
            f"for {rows} images the model returns {list(logits.shape)}; logits are [B, K], here [{rows}, K]"
        )
    low, top = int(labels.min()), int(labels.max())
    if low < 0 or top >= logits.shape[1]:
        wrong = low if low < 0 else top
        raise UserError(
            f"the model tells {logits.shape[1]} classes apart, but there is a label {wrong}; "
            f"labels go from 0 to {logits.shape[1] - 1}"
        )
    bad = ~logits.isfinite()
    if bad.any():
        what = "NaN" if logits.isnan().any() else "infinity"
        count = int(bad.any(1).sum())
        raise UserError(f"the model's logits are {what} for {count} of {rows} clean images; nothing can be said of it")


def _takes_channels_last(
    model: nn.Module, x: Tensor, dtype: torch.dtype, pick: str | int | None, logits: Tensor
) -> bool:
    """Batches are channels-last; a model keeps its own layout unless it gives the same logits on them."""
    try:
        with torch.no_grad():
            other = _picked(model(x.clone(memory_format=torch.channels_last).to(dtype)), pick)
        return alike(logits, other)
    except Exception:
        return False  # whatever it raises, it does not raise it on contiguous images


def _no_gradient(model: nn.Module, x: Tensor) -> str:
    """Why there is no gradient; empty where there is one, be it zero."""
    images = x.detach().clone().requires_grad_()
    try:
        with torch.enable_grad():
            logits = model(images)
            if not logits.requires_grad:
                return "they do not depend on them in any way that autograd has seen"
            torch.autograd.grad(logits.sum(), images)
    except Exception as error:
        return _first_line(error)
    return ""


def _known_classes(model: nn.Module) -> int | None:
    return getattr(getattr(model, "spec", None), "classes", None)


def _shapes(out: Any) -> str:
    def one(value: Any) -> str:
        return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__

    if isinstance(out, Mapping):
        return ", ".join(f"{key} {one(value)}" for key, value in out.items())
    return ", ".join(map(one, out)) if isinstance(out, tuple | list) else type(out).__name__


def _entry(pick: str | int) -> str:
    return f"output {pick}" if isinstance(pick, int) else repr(pick)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
