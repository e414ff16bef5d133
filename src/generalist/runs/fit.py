"""Somebody's own network and images, trained into a run folder like any other."""

import io
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from generalist.attacks import frozen
from generalist.core.errors import UserError
from generalist.core.files import user_path, write_atomically
from generalist.core.threat import Threat
from generalist.core.user_code import first_line
from generalist.data import DataWarning, Split, load_dataset
from generalist.data.datasets import named_source
from generalist.distributed import ranks
from generalist.models import architecture, build_model, called, reference, remember, save_model
from generalist.recipes.catalogue import Overrides, load_recipe
from generalist.recipes.own import base_setting, own_recipe
from generalist.recipes.schema import Recipe
from generalist.recipes.shipped import shipped_part
from generalist.runs.folder import Run
from generalist.runs.images import Images, as_split
from generalist.runs.paths import RunPaths
from generalist.runs.recorder import Callback
from generalist.runs.train import train as train_recipe
from generalist.training.precision import pick_device

MOST_BYTES = 2**31
"""Of images that are kept in a run folder."""
Given = str | Path | Images


def fit(
    model: nn.Module | Callable[[], nn.Module] | str,
    train: Given,
    validation: Images | None = None,
    *,
    test: Images | None = None,
    method: str | None = None,
    threats: str | Threat | Sequence[str | Threat] = ("linf:8/255", "l2:128/255"),
    epochs: int = 30,
    batch_size: int = 128,
    lr: float | None = None,
    seed: int = 0,
    overrides: Overrides = (),
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
) -> Run:
    """Train a network of your own on images of your own, into a run folder that resumes, evaluates and dials.

    Images, and the weights that the network has when it is given, are kept in the run folder. A network that can be
    imported (`module:Class`, made without arguments but classes, channels and size) is found again from any process and
    by the command line. Of any other, give the object once more: `generalist.load(run, model=…)`.

    Args:
        model: A module that takes images [B, C, H, W] in [0, 1] and returns logits [B, K], normalisation inside. It is
            copied, and training starts from its weights. Or a function that returns one, or a name that recipes know.
        train: A torch `Dataset`, a `DataLoader`, or a pair (images [N, C, H, W], labels [N]); or a dataset's name, an
            .npz file or a folder of images, which are not copied. Images are read once: vary them by `overrides`, such
            as `{"data.crop": 4, "data.flip": True}`.
        validation: Images to select models by; a share of train is held out if not given.
        test: Images to attack in the end; a fifth of train is held out if not given.
        method: A shipped method, such as `at` or `trades`; `generalist-late-t` if not given, and `generalist-late-half`
            where the threats have no ℓ2.
        threats: Norms and radii in pixel units that models are trained and validated under, one per norm.
        epochs: Epochs of training.
        batch_size: Images per batch.
        lr: Learning rate of every learner, before its schedule; the method's own if not given.
        seed: Of everything random.
        overrides: Other recipe fields to change, as in `train`.
        out: The run folder; `runs/<class>-<method>` if not given.
        resume: Go on from the last checkpoint of the run in that folder.
        callbacks: Functions that are called after each epoch with its row of `run.history`; one that returns something
            true ends training there.
        progress: Show progress, with the time left, on standard error.

    Returns:
        The run: `run.model()`, `run.history`, `run.summary`.

    Example:
        >>> import generalist, torch
        >>> from torch import nn
        >>> images, labels = torch.rand(80, 1, 8, 8), torch.arange(80) % 2
        >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
        >>> train, test = (images[:60], labels[:60]), (images[60:], labels[60:])
        >>> run = generalist.fit(network, train, test=test, epochs=5, batch_size=20, out=tmp / "mine")
        >>> run.models, [row["epoch"] for row in run.history]
        (['global', 'linf', 'natural', 'l2'], [1, 2, 3, 4, 5])
        >>> generalist.evaluate(run).record()["images"]
        20
    """
    balls = [Threat.parse(threat) for threat in ([threats] if isinstance(threats, str | Threat) else threats)]
    method = method or ("generalist-late-t" if any(ball.norm == "l2" for ball in balls) else "generalist-late-half")
    made = "network" if isinstance(model, str) else _title(model)
    folder = user_path(out) if out is not None else Path("runs") / f"{made}-{method}"
    paths = RunPaths(folder)
    if paths.exists and not resume:
        raise UserError(f"{folder} holds a run already; resume it or give another folder")
    began = paths.exists
    network = None if isinstance(model, str) else model if isinstance(model, nn.Module) else called(model)
    try:
        data = _data_section(paths, network, train, validation, test)
        recipe = _recipe(
            paths, model, network, data, name=f"{made}-{method}", method=method, threats=balls, epochs=epochs,
            batch_size=batch_size, lr=lr, seed=seed, overrides=overrides,
        )  # fmt: skip
        return train_recipe(recipe, out=folder, resume=resume, callbacks=callbacks, progress=progress)
    except BaseException:
        if not began and not paths.exists and ranks.is_main():
            shutil.rmtree(paths.given, ignore_errors=True)
            paths.lock_file.unlink(missing_ok=True)
            with suppress(OSError):  # it holds something else, or was never made
                folder.rmdir()
        raise


