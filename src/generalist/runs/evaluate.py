"""The functions most users need, besides `train`."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from generalist.core.errors import UserError
from generalist.core.threat import Threat
from generalist.data import ArraySplit, DataWarning, EvaluationImages, Split, load_evaluation_images
from generalist.evaluation import Suite, SuiteResult, evaluate_suite, load_suite
from generalist.models import Classifier, load_model
from generalist.runs.train import Run


def load(path: str | Path, name: str = "global") -> nn.Module:
    """A trained model in eval mode: from a run folder (its global model, or the learner `name`) or a model file."""
    path = Path(path)
    if not path.exists() and not path.with_name(f"{path.name}.safetensors").exists():
        raise UserError(f"there is no run folder and no model file {path}")
    if not path.is_dir():
        return load_model(path)
    run = Run(path)
    if name not in run.models:
        raise UserError(f"{path} has no model {name!r} yet; it has {', '.join(run.models) or 'none'}")
    return run.model(name)


def images_for(
    model: nn.Module | None,
    data: str | Path,
    *,
    root: str | Path | None = None,
    size: int | None = None,
    download: bool = False,
) -> EvaluationImages:
    """Images to judge a model by: a dataset's test split, an .npz file or a folder, as the model's card wants them.

    Its size, channels and classes rule: images are read at its size, labels are paired with its classes by name. For a
    model without a card `size` can be given.
    """
    spec = model.spec if isinstance(model, Classifier) else None
    found = load_evaluation_images(data, root=root, size=spec.size if spec else size, download=download)
    if not isinstance(model, Classifier) or spec is None:
        return found
    if found.split.shape[0] != spec.channels:
        raise UserError(f"{data}: images have {found.split.shape[0]} channels; the model takes {spec.channels}")
    _warn_of_training_images(model, str(data), found)
    return found._replace(split=_relabelled(found, str(data), spec.classes, model.trained_on.get("classes")))


def _relabelled(found: EvaluationImages, data: str, count: int, names: Sequence[str] | None) -> Split:
    """The labels as the model counts its classes."""
    labels = found.split.labels
    if found.numbered:
        if int(labels.max()) >= count:
            raise UserError(f"{data}: label {int(labels.max())}; the model tells {count} classes apart, from 0 on")
        return found.split
    if names is None:
        if len(found.classes) != count:
            raise UserError(
                f"{data} has {len(found.classes)} classes, the model {count} without names; they cannot be paired"
            )
        return found.split
    there = [found.classes[index] for index in labels.unique().tolist()]
    strange = [name for name in there if name not in names]
    if strange:
        some = ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")
        raise UserError(f"{data}: the model does not know the class {strange[0]!r}; it knows {some}")
    index = torch.tensor([names.index(name) if name in names else -1 for name in found.classes])
    return found.split.labelled(index[labels])


def _warn_of_training_images(model: Classifier, data: str, found: EvaluationImages) -> None:
    """Where the images come from the model's own training data, which has no test split of its own."""
    root = model.trained_on.get("root")
    if root is None or found.origin is None or not found.whole or not found.origin.is_relative_to(root):
        return
    if found.origin.relative_to(root).parts[:1] in ((), ("train",)):
        warnings.warn(f"{data}: images that this model was trained on are among them", DataWarning, stacklevel=3)


def _as_split(images: Any, labels: Any) -> ArraySplit:
    """Tensors, arrays or lists of images [N, C, H, W] and labels [N]."""
    images, labels = torch.as_tensor(images), torch.as_tensor(labels)
    if labels.is_floating_point() and not torch.equal(labels, labels.round()):
        raise UserError(f"labels are whole numbers, got {labels[labels != labels.round()][0].item()}")
    images = images if images.dtype == torch.uint8 else images.float()
    return ArraySplit(images, labels.long())


def evaluate(
    model: nn.Module,
    data: str | Path | Split | tuple[Any, Any],
    *,
    threats: str | Threat | Sequence[str | Threat],
    suite: str | Suite = "pgd20",
    batch_size: int = 250,
    seed: int = 0,
    limit: int | None = None,
    cache: str | Path | None = None,
    root: str | Path | None = None,
    download: bool = False,
) -> SuiteResult:
    """Attack any model that takes images in [0, 1] and gives logits.

    `data` is a dataset's name (its test split is used), an .npz file or a folder of images (its test split, or all of
    it), a split, or (images [N, C, H, W], labels [N]); `suite` is pgd20, quick, autoattack, paper, a YAML file or a
    Suite. With a `cache` folder an interrupted evaluation goes on where it stopped.
    """
    if limit is not None and limit < 1:
        raise UserError(f"limit must be at least 1, got {limit}")
    if isinstance(threats, str | Threat):
        threats = [threats]
    if isinstance(data, str | Path):
        data = images_for(model, data, root=root, download=download).split
    elif isinstance(data, tuple | list) and len(data) == 2:
        data = _as_split(*data)
    elif not isinstance(data, Split):
        raise UserError(f"data is a dataset's name, a file, a folder or (images, labels), got a {type(data).__name__}")
    if not len(data):
        raise UserError("there are no images to evaluate on; give at least one")
    return evaluate_suite(
        model,
        data,
        suite if isinstance(suite, Suite) else load_suite(suite),
        threats=[Threat.parse(threat) for threat in threats],
        batch_size=batch_size,
        seed=seed,
        limit=limit,
        cache=None if cache is None else Path(cache),
    )
