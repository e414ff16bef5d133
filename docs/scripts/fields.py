"""Every field of a recipe and a suite as Markdown, from the types and docstrings in the code.

python docs/scripts/fields.py prints it; the site has it on its page "Every field".
"""

import inspect
import re
import types
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from generalist.attacks import ATTACKS
from generalist.core.registry import Registry
from generalist.core.schedules import SCHEDULES
from generalist.core.threat import Threat
from generalist.models import MODELS
from generalist.objectives import OBJECTIVES
from generalist.recipes.schema import RUNTIME_ONLY, Component, Recipe, Section
from generalist.recipes.shipped import recipe_parts
from generalist.training.optimizers import OPTIMIZERS

COMPONENTS: dict[str, tuple[Registry[Any], str]] = {
    "Objectives": (
        OBJECTIVES,
        "What a learner minimises: `learners.<name>.objective`. x' is an adversarial point, p = softmax."
        " [Methods](methods.md) has the losses side by side.",
    ),
    "Optimizers": (OPTIMIZERS, "`learners.<name>.optimizer`. They are those of `torch.optim`."),
    "Schedules": (
        SCHEDULES,
        "`learners.<name>.schedule`: a factor of the learning rate over the learner's own epochs, from 0 (its start)"
        " to 1 (its end).",
    ),
    "Networks": (
        MODELS,
        "`model.name`; what is given besides `width` goes into `model.options`. `wrn-D-K` is a wide ResNet of depth D"
        " and factor K. `timm/<name>` is any network of timm, where it is installed.",
    ),
    "Attacks of a suite": (ATTACKS, "The entries of `attacks` in a suite's file ([Attacks](attacks.md))."),
}
SHARED: dict[str, dict[str, str]] = {
    "objective": {
        "threat": "Norm and radius of the attack.",
        "threats": "Norms and radii of the attacks.",
        "steps": "Steps of the attack.",
        "step_size": "Length of a step, in pixel units; ε/4 if not given.",
        "step_sizes": "Length of a step for each threat, in pixel units; ε/4 if not given.",
    },
    "optimizer": {
        "lr": "Learning rate, before the schedule.",
        "momentum": "Weight of the earlier gradients.",
        "weight_decay": "Pull of the weights towards 0.",
        "nesterov": "Whether the momentum is Nesterov's.",
        "betas": "Decays of the running averages of the gradient and its square.",
        "eps": "Added to the denominator.",
    },
    "schedule": {"at": "Breakpoints, rising from 0 to 1.", "values": "The value at each breakpoint."},
    "model": {
        "width": "Channels of the first stage.",
        "stem": "First layers: `cifar` is a 3×3 convolution, `imagenet` a 7×7 and a pooling; `auto` goes by size.",
    },
}
"""What fields of these names mean in all functions of a kind that do not say otherwise."""


FAR = 1_000_000
"""Upper bounds from here on only catch mistakes."""


def descriptions(text: str) -> dict[str, str]:
    """The entries of `Args:` and `Attributes:` of a docstring, by name."""
    found: dict[str, str] = {}
    for section in re.findall(r"^(?:Args|Attributes):\n((?:[ ]+.*\n?|\n)+)", text, flags=re.MULTILINE):
        name = ""
        for line in section.splitlines():
            entry = re.fullmatch(r"    (\w+): (.*)", line)
            if entry:
                name = entry[1]
            if name and line.strip():
                found[name] = entry[2] if entry else f"{found[name]} {line.strip()}"
    return found


def summary(text: str) -> str:
    """A docstring without its sections."""
    return re.split(r"^(?:Args|Attributes|Returns|Example):", text, maxsplit=1, flags=re.MULTILINE)[0].strip()


def fields_of(registry: Registry[Any], name: str) -> Iterator[tuple[str, FieldInfo, str]]:
    """Every recipe field of a registered function or class, and what it means."""
    meant = descriptions(inspect.getdoc(registry.get(name)) or "")
    for field, info in registry.schema(name).model_fields.items():
        yield field, info, meant.get(field) or SHARED.get(registry.kind, {}).get(field, "")


def section_fields(section: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, str]]:
    """Every field of a section, and what it means."""
    meant = descriptions(inspect.getdoc(section) or "")
    for field, info in section.model_fields.items():
        yield info.alias or field, info, meant.get(field, meant.get(info.alias or "", ""))


