"""Recipe → objects. The last place that sees a recipe, the first that sees everything else."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from generalist.attacks import frozen
from generalist.core.errors import UserError
from generalist.core.files import fingerprint, user_path
from generalist.core.schedules import SCHEDULES, within
from generalist.core.types import Batch, Objective, StateTree
from generalist.data import (
    ArraySplit,
    Augment,
    Dataset,
    Label,
    Mixture,
    Split,
    batches,
    load_dataset,
    read_extra_split,
    steps_per_epoch,
)
from generalist.distributed.shared_batchnorm import share_batchnorm_
from generalist.evaluation import evaluate_split
from generalist.mixing import Gamma, MixPlan, Part, has_batchnorm, parts_of, recalibrate_
from generalist.models import PRETRAINED, build_model, is_foreign, load_weights, published_weights
from generalist.models.modules import depth_below, replace_tensors_, select_tensors, tensor_names
from generalist.objectives import carries_state, make_objective
from generalist.recipes.schema import LABELS, LearnerSection, Recipe
from generalist.runs.paths import RunPaths
from generalist.training.learner import Learner
from generalist.training.optimizers import OPTIMIZERS
from generalist.training.precision import pick_device, pick_precision
from generalist.training.selection import Scores
from generalist.training.state import TrainState

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DIVERGED = 50.0
"""A loss this many times that of a uniform guess counts as diverged."""


@dataclass
class Experiment:
    """A recipe made real on this machine."""

    recipe: Recipe
    dataset: Dataset
    device: torch.device
    precision: torch.dtype
    plan: MixPlan
    state: TrainState
    mixture: Mixture | None = None
    _global_step: int | None = None  # after which the global model was made

    def feed(self, start: int) -> Iterator[Batch]:
        """The training batches from step `start` to the end of the plan."""
        for epoch in range(start // self.plan.steps_per_epoch, self.plan.epochs):
            first = max(0, start - epoch * self.plan.steps_per_epoch)
            yield from self._batches("train", epoch, first)

    def _batches(self, purpose: str, epoch: int, first: int = 0) -> Iterator[Batch]:
        data, seed = self.recipe.data, self.recipe.seed
        draw = partial(batches, self.dataset.train) if self.mixture is None else self.mixture.batches
        return draw(
            batch_size=self.recipe.training.batch_size,
            seed=seed if purpose == "train" else seed + 1,
            epoch=epoch,
            start=first,
            augment=Augment(crop=data.crop, flip=data.flip, cutout=data.cutout),
            device=self.device,
            workers=data.workers,
            balance=data.balance,
        )

    def data_digest(self) -> str:
        """Of all images and labels that training depends on."""
        extra = None if self.mixture is None else self.mixture.extra.digest()
        selecting = self.dataset.test.digest() if self.recipe.select == "test" else None
        return fingerprint([self.dataset.training_digest(), extra, selecting])

    def global_model(self) -> nn.Module:
        """θ_g as it is now, with its BatchNorm statistics mixed or measured afresh, as the recipe says.

        Made once per step, however often it is asked for.
        """
        model = self.state.global_model
        if self._global_step != self.state.step:
            self.state.materialise_global_()
            if self.recipe.mixing.batchnorm == "recalibrate" and has_batchnorm(model):
                self._recalibrate_(model, [learner.objective for learner in self.state.learners.values()])
            self._global_step = self.state.step
        return model

    def _recalibrate_(self, model: nn.Module, objectives: Sequence[Objective]) -> None:
        step = self.state.step
        sample = self._batches("recalibrate", step // self.plan.steps_per_epoch)
        some = islice(sample, self.recipe.mixing.recalibrate_batches)
        recalibrate_(model, objectives, some, seed=self.recipe.seed, progress=float(self.plan.progress(step)))

    def variants(self, name: str, model: nn.Module) -> Iterator[nn.Module]:
        """What the finished model `name` is chosen from: itself, unless its learner's objective offers others."""
        only = next(iter(self.state.learners)) if len(self.state.learners) == 1 else name
        learner = self.state.learners.get(only if name == "global" else name)
        if learner is None:
            yield model
            return
        for variant in learner.objective.variants(model):
            if variant is not model:
                self._recalibrate_(variant, [])
            yield variant

    def redistribute_(self, names: Sequence[str]) -> None:
        """θ_a ← θ_g for these learners. One that starts or ends now keeps nothing, whatever resets leave alone."""
        state = {name: tensor.clone() for name, tensor in self.global_model().state_dict().items()}
        mixing = self.recipe.mixing
        for name in names:
            anew = self.plan.starts_or_ends(name, self.state.step - 1)
            self.state.learners[name].reset_(
                state, momentum=anew or mixing.momentum == "reset", averages=anew or mixing.averages == "reset"
            )

    def validate(self, model: nn.Module) -> Scores:
        """Natural and PGD accuracy on the split that the recipe selects by."""
        validation = self.recipe.validation
        evaluation = evaluate_split(
            model,
            self.selection_split,
            threats=validation.threats,
            steps=validation.steps,
            limit=validation.images,
            batch_size=validation.batch_size,
            seed=self.recipe.seed,
            workers=self.recipe.data.workers,
        ).record()
        return Scores(evaluation["natural"], evaluation["robust"])

    @property
    def depths(self) -> dict[str, float]:
        """The share of the network that each learner's backward pass goes through."""
        return {name: depth_below(a.model, a.own) for name, a in self.state.learners.items()}

    @property
    def selection_split(self) -> Split:
        return self.dataset.test if self.recipe.select == "test" else self.dataset.validation


