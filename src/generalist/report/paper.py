"""The numbers that the papers print, and which of them may stand beside ours."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from generalist.core.errors import unknown
from generalist.core.names import MEAN

Metrics = Mapping[str, float]

PAPERS = {"generalist++": "Generalist++", "cvpr23": "Generalist (CVPR 2023)"}

PAPER_NAMES: Mapping[str, tuple[str, ...]] = {
    "nt": ("NT",),
    "at": ("AT", "AT (beta=1)"),
    "half": ("AT (NT+linf)", "AT (beta=1/2)"),
    "trades": ("TRADES (lambda=6)",),
    "trades-1": ("TRADES (beta=1)", "TRADES (lambda=1)"),
    "fat": ("FAT",),
    "iat": ("IAT",),
    "rst": ("RST",),
    "score": ("SCORE",),
    "agr": ("AGR",),
    "part": ("PART",),
    "avg": ("AT (linf+l2)",),
    "msd": ("MSD",),
    "e-at": ("E-AT",),
    "rmc": ("RMC",),
    "fast-at": ("Fast-AT",),
    **dict.fromkeys(
        ("generalist-d-natural", "generalist-d-natural-code"),
        ("Generalist-D (NT+linf)", "Generalist", "Generalist (serial)"),
    ),
    **dict.fromkeys(("generalist-d-norms", "generalist-d-norms-code"), ("Generalist-D (linf+l2)",)),
    **dict.fromkeys(("generalist-t", "generalist-t-code"), ("Generalist-T (NT+linf+l2)",)),
}
"""Our method → its names in the papers; the other methods have none.

A bare TRADES (tables 2 and 4) does not say its λ, so it is nobody's.
"""

NETWORKS: Mapping[str, tuple[str, int]] = {
    "resnet18": ("resnet18", 64),
    "resnet50": ("resnet50", 64),
    "wrn-32-10": ("wrn32-10", 16),
    "wide_resnet50_2": ("wrn50-2", 64),
}
"""Our network → its name in the papers, and the width that they mean."""

RADII: Mapping[str, Mapping[str, str]] = {
    "cifar10": {"linf": "8/255", "l2": "128/255"},
    "cifar100": {"linf": "8/255", "l2": "128/255"},
    "svhn": {"linf": "8/255"},
    "mnist": {"linf": "3/10"},
    "imagenet": {"linf": "4/255", "l2": "64/255"},
}
PAPER_SUITES = ("pgd20", "autoattack", "paper")
"""Whose columns are the papers' attacks; in another suite the same label may mean another attack."""


@dataclass(frozen=True)
class PaperTable:
    """`rows[dataset, network][method]` is what the paper prints, by metric."""

    title: str
    rows: Mapping[tuple[str, str], Mapping[str, Metrics]]

    @property
    def is_ood(self) -> bool:
        """Whether it is about corruptions and perturbation sequences (CIFAR-10-C, CIFAR-10-P)."""
        return all(dataset.endswith(("-c", "-p")) for dataset, _ in self.rows)

    def about(self) -> str:
        return " or ".join(f"{dataset} with {network}" for dataset, network in self.rows)


@cache
def _tables() -> Mapping[str, PaperTable]:
    titles: dict[str, str] = {}
    tables: dict[str, dict[tuple[str, str], dict[str, dict[str, float]]]] = {}
    with (resources.files("generalist.report") / "paper_tables.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            titles[row["table"]] = f"{PAPERS[row['source']]}, table {row['table']}"
            methods = tables.setdefault(row["table"], {}).setdefault((row["dataset"], row["arch"]), {})
            methods.setdefault(row["method"], {})[row["metric"]] = float(row["value"])
    return {name: PaperTable(titles[name], rows) for name, rows in tables.items()}


def paper_table(name: str) -> PaperTable:
    """A table by the number that the paper gives it: I to IV (Generalist++), 1a to 5 (CVPR 2023)."""
    tables = _tables()
    found = next((known for known in tables if known.lower() == name.strip().lower()), None)
    if found is None:
        raise unknown("paper table", name, tables)
    return tables[found]


def paper_tables() -> list[PaperTable]:
    """All of them, in the order of the papers."""
    return list(_tables().values())


def network_of(model: str, width: int | None) -> str | None:
    """The papers' name of a network, where it is the same one."""
    name, usual = NETWORKS.get(model, (None, None))
    return name if width in (None, usual) else None


def metric_names(dataset: str, suite: str, threats: Sequence[str], *, threat: str, attack: str) -> tuple[str, ...]:
    """What the papers call a column of robust accuracy; nothing where attack or radius are not theirs.

    `threat` may be the mean over norms, which is the papers' union; they have no true one.
    """
    norms = {norm: f"{norm}:{eps}" for norm, eps in RADII.get(dataset, {}).items()}
    if suite not in PAPER_SUITES:
        return ()
    if threat == MEAN:
        both = set(threats) == set(norms.values()) and set(norms) == {"linf", "l2"}
        return ("union",) if both and attack == "AA" else ()
    norm = threat.partition(":")[0]
    if norms.get(norm) != threat:
        return ()
    metric = attack.lower()
    return (f"{metric}_{norm}", metric) if norm == "linf" else (f"{metric}_{norm}",)
