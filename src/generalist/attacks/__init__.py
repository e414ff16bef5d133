"""Attacks, each a plain function (model, x, y, *, threat, …) → x_adv.

criteria  what an attack raises        view  the model as an attack sees it
pgd       PGD and FGSM
"""

from generalist.attacks.criteria import cross_entropy, margin
from generalist.attacks.pgd import fgsm, pgd
from generalist.attacks.view import attack_view, frozen

__all__ = ["attack_view", "cross_entropy", "fgsm", "frozen", "margin", "pgd"]
