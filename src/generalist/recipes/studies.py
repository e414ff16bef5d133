"""Studies: recipes varied over a grid, with seeds, and what to make of the results; shipped and users' own alike."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from generalist.core.errors import UserError, shown, unknown
from generalist.core.files import file_name, user_path
from generalist.recipes.catalogue import Overrides, as_texts, load_recipe
from generalist.recipes.schema import Recipe, Section, complaint
from generalist.recipes.shipped import merge, part_names, read_yaml
from generalist.recipes.values import Text

MOST_ROWS, MOST_SEEDS, MOST_VALUES = 500, 100, 200
Line = Annotated[str, Field(max_length=200)]
Fields = Annotated[dict[str, Any], Field(max_length=MOST_VALUES)]


def _grid(grid: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Values by label, for each field: a list labels itself."""
    found = {}
    for name, values in grid.items():
        labelled = {as_label(value): value for value in values} if isinstance(values, list) else values
        if not isinstance(labelled, Mapping) or not 0 < len(labelled) <= MOST_VALUES:
            raise ValueError(
                f"{shown(name)} takes 1 to {MOST_VALUES} values: a list, or values by label, got {shown(values)}"
            )
        found[name] = dict(labelled)
    return found


Grid = Annotated[dict[str, Any], AfterValidator(_grid)]


class VariantSection(Section):
    """Rows of a study that share a base: `recipe`, or a `method` of the study's setting, with fields `set`.

    A `grid` gives every combination of its values a row. `name` labels the rows; in it each {} is a value of the grid.
    `values` places a row that is not of the grid on the figure's axis. `paper` is the row of the paper's table, where
    the method alone does not say it. `ranks` trains with so many processes. `group` puts rows into a panel of the
    figure. `after` is the label of a row before these: they start from its run of the same seed, by `init.from`.
    """

    name: Line = ""
    group: Line = ""
    recipe: Text | None = None
    method: Text | None = None
    after: Line | None = None
    set: Fields = Field(default_factory=dict)
    grid: Grid = Field(default_factory=dict)
    values: Fields = Field(default_factory=dict)
    paper: Line | None = None
    ranks: Annotated[int, Field(ge=1, le=64)] = 1


class PanelSection(Section):
    """One panel of a figure: which group of rows, and which columns on the axes."""

    group: Line | None = None
    x: Line | None = None
    y: Annotated[list[Line], Field(max_length=20)] = Field(default_factory=list)
    title: Line = ""


class FigureSection(Section):
    """`lines` over a field of the grid, `bars` by row, `scatter` of one column against another, `classes` by class.

    Without panels there is one for each group.
    """

    kind: Literal["lines", "bars", "scatter", "classes"] = "bars"
    x: Line | None = None
    xlabel: Line = ""
    y: Annotated[list[Line], Field(max_length=20)] = Field(default_factory=list)
    panels: Annotated[list[PanelSection], Field(max_length=20)] = Field(default_factory=list)


class StudySection(Section):
    """The file of a study."""

    name: Annotated[str, AfterValidator(lambda given: _reraised_name(given))]
    description: Line = ""
    reference: Line = ""
    setting: Text | None = None
    recipe: Text | None = None
    method: Text | None = None
    set: Fields = Field(default_factory=dict)
    grid: Grid = Field(default_factory=dict)
    variants: Annotated[list[VariantSection], Field(max_length=MOST_ROWS)] = Field(default_factory=list)
    seeds: Annotated[int, Field(ge=1, le=MOST_SEEDS)] | Annotated[list[int], Field(min_length=1, max_length=100)] = 3
    suite: Text | Annotated[list[Text], Field(min_length=1, max_length=10)] = "autoattack"
    images: Annotated[int, Field(ge=1)] | None = None
    baseline: Line | None = None
    columns: Annotated[list[Line], Field(max_length=100)] = Field(default_factory=list)
    paper: Line | None = None
    figure: FigureSection = FigureSection()


def _reraised_name(given: str) -> str:
    try:
        return file_name(given, "a study's name")
    except UserError as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True)