def _title(model: Any) -> str:
    kind = type(model) if isinstance(model, nn.Module) else model
    title = getattr(kind, "__name__", "network").lower()
    return title if title.isidentifier() else "network"


def _data_section(
    paths: RunPaths, network: nn.Module | None, train: Given, validation: Images | None, test: Images | None
) -> dict[str, Any]:
    """The recipe's section of the images; those that are given as objects are written to the run folder."""
    if isinstance(train, str | Path):
        if validation is not None or test is not None:
            raise UserError(f"{train} has splits of its own; give validation and test with images as objects alone")
        name, root = named_source(str(train), None)
        return {"name": name} | ({} if root is None else {"root": str(Path(root).resolve())})
    splits = {"train": _split("train", train)}
    splits |= {part: _split(part, given) for part, given in (("val", validation), ("test", test)) if given is not None}
    labelled = 1 + max(int(split.labels.max()) for split in splits.values() if len(split))
    classes = labelled if network is None else _logits(network, splits["train"])
    if classes < labelled:
        raise UserError(f"the model returns {classes} logits, the labels are of {labelled} classes")
    ranks.run_on_main(lambda: _keep_images(paths, splits, classes))
    return {"name": "npz", "root": str(paths.given_data.resolve())}


def _split(part: str, given: Images) -> Split:
    try:
        return as_split(given)
    except UserError as error:
        raise UserError(f"{part}: {error}") from None
    except Exception as error:  # a Dataset of somebody's own may fail in any way
        raise UserError(
            f"{part}: its images cannot be put together ({type(error).__name__}: {first_line(error)});"
            " give tensors [C, H, W] of one size with integer labels"
        ) from error


def _keep_images(paths: RunPaths, splits: Mapping[str, Split], classes: int) -> None:
    ids = {part: torch.arange(len(split)) for part, split in splits.items()}
    if paths.given_data.is_file():
        _compare_images(paths.given_data, splits)
        return
    arrays: dict[str, Any] = {"layout": np.array("NCHW"), "classes": np.array([str(k) for k in range(classes)])}
    for part, split in splits.items():
        arrays |= {f"x_{part}": split.read(ids[part]).numpy(), f"y_{part}": split.labels.numpy()}
    size = sum(array.nbytes for array in arrays.values())
    if size > MOST_BYTES:
        raise UserError(
            f"the images take {size >> 20} MiB, more than is kept in a run folder; write them as a folder of images or"
            " an .npz file and give its path"
        )
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    write_atomically(paths.given_data, packed.getvalue())


