"""A recipe: everything that decides a result, in one file. Nothing below `build` sees it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from pathlib import PurePath
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from generalist.core.errors import LONGEST_VALUE, UserError, cut, shown, unknown
from generalist.core.files import LONGEST_NAME, file_name
from generalist.core.names import TRACKER_NAMES
from generalist.core.registry import Registry, explain
from generalist.core.schedules import SCHEDULES
from generalist.core.threat import Threat, parse_fraction
from generalist.core.types import Count, Exact, Natural, NonNegativeFloat, PositiveFloat, Steps, Unit
from generalist.data import UNREADABLE
from generalist.mixing import REST, ByName, Gamma, ModuleGamma, OverDepth, Points, Share
from generalist.models.modules import LastShare, Patterns, Selection
from generalist.objectives import OBJECTIVES, networks_needed, starts_itself
from generalist.training.optimizers import OPTIMIZERS
from generalist.training.precision import Precision
from generalist.training.selection import Rule


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


def _component(registry: Registry[Any]) -> Callable[[Any], Component]:
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
        return Component(name, _reraised(registry.check, name, options))

    return parse


def _reraised(function: Callable[..., Any], *args: Any) -> Any:
    """Our own errors as pydantic wants them."""
    try:
        return function(*args)
    except UserError as error:
        raise ValueError(str(error)) from None


class _GammaPoints(BaseModel):
    model_config = ConfigDict(extra="ignore")
    at: tuple[Exact, ...]
    values: tuple[Unit, ...]


def _gamma(value: Any) -> ModuleGamma:
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
        return _reraised(Points, points.at, points.values)
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


def _plain_gamma(gamma: ModuleGamma) -> Any:
    if isinstance(gamma, ByName):
        return {"modules": {name: _plain_gamma(value) for name, value in gamma.filters}}
    if isinstance(gamma, OverDepth):
        over = _plain_gamma(gamma.gamma)
        return {"depth": list(gamma.values)} | (
            over if isinstance(over, dict) else {"at": [0.0], "values": [over]} if over != 1 else {}
        )
    if isinstance(gamma, Share):
        return {"share": gamma.of_rest}
    if isinstance(gamma, Points):
        return gamma.values[0] if len(gamma.values) == 1 else {"at": _plain(gamma.at), "values": list(gamma.values)}
    return gamma


def _trains(value: Any) -> Selection | None:
    """A module's name or several, with * and ?; {last: 1/4} for a share of the depth; null for everything."""
    if value is None or isinstance(value, Patterns | LastShare):
        return value
    if isinstance(value, Mapping):
        if set(value) != {"last"}:
            raise ValueError(f"takes module names or {{last: 1/4}}, got {shown(dict(value))}")
        share = _reraised(parse_fraction, value["last"])
        if not 0 < share <= 1:
            raise ValueError(f"last is a share of the depth above 0 and up to 1, got {shown(value['last'])}")
        return LastShare(share)
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"takes module names such as [layer4, fc], or {{last: 1/4}}, got {shown(value)}")
    if not names:
        raise ValueError("a learner that trains nothing is of no use; name the modules that it trains")
    return Patterns(tuple(_text(name) for name in names))


def _plain_trains(selection: Selection | None) -> Any:
    if isinstance(selection, LastShare):
        return {"last": str(selection.share)}
    return None if selection is None else list(selection.names)


def _text(value: str) -> str:
    """Something to look up: the name of a part, a file or a device."""
    if not 0 < len(value) <= LONGEST_TEXT or not value.isprintable():
        raise ValueError(f"takes 1 to {LONGEST_TEXT} printable characters, got {shown(value)}")
    return value


def _track(value: Any) -> Any:
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
MOST_LEARNERS, MOST_THREATS = 30, 20
_AsPlain = PlainSerializer(lambda component: component.plain())


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class _RuntimeOnly:
    """Marks a field that decides no result: where and how a run is made, or what it is called."""


RUNTIME_ONLY = _RuntimeOnly()

LABELS = "labels"
"""What the network that labels `data.extra` is called in `needs`."""


class ExtraSection(Section):
    """More training images: an .npz with images and labels, and the share of each batch that comes from it.

    Attributes:
        file: The .npz file. Without labels, `needs.labels` is a network that gives them.
        share: The share of each batch that comes from it.
    """

    file: Text
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5


