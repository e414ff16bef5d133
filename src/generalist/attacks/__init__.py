"""Attacks, each a plain function (model, x, y, *, threat, …) → x_adv.

pgd         PGD with restarts, FGSM       criteria   what an attack raises
mim, cw     momentum; the margin          view       the model as an attack sees it
apgd        APGD-CE, -DLR, -T             survivors  early exit of misclassified images
fab, fmn    minimal distances             square     random search, no gradients
autoattack  the standard cascade of APGD-CE, APGD-T, FAB-T and Square

`threat` is a `Threat` or text such as "linf:8/255", everywhere.
"""

from collections.abc import Callable

from torch import Tensor

from generalist.attacks.apgd import apgd, apgd_ce, apgd_dlr, apgd_t
from generalist.attacks.autoattack import STANDARD, autoattack, stage_streams
from generalist.attacks.criteria import cross_entropy, kl, margin
from generalist.attacks.cw import cw
from generalist.attacks.fab import fab_distance, fab_t
from generalist.attacks.fmn import fmn, fmn_distance
from generalist.attacks.mim import mim
from generalist.attacks.pgd import ascend, fgsm, pgd
from generalist.attacks.progress import watched
from generalist.attacks.square import square
from generalist.attacks.view import attack_view, counted_passes, loss_and_gradient, loss_scale, misclassified
from generalist.core.registry import Registry
from generalist.models.frozen import frozen

ATTACKS: Registry[Callable[..., Tensor]] = Registry(
    "attack",
    runtime=("threat", "generator", "criterion", "start"),
    called="model, x, y, *, threat, generator",
)
"""Attacks by the names that suites use. Their other keyword-only arguments are the fields of a suite's stage."""

_NAMED: dict[str, Callable[..., Tensor]] = {"pgd": pgd, "mim": mim, "cw": cw, "apgd-dlr": apgd_dlr, "fmn": fmn}
for _name, _attack in [*_NAMED.items(), *STANDARD.values()]:
    ATTACKS.register(_name)(_attack)

BLACK_BOX = ("square",)
"""The attacks that use no gradient."""

__all__ = [
    "ATTACKS",
    "BLACK_BOX",
    "STANDARD",
    "apgd",
    "apgd_ce",
    "apgd_dlr",
    "apgd_t",
    "ascend",
    "attack_view",
    "autoattack",
    "counted_passes",
    "cross_entropy",
    "cw",
    "fab_distance",
    "fab_t",
    "fgsm",
    "fmn",
    "fmn_distance",
    "frozen",
    "kl",
    "loss_and_gradient",
    "loss_scale",
    "margin",
    "mim",
    "misclassified",
    "pgd",
    "square",
    "stage_streams",
    "watched",
]
