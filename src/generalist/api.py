"""The functions most users need, besides `train`."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from generalist.core.errors import UserError
from generalist.core.threat import Threat
from generalist.data import ArraySplit, Split, load_dataset
from generalist.evaluation import Evaluation, evaluate_split
from generalist.models import load_model
from generalist.run import Run


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


def evaluate(
    model: nn.Module,
    data: str | Split | tuple[Tensor, Tensor],
    *,
    threats: Sequence[str | Threat] = (),
    steps: int = 20,
    batch_size: int = 250,
    seed: int = 0,
    limit: int | None = None,
) -> Evaluation:
    """Natural and PGD accuracy of any model that takes images in [0, 1].

    `data` is a dataset's name (its test split is used), a split, or (images [N, C, H, W], labels [N]).
    """
    if isinstance(data, str):
        data = load_dataset(data).test
    elif isinstance(data, tuple):
        images, labels = data
        data = ArraySplit(images, labels.long())
    if not len(data):
        raise UserError("there are no images to evaluate on; give at least one")
    parsed = [Threat.parse(threat) for threat in threats]
    return evaluate_split(model, data, threats=parsed, steps=steps, batch_size=batch_size, seed=seed, limit=limit)