class DataSection(Section):
    """Which images, how they are split, and how training images are drawn and varied.

    Attributes:
        name: A dataset, or `module:callable`.
        root: The folder or file that has the data.
        size: The side in pixels that images are brought to; their own if not given.
        channels: 1 reads images as gray, 3 in colour; files are in colour and arrays as they are if not given.
        unreadable: The share of image files that may be damaged; they are named and left out.
        validation: The share of the training split that is held out to select by.
        limit: At most so many images per split.
        balance: Classes of n images are drawn in proportion to n^(1 − balance): 0 is every image once per epoch, 1 all
            classes alike.
        crop: Padding of a random crop, in pixels.
        flip: Whether images are mirrored at random.
        cutout: The side of a random square that is blanked, in pixels.
        workers: Processes that decode image files.
        extra: More training images.
    """

    name: Text
    root: Annotated[Text | None, RUNTIME_ONLY] = None
    size: Annotated[int, Field(ge=1, le=4096)] | None = None
    channels: Literal[1, 3] | None = None
    unreadable: Annotated[float, Field(ge=0, lt=1), RUNTIME_ONLY] = UNREADABLE
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.1
    limit: Count | None = None
    balance: Unit = 0.0
    crop: Natural = 0
    flip: bool = False
    cutout: Natural = 0
    workers: Annotated[int, Field(ge=0, le=1000), RUNTIME_ONLY] = 0
    extra: ExtraSection | None = None


class ModelSection(Section):
    """A network by name; normalisation by the training set's mean and deviation is inside it unless `none`.

    Attributes:
        name: A network, `wrn-D-K`, `timm/<name>` or `module:callable`.
        width: Its base width; its own default if not given.
        normalize: By the mean and deviation of the training set, or not at all.
        options: Other fields of the network.
    """

    name: Text
    width: Count | None = None
    normalize: Literal["data", "none"] = "data"
    options: dict[str, Any] = {}


class LearnerSection(Section):
    """A task: objective, optimizer, schedule, and the weight γ in the global learner.

    Attributes:
        objective: The loss and its attack.
        optimizer: It is the learner's own.
        schedule: A factor of the learning rate over the epochs between `starts` and `ends`.
        gamma: The weight in the global learner: `rest`, a number, `{share: 0.5}` of what others leave, or breakpoints
            `{at: [0, 1], values: [1, 0]}`; per module `{modules: {fc: 0.5}}`, over depth `{depth: [0, 1], …}`.
        weight_averaging: Whether a running average of the learner is mixed instead of its weights.
        weight_perturbation: γ of AWP: 0.01 around AT, 0.005 around TRADES; 0 is none.
        trains: The modules that the learner moves: names with `*` and `?`, or `{last: 1/4}` of the depth; all of them
            if not given.
        starts: The share of training at which it starts, rounded down to a whole epoch.
        ends: The share of training at which it ends, rounded down to a whole epoch.
    """

    objective: Annotated[Component, BeforeValidator(_component(OBJECTIVES)), _AsPlain]
    optimizer: Annotated[Component, BeforeValidator(_component(OPTIMIZERS)), _AsPlain]
    schedule: Annotated[Component, BeforeValidator(_component(SCHEDULES)), _AsPlain] = Component("constant")
    gamma: Annotated[Any, BeforeValidator(_gamma), PlainSerializer(_plain_gamma)] = REST
    weight_averaging: bool = False
    weight_perturbation: NonNegativeFloat = 0.0
    trains: Annotated[Any, BeforeValidator(_trains), PlainSerializer(_plain_trains)] = None
    starts: Annotated[Exact, Field(ge=0, lt=1)] = Fraction(0)
    ends: Annotated[Exact, Field(gt=0, le=1)] = Fraction(1)


