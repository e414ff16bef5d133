"""The functions most users need, besides `train`."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from generalist.core.errors import UserError
from generalist.core.threat import Threat
from generalist.data import ArraySplit, Split, load_dataset
from generalist.evaluation import Attacked, Suite, evaluate_suite, load_suite
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
    threats: Sequence[str | Threat],
    suite: str | Suite = "pgd20",
    batch_size: int = 250,
    seed: int = 0,
    limit: int | None = None,
    cache: str | Path | None = None,
) -> Attacked:
    """Attack any model that takes images in [0, 1] and gives logits.

    `data` is a dataset's name (its test split is used), a split, or (images [N, C, H, W], labels [N]); `suite` is
    pgd20, quick, autoattack, paper, a YAML file or a Suite. With a `cache` folder an interrupted evaluation goes on
    where it stopped.
    """
    if isinstance(data, str):
        data = load_dataset(data).test
    elif isinstance(data, tuple):
        images, labels = data
        data = ArraySplit(images, labels.long())
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
