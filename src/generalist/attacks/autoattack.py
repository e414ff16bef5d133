"""AutoAttack, standard version (Croce and Hein 2020): four attacks, each on the images the ones before left."""

from collections.abc import Callable

from torch import Tensor, nn

from generalist.attacks.apgd import apgd_ce, apgd_t
from generalist.attacks.fab import fab_t
from generalist.attacks.square import square
from generalist.attacks.view import misclassified
from generalist.core.rng import ImageStreams, image_ids
from generalist.core.threat import Threat

STANDARD: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "APGD_ce": ("apgd-ce", apgd_ce),
    "APGD_t": ("apgd-t", apgd_t),
    "FAB_t": ("fab-t", fab_t),
    "Square": ("square", square),
}
"""Label in tables → name in suites, function; all with their defaults."""


def stage_streams(seed: int, label: str, threat: Threat | str, x: Tensor) -> ImageStreams:
    """The randomness of one stage: it depends on the seed, the stage, the threat and the image, on nothing else.

    Args:
        seed: Any integer.
        label: A key of `STANDARD`, or any other name of a stage.
        threat: Norm and radius, such as `"linf:8/255"`.
        x: Images [B, ...].

    Returns:
        A per-image source of randomness, for the `generator` of an attack.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> x = torch.rand(4, 1, 8, 8)
        >>> streams = attacks.stage_streams(0, "Square", "linf:8/255", x)
        >>> streams.uniform(3).shape
        torch.Size([4, 3])
    """
    return ImageStreams(seed, label, str(Threat.parse(threat)), ids=image_ids(x))


def autoattack(model: nn.Module, x: Tensor, y: Tensor, *, threat: Threat | str, seed: int = 0) -> Tensor:
    """AutoAttack, standard version (Croce and Hein 2020): APGD-CE, APGD-T, FAB-T and Square in cascade.

    Each attack starts from the original images, and works on those that the attacks before it did not break.

    Args:
        model: Maps images [B, ...] to logits [B, K]. It is left as it was: mode, statistics, gradients.
        x: Images [B, ...] in [0, 1].
        y: Labels [B].
        threat: Norm and radius, such as `"linf:8/255"`; the radius is in pixel units.
        seed: Of all randomness. The verdict on an image depends on the seed and the image, not on the batch.

    Returns:
        [B, ...]: a misclassified point of the ball where one was found, elsewhere the image itself.

    Example:
        >>> import torch
        >>> from generalist import attacks
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> x, y = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> x_adv = attacks.autoattack(model, x, y, threat="linf:8/255")
        >>> bool((x_adv - x).abs().max() <= 8 / 255 + 1e-6)
        True
    """
    threat = Threat.parse(threat)
    x_adv = x.detach().clone()
    alive = (~misclassified(model, x, y)).nonzero()[:, 0]
    for label, (_, attack) in STANDARD.items():
        if len(alive) == 0:
            break
        rows, labels = x[alive].detach(), y[alive]
        candidates = attack(model, rows, labels, threat=threat, generator=stage_streams(seed, label, threat, rows))
        wrong = misclassified(model, candidates, labels)
        x_adv[alive[wrong]] = candidates[wrong].to(x.dtype)
        alive = alive[~wrong]
    return x_adv