class MixingSection(Section):
    """The global learner: how learners are averaged, and when they are reset to it.

    Attributes:
        decay: α' of the running average.
        decay_warmup: Whether the decay begins as (1 + s)/(10 + s) in step s.
        redistribute: Reset learners at the end of an epoch, after every step of it, or never.
        start: t', the share of training from which on learners are reset.
        every_epochs: c, the epochs between resets.
        batchnorm: Statistics of the global learner are mixed like weights, or measured anew on training batches.
        recalibrate_batches: How many batches they are measured on.
        momentum: Whether a reset clears the optimizer's momentum.
        averages: Whether a reset clears the running average of `weight_averaging`.
        train_idle: Train learners too that cannot influence the global learner.
    """

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    decay_warmup: bool = True
    redistribute: Literal["boundary", "every_step", "never"] = "boundary"
    start: Annotated[Exact, Field(ge=0, le=1)] = Fraction(5, 8)
    every_epochs: Count = 5
    batchnorm: Literal["mix", "recalibrate"] = "mix"
    recalibrate_batches: Count = 16
    momentum: Literal["reset", "keep"] = "reset"
    averages: Literal["reset", "keep"] = "reset"
    train_idle: bool = False


class TrainingSection(Section):
    """Length, batches, number format, and what guards a run.

    Attributes:
        epochs: Epochs of the whole training.
        batch_size: Images per step, over all ranks.
        precision: `auto` is bf16 where the hardware computes in it, fp16 on older GPUs, else float32.
        device: `auto` is a GPU if there is one.
        clip_norm: The largest norm of a gradient; longer ones are scaled down to it.
        accumulate: Into how many parts a batch is split, to save memory.
        sync_batchnorm: Where ranks split a batch, BatchNorm sees all of it, for two small sums per layer and pass.
            Switched off, the result depends on the number of ranks.
        bad_steps: So many steps in a row whose loss or gradient is not finite or far too large end the run.
        checkpoint_epochs: Epochs between checkpoints.
        checkpoint_minutes: Minutes between checkpoints within an epoch; several ranks save at its end only.
    """

    epochs: Annotated[int, Field(ge=1, le=10_000)]
    batch_size: Count = 128
    precision: Precision = "auto"
    device: Annotated[Text, RUNTIME_ONLY] = "auto"
    clip_norm: PositiveFloat | None = None
    accumulate: Count = 1
    sync_batchnorm: bool = True
    bad_steps: Count = 10
    checkpoint_epochs: Annotated[Count, RUNTIME_ONLY] = 1
    checkpoint_minutes: Annotated[NonNegativeFloat, RUNTIME_ONLY] = 10.0


class ValidationSection(Section):
    """PGD on the held-out split, while training.

    Attributes:
        threats: Norms and radii; `eval` and `dial` use them too if none are given.
        every_epochs: Epochs between validations.
        images: Only the first so many images of the split; all of it if not given.
        steps: Steps of PGD.
        batch_size: Images attacked at once.
    """

    threats: Annotated[tuple[Threat, ...], Field(max_length=MOST_THREATS)]
    every_epochs: Count = 1
    images: Count | None = None
    steps: Steps = 20
    batch_size: Count = 250


def epoch_at(share: Fraction, epochs: int) -> int:
    """The epoch, counted from 0, in which so large a share of training is over. A learner starts and ends with it.

    It is never later than the share itself, so that a gamma that rises from there on is 0 before the learner starts.
    """
    return floor(share * epochs)


class InitSection(Section):
    """Start from an existing checkpoint's weights, as if `epoch` epochs were done.

    Attributes:
        from_: A run folder, a file of weights, or `pretrained`: those published with a network of timm or torchvision.
        epoch: How many epochs count as done; where the first late learner starts, if there is one and nothing is given.
        rename: Of a file whose tensors have other names: theirs → ours, or `order`, paired by order and shape.
    """

    from_: Annotated[Text, Field(alias="from")]
    epoch: Natural = 0
    rename: Literal["order"] | dict[str, Text] | None = None


