"""What a model is, in a form that survives JSON, and the module that carries it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor, nn

from generalist.core.errors import UserError, unknown


@dataclass(frozen=True)
class ModelSpec:
    """All that is needed to build a model again, without its weights."""

    name: str
    classes: int
    channels: int = 3
    size: int = 32
    width: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of JSON types."""
        plain = asdict(self)
        for name in ("mean", "std"):
            plain[name] = None if plain[name] is None else list(plain[name])
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "ModelSpec":
        """From what `to_json` gave."""
        known = [item.name for item in fields(cls)]
        for name in plain:
            if name not in known:
                raise unknown("field of a model's spec", name, known)
        for name in ("name", "classes"):
            if name not in plain:
                raise UserError(f"a model's spec without {name!r}; it needs name and classes")
        tuples = {name: tuple(plain[name]) for name in ("mean", "std") if plain.get(name) is not None}
        return cls(**{**plain, **tuples})


class Classifier(nn.Module):
    """Images in [0, 1] → logits: normalisation and network in one.

    `contiguous` is for networks that do not work channels-last; `trained_on` is what a card says
    of the data: its name, its root, and the names of the classes in their order.
    """

    def __init__(self, *, normalize: nn.Module, network: nn.Module, spec: ModelSpec, contiguous: bool = False) -> None:
        super().__init__()
        self.normalize = normalize
        self.network = network
        self.spec = spec
        self.contiguous = contiguous
        self.trained_on: Mapping[str, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.network(self.normalize(x.contiguous() if self.contiguous else x))