class StudyRow:
    """One row of a study: a recipe without its seed. `values` are those of the grid, by field.

    With `after`, the number of a row before it, `init.from` of the recipe is to be the run of that row.
    """

    label: str
    recipe: Recipe
    group: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    paper: str | None = None
    ranks: int = 1
    after: int | None = None


@dataclass(frozen=True)
class Study:
    """A study, with all of its recipes loaded and checked."""

    section: StudySection
    setting: str
    rows: tuple[StudyRow, ...]
    seeds: tuple[int, ...]

    @property
    def name(self) -> str:
        """What its folder and its place in a storage are called."""
        return f"{self.section.name}-{self.setting}" if self.setting else self.section.name

    @property
    def suites(self) -> tuple[str, ...]:
        return (self.section.suite,) if isinstance(self.section.suite, str) else tuple(self.section.suite)


@cache
def study_names() -> dict[str, str]:
    """The shipped studies, with what they are about and where the papers have it."""
    names = {}
    for name in part_names("studies"):
        raw = _shipped(name)
        where = f" ({raw['reference']})" if raw.get("reference") else ""
        names[name] = f"{raw['description']}{where}"
    return names


def load_study(
    study: str | Path | Mapping[str, Any],
    *,
    setting: str | None = None,
    seeds: int | Sequence[int] | None = None,
    overrides: Overrides = (),
    **changes: Any,
) -> Study:
    """A study by the name of a shipped one, from a YAML file, or from what such a file would hold.

    Args:
        study: The name, the file, or the fields.
        setting: Another setting than the study's own: data, network and length.
        seeds: How many seeds, from 0 on, or which.
        overrides: Recipe fields to change in all trials.
        changes: Other fields of the study to change; None leaves them as they are.

    Returns:
        The study, every recipe of it checked.
    """
    raw = dict(study) if isinstance(study, Mapping) else _read(str(study))
    raw.setdefault("name", "study")
    inside = raw.pop("in", None) or {}
    if not isinstance(inside, Mapping):
        raise UserError(f"study {shown(raw['name'])}: in takes fields by setting, got {shown(inside)}")
    chosen = setting or raw.get("setting")
    if setting is not None and "setting" not in raw:
        raise UserError(f"study {shown(raw['name'])} has recipes of its own, so --setting has no use for it")
    if chosen is not None and chosen not in part_names("settings"):
        raise unknown("setting", chosen, part_names("settings"))
    if isinstance(inside.get(chosen or ""), Mapping):
        raw = merge(raw, inside[chosen or ""])
    given = {key: value for key, value in (("setting", chosen), *changes.items()) if value is not None}
    section = _parsed(raw | given)
    rows = tuple(_rows(section, overrides))
    _check(section, rows)
    counted = section.seeds if seeds is None else seeds
    listed = tuple(range(counted)) if isinstance(counted, int) else tuple(dict.fromkeys(counted))
    if not 0 < len(listed) <= MOST_SEEDS:
        raise UserError(f"seeds are 1 to {MOST_SEEDS}, got {shown(counted)}")
    return Study(section, section.setting or "", rows, listed)


def _shipped(name: str) -> dict[str, Any]:
    raw = read_yaml(resources.files("generalist.recipes") / "studies" / f"{name}.yaml")
    base = raw.pop("extends", None)
    return (merge(_shipped(base), raw) if base else raw) | {"name": name}


def _read(name: str) -> dict[str, Any]:
    if name in part_names("studies"):
        return _shipped(name)
    path = user_path(name)
    if path.is_file():
        return {"name": path.stem} | read_yaml(path)
    if path.suffix in (".yaml", ".yml"):
        raise UserError(f"there is no study file {path}")
    if difflib.get_close_matches(name, study_names(), n=1):
        raise unknown("study", name, study_names())
    raise UserError(f"unknown study {shown(name)}; `generalist study` lists the shipped ones, or give a .yaml file")


def _parsed(raw: Mapping[str, Any]) -> StudySection:
    for key in raw:
        if key not in StudySection.model_fields:
            raise unknown(f"field of study {shown(raw['name'])}:", key, StudySection.model_fields)
    try:
        return StudySection.model_validate(raw)
    except ValidationError as error:
        raise UserError(f"study {shown(raw['name'])}: {complaint(error)}") from None


