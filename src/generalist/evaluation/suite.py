"""Which attacks make an evaluation, and which columns its table has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generalist.attacks import ATTACKS, STANDARD
from generalist.core.errors import UserError, shown, unknown
from generalist.core.files import LONGEST_NAME, file_name, read_text, user_path
from generalist.core.names import SUITE_NAMES
from generalist.core.yaml_text import parse_yaml


@dataclass(frozen=True)
class Stage:
    """One attack with its fields, complete; `label` is its name in tables and records."""

    label: str
    attack: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def spec(self) -> dict[str, Any]:
        return {"attack": self.attack, **{key: _plain(value) for key, value in sorted(self.options.items())}}


@dataclass(frozen=True)
class Suite:
    """Stages in their order. A cascade spares later stages what an earlier one broke; otherwise each stands alone.

    A column is robust where all of its stages are survived.
    """

    name: str
    stages: tuple[Stage, ...]
    columns: Mapping[str, tuple[str, ...]]
    cascade: bool = True


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool | None) else str(value)


def _stage(label: str, attack: str, **options: Any) -> Stage:
    return Stage(label, attack, ATTACKS.check(attack, options))


AA = tuple(STANDARD)


def _standard() -> tuple[Stage, ...]:
    """AutoAttack's standard version, with its budgets."""
    return tuple(_stage(label, attack) for label, (attack, _) in STANDARD.items())


def _shipped() -> dict[str, Suite]:
    ce, targeted, *_ = _standard()
    pgd20 = _stage("PGD20", "pgd", steps=20)
    paper = (
        pgd20,
        _stage("PGD100", "pgd", steps=100),
        _stage("MIM", "mim"),
        _stage("CW", "cw"),
        ce,
        _stage("APGD_dlr", "apgd-dlr"),
        *_standard()[1:],
    )
    alone = {stage.label: (stage.label,) for stage in paper}
    suites = (
        Suite("pgd20", (pgd20,), {"PGD20": ("PGD20",)}),
        Suite("quick", (ce, targeted), {"quick": ("APGD_ce", "APGD_t")}),
        Suite("paper", paper, {**alone, "AA": AA}, cascade=False),
        Suite("autoattack", _standard(), {"AA": AA}),
    )
    return {suite.name: suite for suite in suites}


MOST_ATTACKS = 100


def load_suite(name_or_path: str | Path) -> Suite:
    """A shipped suite's name, or a YAML file:

    name: mine
    cascade: true
    attacks:
      - {attack: pgd, steps: 50, restarts: 5, label: PGD50x5}
      - square
    """
    shipped = _shipped()
    if str(name_or_path) in shipped:
        return shipped[str(name_or_path)]
    path = user_path(name_or_path)
    if not path.exists():
        raise unknown("suite", str(name_or_path), shipped)
    return _parse(parse_yaml(read_text(path), str(path)), path)


def _parse(raw: Any, path: Path) -> Suite:
    if not isinstance(raw, dict) or not isinstance(raw.get("attacks"), list) or not raw["attacks"]:
        raise UserError(f"{path}: a suite is a mapping with a list of `attacks`")
    if len(raw["attacks"]) > MOST_ATTACKS:
        raise UserError(f"{path}: a suite has at most {MOST_ATTACKS} attacks, got {len(raw['attacks'])}")
    for key in raw:
        if key not in ("name", "cascade", "attacks"):
            raise unknown(f"field of suite {path}:", str(key), ("name", "cascade", "attacks"))
    stages = []
    for entry in raw["attacks"]:
        if not isinstance(entry, str | dict):
            raise UserError(f"{path}: an attack is a name or a mapping with `attack`, got {shown(entry)}")
        options = {"attack": entry} if isinstance(entry, str) else dict(entry)
        if "attack" not in options:
            raise UserError(f"{path}: each entry needs `attack`, one of {', '.join(ATTACKS.names())}")
        attack = options.pop("attack")
        label = options.pop("label", attack)
        checked = ATTACKS.check(attack, options)
        if not isinstance(label, str) or not 0 < len(label) <= LONGEST_NAME or not label.isprintable():
            raise UserError(f"{path}: a label is 1 to {LONGEST_NAME} printable characters, got {shown(label)}")
        stages.append(Stage(label, attack, checked))
    labels = [stage.label for stage in stages]
    if len(set(labels)) < len(labels):
        raise UserError(f"{path}: two attacks share a label; give each its own `label`")
    name, cascade = file_name(raw.get("name", path.stem), f"{path}: name"), raw.get("cascade", True)
    if name in SUITE_NAMES:
        raise UserError(f"{path}: {shown(name)} is the name of a shipped suite; give this one another `name`")
    if not isinstance(cascade, bool):
        raise UserError(f"{path}: cascade is true or false, got {shown(cascade)}")
    if name in labels and len(labels) > 1 and not cascade:
        raise UserError(f"{path}: an attack and the suite are both called {shown(name)}; give one another name")
    columns = {} if cascade else {label: (label,) for label in labels}
    return Suite(name, tuple(stages), {**columns, name: tuple(labels)}, cascade)