def values(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Which values a field takes."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values(inner[0], (*metadata, *_flat(inner[1:])))
    if origin is Literal:
        return " · ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        kinds = [values(one, metadata) for one in inner if one is not type(None) and one is not Fraction]
        return " or ".join(kinds)
    if origin is tuple:
        each = values(inner[0])
        return (
            f"list of {_length(metadata)}{_plural(each)}" if inner[-1] is Ellipsis else f"{len(inner)} {_plural(each)}"
        )
    if origin is dict:
        return "mapping by name"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return f"[fields](#{_anchor(annotation)})"
    plain = {
        bool: "`true` · `false`",
        int: f"whole number{_range(metadata)}",
        float: f"number{_range(metadata)}",
        Fraction: f"exact number{_range(metadata)}, such as `1/3`",
        Threat: "threat, such as `linf:8/255`",
        Component: "a name, or a mapping with `name` and its fields",
        str: "text",
    }
    return plain.get(annotation, "several forms")


def _flat(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for one in metadata:
        if isinstance(one, FieldInfo):
            yield from one.metadata
        else:
            yield one


def _bound(metadata: tuple[Any, ...], *names: str) -> Any:
    return next(
        (getattr(one, name) for name in names for one in metadata if getattr(one, name, None) is not None), None
    )


def _range(metadata: tuple[Any, ...]) -> str:
    above, least = _bound(metadata, "gt"), _bound(metadata, "ge")
    below, most = _bound(metadata, "lt"), _bound(metadata, "le")
    most = None if most is not None and most >= FAR else most
    if least is not None and most is not None:
        return f", {least} to {most}"
    low = f"above {above}" if above is not None else f"at least {least}" if least is not None else ""
    high = (
        f"below {'2^63' if below == 2**63 else below}"
        if below is not None
        else f"at most {most}"
        if most is not None
        else ""
    )
    return "".join(f", {part}" for part in (low, high) if part)


def _length(metadata: tuple[Any, ...]) -> str:
    least, most = _bound(metadata, "min_length"), _bound(metadata, "max_length")
    if most is None:
        return ""
    return f"{most} " if least == most else f"{least or 0} to {most} "


def _plural(kind: str) -> str:
    head, _, rest = kind.partition(",")
    return f"{head}s, {rest.strip()}" if rest else f"{head}s"


def default(info: FieldInfo) -> str:
    """The value of a field that is not given."""
    if info.is_required():
        return "required"
    value = info.default
    if isinstance(value, BaseModel):
        return "its defaults"
    if value is None or value in ({}, "", ()):
        return "–"
    if isinstance(value, Component):
        return f"`{value.name}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(str(one) for one in value)}]`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def table(rows: Iterator[tuple[str, FieldInfo, str]]) -> list[str]:
    lines = ["| field | values | default | meaning |", "|---|---|---|---|"]
    for field, info, meaning in rows:
        taken = values(info.annotation, tuple(_flat(tuple(info.metadata))))
        mark = " †" if RUNTIME_ONLY in info.metadata else ""
        cells = (f"`{field}`{mark}", taken, default(info), meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]


def _sections(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The sections of a recipe in the order of its fields, each once."""
    yield section
    for info in section.model_fields.values():
        for one in (info.annotation, *get_args(info.annotation)):
            if isinstance(one, type) and issubclass(one, Section):
                yield from _sections(one)


def _title(section: type[BaseModel]) -> str:
    own = {"LearnerSection": "learners.&lt;name&gt;", "ExtraSection": "data.extra", "Recipe": "The whole recipe"}
    return own.get(section.__name__, section.__name__.removesuffix("Section").lower())


def _anchor(section: type[BaseModel]) -> str:
    return f"section-{section.__name__.removesuffix('Section').lower()}"


def recipe_page() -> str:
    """All sections of a recipe."""
    lines: list[str] = []
    for section in dict.fromkeys(_sections(Recipe)):
        lines += [f"### {_title(section)} {{ #{_anchor(section)} }}", "", summary(inspect.getdoc(section) or ""), ""]
        lines += table(section_fields(section))
    return "\n".join(lines)


def components_page() -> str:
    """What goes by name in a recipe or a suite, with its fields."""
    lines: list[str] = []
    for title, (registry, about) in COMPONENTS.items():
        lines += [f"## {title}", "", about, ""]
        for name in registry.names():
            rows = list(fields_of(registry, name))
            said = summary(inspect.getdoc(registry.get(name)) or "")
            lines += [f"### `{name}` {{ #{registry.kind}-{name} }}", "", said, ""]
            lines += table(iter(rows)) if rows else ["No fields.", ""]
    return "\n".join(lines)


def shipped_page() -> str:
    """The shipped settings and methods."""
    settings, methods = recipe_parts()
    return "\n".join([*_listed("setting", settings), *_listed("method", methods)])


def _listed(kind: str, parts: Mapping[str, str]) -> list[str]:
    rows = [f"| `{name}` | {text} |" for name, text in parts.items()]
    return [f"| {kind} | |", "|---|---|", *rows, ""]


if __name__ == "__main__":
    print(recipe_page(), components_page(), shipped_page(), sep="\n")
