"""How the values of recipe fields are read, and written again: parts with their options, γ, module names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from generalist.core.errors import UserError, shown, unknown
from generalist.core.names import TRACKER_NAMES
from generalist.core.registry import Registry
from generalist.core.threat import Threat, parse_fraction
from generalist.core.types import Exact, Unit
from generalist.mixing import REST, ByName, Gamma, ModuleGamma, OverDepth, Points, Share
from generalist.models.modules import LastShare, Patterns, Selection


@dataclass(frozen=True)
class Component:
    """A registered function by name, with its fields checked and complete."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        return {"name": self.name} | {key: _plain(value) for key, value in self.options.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Fraction | Threat):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def read_component(registry: Registry[Any]) -> Callable[[Any], Component]:
    def parse(value: Any) -> Component:
        if isinstance(value, Component):
            return value
        if not isinstance(value, str | Mapping):
            raise ValueError(
                f"takes a name or a mapping with a name, such as {registry.names()[0]}, got {shown(value)}"
            )
        options = {"name": value} if isinstance(value, str) else dict(value)
        if "name" not in options:
            raise ValueError(f"needs a name, one of {', '.join(registry.names())}")
        name = options.pop("name")
        return Component(name, reraised(registry.check, name, options))

    return parse


def reraised(function: Callable[..., Any], *args: Any) -> Any:
    """Our own errors as pydantic wants them."""
    try:
        return function(*args)
    except UserError as error:
        raise ValueError(str(error)) from None


class _GammaPoints(BaseModel):
    model_config = ConfigDict(extra="ignore")
    at: tuple[Exact, ...]
    values: tuple[Unit, ...]


def read_gamma(value: Any) -> ModuleGamma:
    """γ as below, or by module: {modules: {layer4: 0.5, fc: 0.8}}, {depth: [0, 1], share: 0.5}"""
    if isinstance(value, ByName | OverDepth):
        return value
    if isinstance(value, Mapping) and "modules" in value:
        if len(value) > 1 or not isinstance(value["modules"], Mapping) or not value["modules"]:
            raise ValueError(f"modules takes gammas by module name, and nothing beside it, got {shown(dict(value))}")
        filters = {_text(str(name)): _gamma_of_training(gamma) for name, gamma in value["modules"].items()}
        return ByName(tuple(sorted(filters.items(), key=lambda item: item[0])))
    if isinstance(value, Mapping) and "depth" in value:
        rest = {key: given for key, given in value.items() if key != "depth"}
        factors, gamma = value["depth"], _gamma_of_training(rest) if rest else Points((Fraction(0),), (1.0,))
        if not isinstance(factors, list | tuple) or not 2 <= len(factors) <= MOST_DEPTHS:
            raise ValueError(f"depth takes 2 to {MOST_DEPTHS} factors, first layer to last, got {shown(factors)}")
        if gamma == REST:
            raise ValueError("depth goes with a share or breakpoints, not with the rest")
        return OverDepth(tuple(_unit(factor, "a factor over depth") for factor in factors), gamma)
    return _gamma_of_training(value)


MOST_DEPTHS = 100


def _gamma_of_training(value: Any) -> Gamma:
    """rest · a number · {share: 0.5} · {at: [0, 1/3, 2/3, 1], values: [1, 1, 1, 0]}"""
    if value == REST or isinstance(value, Points | Share):
        return value
    if isinstance(value, Mapping):
        known = ("share", "at", "values", "modules", "depth")
        for key in value:
            if key not in known:
                raise ValueError(str(unknown("field of gamma:", key, known)))
        if "share" in value:
            if len(value) > 1:
                raise ValueError("takes a share or breakpoints {at: […], values: […]}, got both")
            return Share(_unit(value["share"], "a share of the rest"))
        points = _GammaPoints.model_validate(value)
        return reraised(Points, points.at, points.values)
    return Points((Fraction(0),), (_unit(value, "a constant gamma"),))


def _unit(value: Any, what: str) -> float:
    try:
        number = float(parse_fraction(value))
    except UserError:
        raise ValueError(
            f"takes `rest`, a number, {{share: …}} or {{at: […], values: […]}}, got {shown(value)}"
        ) from None
    if not 0 <= number <= 1:
        raise ValueError(f"{what} lies in 0..1, got {shown(value)}")
    return number


def plain_gamma(gamma: ModuleGamma) -> Any:
    if isinstance(gamma, ByName):
        return {"modules": {name: plain_gamma(value) for name, value in gamma.filters}}
    if isinstance(gamma, OverDepth):
        over = plain_gamma(gamma.gamma)
        return {"depth": list(gamma.values)} | (
            over if isinstance(over, dict) else {"at": [0.0], "values": [over]} if over != 1 else {}
        )
    if isinstance(gamma, Share):
        return {"share": gamma.of_rest}
    if isinstance(gamma, Points):
        return gamma.values[0] if len(gamma.values) == 1 else {"at": _plain(gamma.at), "values": list(gamma.values)}
    return gamma


def read_trains(value: Any) -> Selection | None:
    """A module's name or several, with * and ?; {last: 1/4} for a share of the depth; null for everything."""
    if value is None or isinstance(value, Patterns | LastShare):
        return value
    if isinstance(value, Mapping):
        if set(value) != {"last"}:
            raise ValueError(f"takes module names or {{last: 1/4}}, got {shown(dict(value))}")
        share = reraised(parse_fraction, value["last"])
        if not 0 < share <= 1:
            raise ValueError(f"last is a share of the depth above 0 and up to 1, got {shown(value['last'])}")
        return LastShare(share)
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"takes module names such as [layer4, fc], or {{last: 1/4}}, got {shown(value)}")
    if not names:
        raise ValueError("a learner that trains nothing is of no use; name the modules that it trains")
    return Patterns(tuple(_text(name) for name in names))


def plain_trains(selection: Selection | None) -> Any:
    if isinstance(selection, LastShare):
        return {"last": str(selection.share)}
    return None if selection is None else list(selection.names)


def _text(value: str) -> str:
    """Something to look up: the name of a part, a file or a device."""
    if not 0 < len(value) <= LONGEST_TEXT or not value.isprintable():
        raise ValueError(f"takes 1 to {LONGEST_TEXT} printable characters, got {shown(value)}")
    return value


def read_track(value: Any) -> Any:
    """The names of tools that follow the run; one may stand alone."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        raise ValueError(f"takes any of {', '.join(TRACKER_NAMES)}, got {shown(value)}")
    for name in names:
        if name not in TRACKER_NAMES:
            raise ValueError(str(unknown("tracker", name, TRACKER_NAMES)))
    return tuple(dict.fromkeys(names))


LONGEST_TEXT = 1000
Text = Annotated[str, AfterValidator(_text)]