def load_data(recipe: Recipe, *, download: bool = False, root: Path | None = None) -> Dataset:
    """The recipe's data, from another root if one is given."""
    data = recipe.data
    return load_dataset(
        data.name,
        root=data.root if root is None else root,
        validation=data.validation,
        seed=recipe.seed,
        size=data.size,
        limit=data.limit,
        channels=data.channels,
        unreadable=data.unreadable,
        download=download,
    )


def build(
    recipe: Recipe,
    *,
    download: bool = False,
    dataset: Dataset | None = None,
    networks: Mapping[str, nn.Module] | None = None,
) -> Experiment:
    """Load the data unless it is given, build learners and plan; nothing is trained or written.

    `networks` are those that the recipe needs; without them untrained ones stand in, for plans and estimates.
    """
    dataset = dataset or load_data(recipe, download=download)
    device = pick_device(recipe.training.device)
    precision = pick_precision(recipe.training.precision, device)
    global_model = build_network(recipe, dataset).to(device)
    stand_ins = {need: build_network(recipe, dataset) for need in recipe.needs} if networks is None else {}
    networks = {need: network.to(device) for need, network in {**stand_ins, **(networks or {})}.items()}
    mixture = _mixture(recipe, dataset, networks.get(LABELS), labelled=not stand_ins)
    size = recipe.training.batch_size
    steps = steps_per_epoch(dataset.train, batch_size=size) if mixture is None else mixture.steps(size)
    plan, trained, parts = planned(recipe, global_model, steps)
    frozen_tensors: dict[tuple[int, int], StateTree] = {}  # those with the same window are reset at the same moments
    learners = [
        _build_learner(
            recipe, name, section, dataset, device, precision, start=global_model, networks=networks,
            trained=trained[name], frozen_tensors=frozen_tensors,
        )
        for name, section in recipe.learners.items()
    ]  # fmt: skip
    start = recipe.first_epoch * plan.steps_per_epoch
    _take_over_(global_model, learners)
    state = TrainState(learners, global_model, step=start, parts={name: part.tensors for name, part in parts.items()})
    return Experiment(recipe, dataset, device, precision, plan, state, mixture)