def _rows(section: StudySection, overrides: Overrides) -> Iterator[StudyRow]:
    loaded: dict[str, Recipe] = {}
    before: list[str] = []
    for variant in section.variants or [VariantSection()]:
        grid = {**section.grid, **variant.grid}
        if variant.after is not None and variant.after not in before:
            listed = ", ".join(before) or "none"
            raise UserError(
                f"study {section.name}: {shown(variant.after)} (after) is not a row before; those before: {listed}"
            )
        started = {} if variant.after is None else {"init.from": variant.after}
        for combination in product(*(values.items() for values in grid.values())):
            values = {name: value for name, (_, value) in zip(grid, combination, strict=True)}
            labels = [label for label, _ in combination]
            fields = _in_setting({**started, **section.set, **variant.set, **values}, section.setting)
            key = f"{variant.recipe} {variant.method} {fields}"
            try:
                if key not in loaded:
                    loaded[key] = _recipe(section, variant, fields, overrides)
            except UserError as error:
                raise UserError(f"study {section.name}: {error}", command=error.command) from None
            label = _label(section, variant, grid, labels)
            yield StudyRow(
                label=label,
                recipe=loaded[key],
                group=variant.group,
                values={**dict(zip(grid, labels, strict=True)), **variant.values},
                paper=variant.paper,
                ranks=variant.ranks,
                after=None if variant.after is None else before.index(variant.after),
            )
            before.append(label)


def _in_setting(fields: Mapping[str, Any], setting: str | None) -> dict[str, Any]:
    """`{setting}` in a text is the name of the setting, for networks that a row needs trained before."""
    return {
        name: value.replace("{setting}", setting or "") if isinstance(value, str) else value
        for name, value in fields.items()
    }


def _recipe(
    section: StudySection,
    variant: VariantSection,
    fields: Mapping[str, Any],
    overrides: Overrides,
) -> Recipe:
    """All fields at once, so that one may replace a component and another change it."""
    recipe = variant.recipe or (section.recipe if variant.method is None else None)
    method = variant.method or section.method
    if recipe is None and (section.setting is None or method is None):
        raise UserError("each row needs a recipe, or the study a setting and the row a method")
    texts = [*as_texts(fields), *as_texts(overrides)]
    return load_recipe(recipe or str(section.setting), texts, method=None if recipe else method)


def _label(section: StudySection, variant: VariantSection, grid: Mapping[str, Any], labels: Sequence[str]) -> str:
    if variant.name.count("{}") == len(labels) and variant.name:
        return variant.name.format(*labels)
    parts = [f"{field.rpartition('.')[2]} {label}" for field, label in zip(grid, labels, strict=True)]
    own = variant.name or (variant.method or variant.recipe or "")
    return ", ".join(part for part in (own, *parts) if part) or section.method or str(section.recipe)


def _check(section: StudySection, rows: Sequence[StudyRow]) -> None:
    if not 0 < len(rows) <= MOST_ROWS:
        raise UserError(f"study {section.name} has {len(rows)} rows; 1 to {MOST_ROWS} are taken")
    places = [(row.group, row.label) for row in rows]
    twice = next((place for place in places if places.count(place) > 1), None)
    if twice:
        raise UserError(f"study {section.name}: two rows are called {shown(twice[1])}; give each a name of its own")
    if section.baseline is not None and section.baseline not in [row.label for row in rows]:
        raise unknown(f"baseline of study {section.name}:", section.baseline, [row.label for row in rows])


def as_label(value: Any) -> str:
    """A value as a label: the text of a number, 1-1-1-0 of a schedule, the names of modules."""
    if isinstance(value, Mapping) and "values" in value:
        return "-".join(as_label(one) for one in value["values"])
    if isinstance(value, Mapping):
        return " ".join(f"{name} {as_label(one)}" for name, one in value.items())
    if isinstance(value, list):
        return " ".join(as_label(one) for one in value)
    return "all" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