class Recipe(Section):
    """Everything that decides a result, checked when it is made. `load_recipe` makes one from a name or a file.

    Its fields are the sections of a recipe file: data, model, training, learners, mixing, validation, and how the
    reported checkpoint is selected.

    Attributes:
        name: What the run is called.
        description: One line for people.
        setting: The shipped setting that it was composed of, if any.
        method: The shipped method that it was composed of, if any.
        seed: Of everything random.
        data: Images and splits.
        model: The network.
        training: Length, batches and number format.
        learners: The tasks, by name.
        mixing: The global learner.
        validation: Attacks while training.
        select: By which split the reported state of each model is chosen, or the last state.
        init: Weights to start from.
        needs: Networks that must be trained before, by what objectives call them: a run, a weights file, or a recipe's
            name.
        track: Tools that follow the training, beside TensorBoard: mlflow, wandb.

    Example:
        >>> import generalist
        >>> recipe = generalist.load_recipe("digits-generalist-t")
        >>> list(recipe.learners), recipe.training.epochs
        (['linf', 'natural', 'l2'], 24)
    """

    name: Annotated[str, BeforeValidator(lambda given: _reraised(file_name, given, "a recipe's name"))]
    description: Annotated[str, Field(max_length=LONGEST_TEXT), RUNTIME_ONLY] = ""
    setting: Annotated[Text | None, RUNTIME_ONLY] = None
    method: Annotated[Text | None, RUNTIME_ONLY] = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    data: DataSection
    model: ModelSection
    training: TrainingSection
    learners: Annotated[dict[str, LearnerSection], Field(min_length=1, max_length=MOST_LEARNERS)]
    mixing: MixingSection = MixingSection()
    validation: ValidationSection
    select: Rule = "validation"
    init: InitSection | None = None
    track: Annotated[tuple[str, ...], BeforeValidator(_track), RUNTIME_ONLY] = ()
    """Tools that follow the run beside TensorBoard, which does so wherever it is installed: mlflow, wandb."""
    needs: dict[str, Text] = {}

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        for name in self.learners:
            plain = name.replace("-", "").replace("_", "").isalnum() and len(name.encode()) <= LONGEST_NAME
            if name == "global" or not plain:
                raise ValueError(f"{shown(name)} cannot name a learner; use letters, digits, - and _, and not 'global'")
        if self.training.accumulate > self.training.batch_size:
            raise ValueError(
                f"training.accumulate must be at most the batch size {self.training.batch_size},"
                f" got {self.training.accumulate}"
            )
        for name, learner in self.learners.items():
            for need in networks_needed(learner.objective.name):
                if need not in self.needs:
                    raise ValueError(
                        f"learner {name!r}: objective {learner.objective.name!r} needs a trained network {need!r};"
                        f" give needs: {{{need}: …}} a run folder, a weights file or a recipe's name"
                    )
        for name, learner in self.learners.items():
            first, end = self.window(name)
            if first >= end:
                raise ValueError(
                    f"learner {name!r} is trained from {learner.starts} to {learner.ends} of {self.training.epochs}"
                    f" epochs, which is none of them; it must start before it ends"
                )
            if learner.trains is not None and starts_itself(learner.objective.name):
                raise ValueError(
                    f"learner {name!r}: objective {learner.objective.name!r} has a start of its own"
                    f" and trains everything; leave trains out"
                )
        wanted = {need for learner in self.learners.values() for need in networks_needed(learner.objective.name)}
        wanted |= {LABELS} if self.data.extra else set()
        for need in self.needs:
            if need not in wanted:
                listed = ", ".join(sorted(wanted)) or "none"
                raise ValueError(f"needs names a network {shown(need)} that nothing here uses; what is used: {listed}")
        if self.init and self.init.epoch >= self.training.epochs:
            raise ValueError(f"init.epoch must be below training.epochs {self.training.epochs}, got {self.init.epoch}")
        return self

    @property
    def first_epoch(self) -> int:
        """The first epoch that is trained here, counted from 0; what `init` is from has done those before it."""
        return self.init.epoch if self.init else 0

    def window(self, learner: str) -> tuple[int, int]:
        """The epochs in which the learner is trained, counted from 0: the first, and the one after the last."""
        section, epochs = self.learners[learner], self.training.epochs
        return epoch_at(section.starts, epochs), epoch_at(section.ends, epochs)

    def plain(self) -> dict[str, Any]:
        """Nothing but strings, numbers, lists and mappings: what `recipe.yaml` holds."""
        return self.model_dump(mode="json", by_alias=True)

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.plain(), sort_keys=False, allow_unicode=True)


