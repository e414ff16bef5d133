"""AutoAttack, standard version (Croce and Hein 2020): four attacks, each on what the one before left."""

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


def stage_streams(seed: int, label: str, threat: Threat, x: Tensor) -> ImageStreams:
    """The randomness of one stage: a function of the seed, the stage, the threat and the image alone."""
    return ImageStreams(seed, label, str(threat), ids=image_ids(x))


def autoattack(model: nn.Module, x: Tensor, y: Tensor, *, threat: Threat, seed: int = 0) -> Tensor:
    """APGD-CE, APGD-T, FAB-T, Square in cascade, each from the original image: [B, ...] → [B, ...].

    An image that nothing breaks comes back as it was.
    """
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
