"""The images that a model is judged by: named, from files, or given as they are."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from generalist.core.errors import UserError
from generalist.data import ArraySplit, DataWarning, EvaluationImages, Split, load_evaluation_images
from generalist.models import Classifier

Images = Split | DataLoader[Any] | TorchDataset[Any] | Sequence[Any]
"""Images and labels as they are: a split, a DataLoader, a torch Dataset, or a pair (images, labels)."""


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
    found = load_evaluation_images(
        data,
        root=root,
        size=spec.size if spec else size,
        channels=spec.channels if spec and spec.channels in (1, 3) else None,
        download=download,
    )
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


def as_split(given: Images) -> Split:
    """Images [N, C, H, W] (float in [0, 1], or uint8) with labels [N], however they are held."""
    if isinstance(given, Split):
        return given
    if isinstance(given, DataLoader):
        batches = [(torch.as_tensor(images), torch.as_tensor(labels)) for images, labels, *_ in given]
        return _from_arrays(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
    if isinstance(given, TorchDataset):
        return as_split(DataLoader(given, batch_size=256))
    if isinstance(given, tuple | list) and len(given) == 2:
        return _from_arrays(*given)
    raise UserError(
        "data is a dataset's name, a file, a folder, a DataLoader, a torch Dataset or (images, labels),"
        f" got a {type(given).__name__}"
    )


def _from_arrays(images: Any, labels: Any) -> ArraySplit:
    """From tensors, NumPy arrays or lists."""
    images, labels = torch.as_tensor(images), torch.as_tensor(labels)
    if labels.is_floating_point() and not torch.equal(labels, labels.round()):
        raise UserError(f"labels are whole numbers, got {labels[labels != labels.round()][0].item()}")
    images = images if images.dtype == torch.uint8 else images.float()
    return ArraySplit(images, labels.long())