def planned(
    recipe: Recipe, network: nn.Module, steps: int
) -> tuple[MixPlan, dict[str, frozenset[str] | None], dict[str, Part]]:
    """The plan with so many steps per epoch, what each learner trains, and which parts are mixed alike."""
    trained = {name: trained_tensors(name, section, network) for name, section in recipe.learners.items()}
    parts = parts_of(network, {name: section.gamma for name, section in recipe.learners.items()}, trained)
    return build_plan(recipe, steps, parts), trained, parts


def _take_over_(global_model: nn.Module, learners: Sequence[Learner]) -> None:
    """Where an objective gives its learner a start of its own, that is θ⁰ of all."""
    own = [learner for learner in learners if learner.objective.own_start]
    for model in (global_model, *(learner.model for learner in learners)) if own else ():
        model.load_state_dict(own[0].model.state_dict())


def _mixture(recipe: Recipe, dataset: Dataset, labeller: nn.Module | None, *, labelled: bool) -> Mixture | None:
    extra = recipe.data.extra
    if extra is None:
        return None
    label: Label | None = None
    if labeller is not None:
        label = partial(_classes, labeller) if labelled else lambda x: torch.zeros(len(x), dtype=torch.int64)
    return Mixture(dataset.train, read_extra_split(user_path(extra.file), dataset, label=label), extra.share)


@torch.no_grad()
def _classes(network: nn.Module, x: Tensor) -> Tensor:
    device = next(network.parameters()).device
    with frozen(network):
        classes: Tensor = network(x.to(device)).argmax(1)
    return classes.cpu()


def trained_tensors(name: str, section: LearnerSection, model: nn.Module) -> frozenset[str] | None:
    """The tensors that a learner trains; None for all of them."""
    if section.trains is None:
        return None
    try:
        trained = select_tensors(model, section.trains)
    except UserError as error:
        raise UserError(f"learners.{name}.trains: {error}") from None
    if not any(key in trained for key, _ in model.named_parameters()):
        raise UserError(f"learners.{name}.trains: {section.trains} has no parameter; name modules with weights")
    return trained


def build_plan(recipe: Recipe, steps: int, parts: Mapping[str, Part] | None = None) -> MixPlan:
    """When the recipe's learners are mixed, reset and idle, with so many steps per epoch.

    `parts` are those of the network; without them no γ may depend on the module.
    """
    mixing = recipe.mixing
    asked = "redistribute" in mixing.model_fields_set and mixing.redistribute != "never"
    if asked and len(recipe.learners) == 1:
        warnings.warn(
            f"mixing.redistribute={mixing.redistribute} has no effect: {recipe.name} has one learner,"
            " and a lone learner is never reset",
            stacklevel=2,
        )
    resets = {
        name: mixing.momentum == "reset"
        and (mixing.averages == "reset" or not section.weight_averaging)
        and not carries_state(section.objective.name)
        for name, section in recipe.learners.items()
    }
    parted = None if parts is None else {name: part.gammas for name, part in parts.items()}
    plain: dict[str, Gamma] = {name: section.gamma for name, section in recipe.learners.items()}
    every = [plain] if parted is None else [*parted.values()]
    return MixPlan(
        gammas={name: next(gammas[name] for gammas in every if name in gammas) for name in recipe.learners},
        epochs=recipe.training.epochs,
        steps_per_epoch=steps,
        decay_limit=mixing.decay,
        decay_warmup=mixing.decay_warmup,
        start_epoch=round(mixing.start * recipe.training.epochs),
        every_epochs=mixing.every_epochs,
        redistribution=mixing.redistribute,
        full_reset=resets,
        train_idle=mixing.train_idle,
        parts=parted if len(every) > 1 else None,
        windows={name: recipe.window(name) for name in recipe.learners},
    )


