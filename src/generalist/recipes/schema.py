"""A recipe: everything that decides a result, in one file. Nothing below `build` sees it."""

from collections.abc import Mapping
from fractions import Fraction
from math import floor
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import (
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
from generalist.core.registry import explain
from generalist.core.schedules import SCHEDULES
from generalist.core.threat import Threat
from generalist.core.types import Count, Exact, Natural, NonNegativeFloat, PositiveFloat, Steps, Unit
from generalist.data import UNREADABLE
from generalist.mixing import REST
from generalist.objectives import OBJECTIVES, networks_needed, starts_itself
from generalist.recipes.values import (
    LONGEST_TEXT,
    Component,
    Text,
    plain_gamma,
    plain_trains,
    read_component,
    read_gamma,
    read_track,
    read_trains,
    reraised,
)
from generalist.training.optimizers import OPTIMIZERS
from generalist.training.precision import Precision
from generalist.training.selection import Rule

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

    objective: Annotated[Component, BeforeValidator(read_component(OBJECTIVES)), _AsPlain]
    optimizer: Annotated[Component, BeforeValidator(read_component(OPTIMIZERS)), _AsPlain]
    schedule: Annotated[Component, BeforeValidator(read_component(SCHEDULES)), _AsPlain] = Component("constant")
    gamma: Annotated[Any, BeforeValidator(read_gamma), PlainSerializer(plain_gamma)] = REST
    weight_averaging: bool = False
    weight_perturbation: NonNegativeFloat = 0.0
    trains: Annotated[Any, BeforeValidator(read_trains), PlainSerializer(plain_trains)] = None
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

    name: Annotated[str, BeforeValidator(lambda given: reraised(file_name, given, "a recipe's name"))]
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
    track: Annotated[tuple[str, ...], BeforeValidator(read_track), RUNTIME_ONLY] = ()
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
