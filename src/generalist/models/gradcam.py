"""Grad-CAM (Selvaraju et al. 2017): which pixels speak for a class."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generalist.models.frozen import frozen

_CHANNELS_LAST = (nn.Linear, nn.LayerNorm)
"""Modules whose maps are [B, H, W, C]; those of all others are [B, C, H, W]."""


def gradcam(model: nn.Module, x: Tensor, classes: Tensor | None = None) -> Tensor:
    """Grad-CAM at the last feature map, resized to the images, its maximum 1 in each.

    relu(Σ_c w_c A_c), where A is the feature map and w_c the mean gradient of the class's logit in its channel c.

    Args:
        model: Maps images [N, C, H, W] to logits [N, K]. It is left as it was: mode, statistics, gradients.
        x: Images [N, C, H, W] in [0, 1].
        classes: The class to explain, per image, [N]; the predicted one if not given.

    Returns:
        [N, H, W] in [0, 1], float32. A map is 0 everywhere where nothing speaks for the class.

    Example:
        >>> import generalist, torch
        >>> from generalist.models.gradcam import gradcam
        >>> model = generalist.build_model("small_cnn", classes=10, channels=1, size=8, width=4)
        >>> gradcam(model, torch.rand(2, 1, 8, 8)).shape
        torch.Size([2, 8, 8])
    """
    heat = torch.nan_to_num(activation_map(model, x, classes)[:, 0])
    highest = heat.amax((1, 2), keepdim=True)
    return torch.where(highest > 0, heat / highest.clamp_min(torch.finfo(heat.dtype).tiny), 0.0).clamp_(0, 1)


def activation_map(model: nn.Module, x: Tensor, classes: Tensor | None = None) -> Tensor:
    """Grad-CAM as it is, not scaled: [N, 1, H, W] at the size of the images.

    The feature map is the last one that a module returns and that the logits depend on. A network without feature maps
    has its input as the only one.
    """
    with frozen(model), torch.enable_grad():
        image = x.detach().requires_grad_()
        with _noted_maps(model, rows=len(x)) as maps:
            logits = model(image)
        chosen = logits.max(1).values if classes is None else logits.gather(1, classes[:, None])[:, 0]
        feature, gradient = _last_map([(image, False), *maps], chosen.sum())
    weights = gradient.mean((2, 3), keepdim=True)
    heat = (weights * feature).sum(1, keepdim=True).relu()
    return F.interpolate(heat, size=x.shape[2:], mode="bilinear", align_corners=False)


def _last_map(maps: list[tuple[Tensor, bool]], logit: Tensor) -> tuple[Tensor, Tensor]:
    """The last map that the logit depends on, and the gradient in it: [N, C, H, W] each."""
    for feature, channels_last in reversed(maps):
        (gradient,) = torch.autograd.grad(logit, feature, retain_graph=True, allow_unused=True)
        if gradient is not None:
            both = feature.detach().float(), gradient.float()
            return (both[0].movedim(3, 1), both[1].movedim(3, 1)) if channels_last else both
    image = maps[0][0].detach().float()
    return image, torch.zeros_like(image)


@contextmanager
def _noted_maps(model: nn.Module, *, rows: int) -> Iterator[list[tuple[Tensor, bool]]]:
    """The maps that modules without children return inside the `with` block, and whether their channels are last."""
    maps: list[tuple[Tensor, bool]] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        if not isinstance(output, Tensor) or output.dim() != 4 or len(output) != rows or not output.requires_grad:
            return
        channels_last = type(module) in _CHANNELS_LAST
        height, width = output.shape[1:3] if channels_last else output.shape[2:]
        if height * width > 1:
            maps.append((output, channels_last))

    leaves = [module for module in model.modules() if not any(module.children())]
    hooks = [module.register_forward_hook(note) for module in leaves]
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()