def _compare_images(kept: Path, splits: Mapping[str, Split]) -> None:
    with np.load(kept) as arrays:
        same = all(
            f"x_{part}" in arrays.files
            and np.array_equal(arrays[f"x_{part}"], split.read(torch.arange(len(split))).numpy())
            and np.array_equal(arrays[f"y_{part}"], split.labels.numpy())
            for part, split in splits.items()
        )
    if not same:
        warnings.warn(
            f"the images differ from those that {kept} keeps (a Dataset that varies them?); the kept ones are used",
            DataWarning,
            stacklevel=2,
        )


def _recipe(
    paths: RunPaths,
    model: Any,
    network: nn.Module | None,
    data: dict[str, Any],
    *,
    name: str,
    method: str,
    threats: Sequence[Threat],
    epochs: int,
    batch_size: int,
    lr: float | None,
    seed: int,
    overrides: Overrides,
) -> Recipe:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # said when the run loads them
        dataset = load_dataset(data["name"], root=data.get("root"), seed=seed)
    shape = {"channels": dataset.channels, "size": dataset.size}
    section = {"name": model}
    if network is not None:
        classes = len(dataset.classes)
        if (count := _logits(network, dataset.train)) != classes:
            raise UserError(f"the model returns {count} logits, the labels are of {classes} classes")
        section = {"name": _name(network, model, classes=classes, **shape), "normalize": "none"}
        ranks.run_on_main(lambda: _keep_start(paths, str(section["name"]), network, classes=classes, **shape))
    accelerated = pick_device().type != "cpu"
    radii = [str(threat) for threat in threats]
    fields = own_recipe(
        base=base_setting(dataset.size, accelerated=accelerated), method=method, data=data, model=section,
        threats=radii, shown=radii, epochs=epochs, batch_size=batch_size,
        steps=max(1, len(dataset.train) // batch_size), trains={"last": "1/4"}, tuned=False,
    )  # fmt: skip
    fields |= {"name": name, "seed": seed}
    if network is not None:
        fields["init"] = {"from": str(paths.given_start.resolve()), "epoch": 0}
    rates: dict[str, Any] = {}
    if lr is not None:
        rates = {f"learners.{learner}.optimizer.lr": lr for learner in shipped_part("methods", method)["learners"]}
    if isinstance(overrides, Mapping):
        return load_recipe(fields, {**rates, **overrides})
    return load_recipe(fields, [*(f"{field}={value}" for field, value in rates.items()), *overrides])


@torch.no_grad()
def _logits(network: nn.Module, split: Split) -> int:
    """How many logits the network returns."""
    images = split.read(torch.arange(min(2, len(split))))
    x = images.float() / (255 if images.dtype == torch.uint8 else 1)
    device = next((tensor.device for tensor in network.parameters()), torch.device("cpu"))
    try:
        with frozen(network), torch.random.fork_rng(devices=[]):
            logits = network(x.to(device))
    except Exception as error:
        raise UserError(
            f"the model cannot be run on images {list(x.shape)}: {type(error).__name__}: {first_line(error)}"
        ) from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
        what = list(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise UserError(f"the model returns {what} for {len(x)} images; it must return logits [{len(x)}, classes]")
    return logits.shape[1]


def _name(network: nn.Module, model: Any, *, classes: int, channels: int, size: int) -> str:
    """`module:callable` where that builds the same network again, else a name that this process remembers it by."""
    found = reference(type(network) if model is network else model)
    if found is not None:
        with suppress(UserError):
            again = build_model(found, classes=classes, channels=channels, size=size)
            if architecture(again.network) == architecture(network):
                return found
    return remember(network)


def _keep_start(paths: RunPaths, name: str, network: nn.Module, *, classes: int, channels: int, size: int) -> None:
    """The weights that the network has now; of a run that goes on, those that it had when it began."""
    if paths.given_start.is_file():
        return
    model = build_model(name, classes=classes, channels=channels, size=size)
    model.network.load_state_dict(network.state_dict())
    save_model(model, paths.given_start)