def parse_recipe(raw: Mapping[str, Any]) -> Recipe:
    """A plain mapping → a checked recipe, or one line saying what is wrong with it."""
    if not isinstance(raw, Mapping):
        raise UserError(f"a recipe is a mapping of fields, got {shown(raw)}")
    _check_fields(raw, Recipe, "")
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        raise UserError(f"recipe {shown(raw.get('name', ''))}: {complaint(error)}") from None


def complaint(error: ValidationError) -> str:
    """The first complaint. Our own checks say what was given; a section's class means nothing to a user."""
    first = error.errors(include_url=False)[0]
    where = cut(".".join(str(part) for part in first["loc"]), LONGEST_VALUE)
    if first["type"] == "value_error":
        text = first["msg"].removeprefix("Value error, ")
        return f"{where}: {text}" if where else text
    if first["type"] in ("model_type", "dict_type"):
        return f"{where}: takes a mapping of fields, got {shown(first['input'])}"
    return explain(error).replace("Input should", "should")


def _check_fields(raw: Any, schema: Any, where: str) -> None:
    """Unknown fields, at any depth, with the near-miss suggested."""
    if not isinstance(raw, Mapping):
        return
    if get_origin(schema) is Annotated:
        schema = get_args(schema)[0]
    if get_origin(schema) is dict:
        for key, value in raw.items():
            _check_fields(value, get_args(schema)[1], f"{where}{key}.")
        return
    options = [option for option in (get_args(schema) or (schema,)) if isinstance(option, type)]
    for section in (option for option in options if issubclass(option, Section)):
        names = {info.alias or name: info.annotation for name, info in section.model_fields.items()}
        for key, value in raw.items():
            if key not in names:
                raise unknown(f"field of {where.removesuffix('.')}:" if where else "recipe field", key, names)
            _check_fields(value, names[key], f"{where}{key}.")


def _runtime_fields(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, info in section.model_fields.items():
        here = (*path, info.alias or name)
        if RUNTIME_ONLY in info.metadata:
            yield here
        elif isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from _runtime_fields(info.annotation, here)


RUNTIME_FIELDS = tuple(_runtime_fields(Recipe))
"""The paths of the fields that are marked `RUNTIME_ONLY`."""


def decisive(plain: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a plain recipe that decide results."""
    return {
        key: decisive(value, (*path, key)) if isinstance(value, Mapping) else value
        for key, value in plain.items()
        if (*path, key) not in RUNTIME_FIELDS
    }


Differing = tuple[tuple[str, ...], Any, Any]
"""A field's path, its value in the one recipe and in the other."""


def differences(ours: Recipe, theirs: Recipe) -> list[Differing]:
    """The fields that decide results and differ."""

    def walk(a: Any, b: Any, path: tuple[str, ...]) -> Iterator[Differing]:
        by_module = any(isinstance(side, Mapping) and "modules" in side for side in (a, b)) and path[-1:] == ("gamma",)
        if isinstance(a, Mapping) and isinstance(b, Mapping) and not by_module:
            for key in [*a, *(key for key in b if key not in a)]:
                yield from walk(a.get(key), b.get(key), (*path, key))
        elif path == ("data", "extra", "file") and a and b and PurePath(a).name == PurePath(b).name:
            return  # a folder may have been moved
        elif a != b:
            yield path, a, b

    return list(walk(decisive(ours.plain()), decisive(theirs.plain()), ()))


def first_difference(ours: Recipe, theirs: Recipe) -> str | None:
    """The first field that decides results and differs, as `field: ours, theirs`; None where there is none."""
    for path, here, there in differences(ours, theirs):
        return f"{'.'.join(path)} is {shown(here)} here and {shown(there)} there"
    return None


def settings_between(ours: Recipe, theirs: Recipe) -> list[str]:
    """`field.path=value` for every field that makes our recipe theirs; none where it takes more than that."""
    changes = []
    for path, _, there in differences(ours, theirs):
        if path == ("name",) or (path[0] == "learners" and len(path) < 3):
            return []
        value = yaml.safe_dump(there, default_flow_style=True, allow_unicode=True, width=10**6)
        value = value.removesuffix("...\n").strip()  # which YAML writes after a lone number
        changes.append(f"{'.'.join(path)}={value}")
    return changes