def build_network(recipe: Recipe, dataset: Dataset) -> nn.Module:
    """The recipe's network, untrained or from `init`."""
    channels, height, width = dataset.shape
    if height != width:
        raise UserError(f"networks here take square images, got {height}×{width}; set data.size to resize them")
    mean, std = _statistics(dataset.train) if recipe.model.normalize == "data" else (None, None)
    published = None
    if recipe.init and recipe.init.from_ == PRETRAINED:
        published = published_weights(
            recipe.model.name,
            classes=len(dataset.classes),
            channels=channels,
            seed=recipe.seed,
            options=recipe.model.options,
        )
        mean, std = (published.mean, published.std) if published.mean and published.std else (mean, std)
    model = build_model(
        recipe.model.name,
        classes=len(dataset.classes),
        channels=channels,
        size=height,
        width=recipe.model.width,
        mean=mean,
        std=std,
        seed=recipe.seed,
        **recipe.model.options,
    )
    if published is not None:
        model.network.load_state_dict(published.state)
    elif recipe.init:
        load_weights(model, init_file(recipe.init.from_), rename=recipe.init.rename)
    if is_foreign(recipe.model.name):
        _check_output(recipe.model.name, model, torch.zeros(2, channels, height, width), len(dataset.classes))
    return model


@torch.no_grad()
def _check_output(name: str, model: nn.Module, x: Tensor, classes: int) -> None:
    """Somebody else's network must give the logits that every objective expects."""
    try:
        with frozen(model), torch.random.fork_rng(devices=[]):
            out = model(x)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(f"model {name!r} on images {list(x.shape)}: {type(error).__name__}: {reason}") from error
    if not isinstance(out, Tensor) or out.shape != (len(x), classes) or out.dtype != torch.float32:
        what = f"{list(out.shape)} in {out.dtype}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise UserError(
            f"model {name!r} returns {what} for {len(x)} images; to be trained it must return float32 logits "
            f"[{len(x)}, {classes}]"
        )


def init_file(source: str) -> Path:
    """A weights file, or the global model of a run."""
    path = user_path(source)
    return RunPaths(path).model_file() if path.is_dir() else path


def _build_learner(
    recipe: Recipe,
    name: str,
    section: LearnerSection,
    dataset: Dataset,
    device: torch.device,
    precision: torch.dtype,
    *,
    start: nn.Module,
    networks: Mapping[str, nn.Module],
    trained: frozenset[str] | None,
    frozen_tensors: dict[tuple[int, int], StateTree],
) -> Learner:
    model = build_network(recipe, dataset).to(device)
    model.load_state_dict(start.state_dict())
    if recipe.training.sync_batchnorm:
        share_batchnorm_(model)
    if trained is not None:
        shared = frozen_tensors.setdefault(recipe.window(name), {})
        replace_tensors_(model, shared, [key for key in tensor_names(model) if key not in trained])
    optimizer = section.optimizer
    first, end = (Fraction(epoch, recipe.training.epochs) for epoch in recipe.window(name))
    return Learner(
        name,
        model,
        make_objective(section.objective.name, section.objective.options, networks=networks),
        partial(OPTIMIZERS.get(optimizer.name), **optimizer.options),
        lr=optimizer.options["lr"],
        schedule=within(partial(SCHEDULES.get(section.schedule.name), **section.schedule.options), first, end),
        weight_averaging=section.weight_averaging,
        weight_perturbation=section.weight_perturbation,
        clip_norm=recipe.training.clip_norm,
        accumulate=recipe.training.accumulate,
        precision=precision,
        loss_limit=DIVERGED * float(torch.tensor(max(2, len(dataset.classes))).log()),
        trained=trained,
    )


def _statistics(train: Split) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel over the training images; ImageNet's for data that streams from disk."""
    if not isinstance(train, ArraySplit):
        return IMAGENET_MEAN, IMAGENET_STD
    total = torch.zeros(2, train.shape[0], dtype=torch.float64)
    for images in train.images.split(4096):
        x = images.double() / (255 if images.dtype == torch.uint8 else 1)
        total += torch.stack([x.mean((2, 3)).sum(0), x.square().mean((2, 3)).sum(0)])
    mean, square = total / len(train)
    std = (square - mean**2).clamp_min(1e-6).sqrt()
    return tuple(round(v, 6) for v in mean.tolist()), tuple(round(v, 6) for v in std.tolist())
