"""Which attacks make an evaluation, and which columns its table has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from generalist.attacks import ATTACKS, STANDARD
from generalist.core.errors import UserError, shown, unknown
from generalist.core.files import LONGEST_NAME, digest, file_name, read_text, user_path
from generalist.core.names import ANALYSES, SUITE_NAMES
from generalist.core.registry import Registry
from generalist.core.user_code import is_reference, is_users, raised, source_digest_parts
from generalist.core.yaml_text import parse_yaml


@dataclass(frozen=True)
class Stage:
    """One attack with its fields, complete; `label` is its name in tables and records."""

    label: str
    attack: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def spec(self) -> dict[str, Any]:
        """What verdicts depend on, in JSON types: the fields and, of a user's own attack, its source."""
        source = {"source_sha256": self._source} if self._source else {}
        fields = {key: _plain(value) for key, value in sorted(self.options.items())}
        return {"attack": self.attack, **fields, **source}

    @cached_property
    def _source(self) -> str | None:
        attack = ATTACKS.get(self.attack)
        return digest(b"\0".join(source_digest_parts(attack))) if is_users(attack) else None


@dataclass(frozen=True)
class Suite:
    """Which attacks make an evaluation, in their order, and which columns its table has.

    Args:
        name: What its records are called by.
        stages: The attacks with their fields; `load_suite` makes them from plain mappings.
        columns: The labels of the stages that make up each column; an image is robust if it survives all of them.
        cascade: Whether later stages are spared the images that an earlier one broke; otherwise each stands alone.

    Example:
        >>> import generalist
        >>> generalist.load_suite("autoattack").columns
        {'AA': ('APGD_ce', 'APGD_t', 'FAB_t', 'Square')}
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


def _shipped_suite(name: str) -> Suite:
    return _shipped()[name]


MOST_ATTACKS = 100
SUITES: Registry[Callable[[], "Suite | Mapping[str, Any]"]] = Registry("suite", called="")
for _name in SUITE_NAMES:
    SUITES.register(_name)(partial(_shipped_suite, _name))


def load_suite(suite: str | Path | Mapping[str, Any] | Suite) -> Suite:
    """A suite of attacks.

    Args:
        suite: The name of a shipped or registered suite; a YAML file, or a mapping of the same fields; or
            `module:callable`, a function without arguments that returns a Suite or such a mapping. The fields are
            `attacks`, a list of names or of mappings with `attack`, its fields and a `label`; `name`; and `cascade`,
            whether later attacks are spared the images that an earlier one broke (true if not given).

    Returns:
        The suite, with the fields of every attack checked and complete.

    Example:
        >>> import generalist
        >>> pgd = {"attack": "pgd", "steps": 50, "restarts": 5, "label": "PGD50x5"}
        >>> suite = generalist.load_suite({"name": "mine", "attacks": [pgd, "square"]})
        >>> [stage.label for stage in suite.stages], suite.cascade
        (['PGD50x5', 'square'], True)
    """
    if isinstance(suite, Suite):
        return suite
    if isinstance(suite, Mapping):
        return _parse(suite, "suite", default_name="mine")
    name = str(suite)
    if name in SUITES.names():
        return _made(name)
    path = user_path(suite)
    if path.exists():
        return _parse(parse_yaml(read_text(path), str(path)), str(path), default_name=path.stem)
    if is_reference(name):
        return _made(name)
    raise unknown("suite", name, SUITES.names())


def _made(name: str) -> Suite:
    """The suite that a registered function, or one of the user's own, returns."""
    function = SUITES.get(name)
    SUITES.check(name, {})
    try:
        made = function()
    except UserError:
        raise
    except Exception as error:
        raise raised("suite", name, error) from error
    if isinstance(made, Mapping):
        return _parse(made, f"suite {name!r}", default_name=name.rpartition(":")[2])
    if not isinstance(made, Suite):
        raise UserError(f"suite {name!r} returned a {type(made).__name__}; it must return a Suite or a mapping")
    if name not in SUITE_NAMES:
        _check_name(made.name, f"suite {name!r}")
    return made


def _parse(raw: Any, where: str, *, default_name: str) -> Suite:
    """A checked suite from the mapping that its file holds; `where` it was given, for messages."""
    if not isinstance(raw, Mapping) or not isinstance(raw.get("attacks"), list) or not raw["attacks"]:
        raise UserError(f"{where}: a suite is a mapping with a list of `attacks`")
    if len(raw["attacks"]) > MOST_ATTACKS:
        raise UserError(f"{where}: a suite has at most {MOST_ATTACKS} attacks, got {len(raw['attacks'])}")
    for key in raw:
        if key not in ("name", "cascade", "attacks"):
            raise unknown(f"field of suite {where}:", str(key), ("name", "cascade", "attacks"))
    stages = [_parse_stage(entry, where) for entry in raw["attacks"]]
    labels = [stage.label for stage in stages]
    if len(set(labels)) < len(labels):
        raise UserError(f"{where}: two attacks share a label; give each its own `label`")
    name, cascade = _check_name(raw.get("name", default_name), where), raw.get("cascade", True)
    if not isinstance(cascade, bool):
        raise UserError(f"{where}: cascade is true or false, got {shown(cascade)}")
    if name in labels and len(labels) > 1 and not cascade:
        raise UserError(f"{where}: an attack and the suite are both called {shown(name)}; give one another name")
    columns = {} if cascade else {label: (label,) for label in labels}
    return Suite(name, tuple(stages), {**columns, name: tuple(labels)}, cascade)


def _parse_stage(entry: Any, where: str) -> Stage:
    if not isinstance(entry, str | Mapping):
        raise UserError(f"{where}: an attack is a name or a mapping with `attack`, got {shown(entry)}")
    options = {"attack": entry} if isinstance(entry, str) else dict(entry)
    if "name" in options and "attack" not in options:
        options["attack"] = options.pop("name")  # as the parts of a recipe are named
    if "attack" not in options:
        raise UserError(f"{where}: each entry needs `attack`, one of {', '.join(ATTACKS.names())}")
    attack = options.pop("attack")
    label = options.pop("label", attack.rpartition(":")[2] if isinstance(attack, str) else attack)
    checked = ATTACKS.check(attack, options)
    if not isinstance(label, str) or not 0 < len(label) <= LONGEST_NAME or not label.isprintable():
        raise UserError(f"{where}: a label is 1 to {LONGEST_NAME} printable characters, got {shown(label)}")
    return Stage(label, attack, checked)


def _check_name(given: Any, where: str) -> str:
    """A suite's name, which its records are called by."""
    name = file_name(given, f"{where}: name")
    if name in (*SUITE_NAMES, *ANALYSES):
        raise UserError(f"{where}: {shown(name)} is the name of a shipped suite; give this one another `name`")
    return name
