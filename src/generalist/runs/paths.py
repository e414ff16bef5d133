"""The names of all files of a run; nothing else knows them."""

from dataclasses import dataclass
from pathlib import Path

from generalist.core.names import RECIPE_FILE

GLOBAL = "global"
"""The name of the global model among the models of a run."""


class RunPaths:
    """The files of a run by what they are for, whether they exist or not."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunPaths) and self.folder == other.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run: it has a recipe."""
        return self.recipe_file.is_file()

    @property
    def recipe_file(self) -> Path:
        return self.folder / RECIPE_FILE

    @property
    def environment_file(self) -> Path:
        return self.folder / "environment.json"

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def summary_file(self) -> Path:
        return self.folder / "summary.json"

    @property
    def lock_file(self) -> Path:
        return self.folder / ".lock"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def models_folder(self) -> Path:
        return self.folder / "models"

    @property
    def figures(self) -> Path:
        return self.folder / "figures"

    @property
    def evaluations(self) -> Path:
        """Records, and the verdicts that evaluations go on from."""
        return self.folder / "evaluations"

    @property
    def dial_folder(self) -> Path:
        """Points that a dial has evaluated, and the verdicts that its exports go on from."""
        return self.folder / "dial"

    @property
    def explanations(self) -> Path:
        """What `generalist explain` found, for each model and each set of options."""
        return self.folder / "explanations"

    @property
    def needed(self) -> Path:
        """The runs that were trained first because this one needs their networks, one folder each."""
        return self.folder / "needs"

    @property
    def modules(self) -> "ModulePaths":
        """What `generalist modules` found out."""
        return ModulePaths(self.folder / "modules")

    @property
    def given(self) -> Path:
        """What `fit` was given as objects: images and first weights."""
        return self.folder / "given"

    @property
    def given_data(self) -> Path:
        return self.given / "data.npz"

    @property
    def given_start(self) -> Path:
        return self.given / "start.safetensors"

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def mlflow(self) -> Path:
        return self.folder / "mlflow"

    @property
    def wandb(self) -> Path:
        return self.folder / "wandb"

    def model_file(self, name: str = GLOBAL) -> Path:
        return self.models_folder / f"{name}.safetensors"

    def record_file(self, suite: str, name: str = GLOBAL) -> Path:
        return self.evaluations / f"{name}-{suite}.json"

    def analysis_figures(self, suite: str, name: str = GLOBAL) -> tuple[Path, Path]:
        """The figure of an analysis of a model, as PNG and as SVG."""
        return self.figures / f"{name}-{suite}.png", self.figures / f"{name}-{suite}.svg"

    def dial_file(self, key: str) -> Path:
        """The evaluated point of that key."""
        return self.dial_folder / f"{key[:32]}.json"

    @property
    def dial_record_file(self) -> Path:
        """The last dial: all of its points, and what each says of a few images."""
        return self.dial_folder / "last.json"

    def explanation_files(self, key: str) -> tuple[Path, Path]:
        """The JSON and the arrays of the explanation of that key."""
        return self.explanations / f"{key[:32]}.json", self.explanations / f"{key[:32]}.npz"

    def explain_figure(self, what: str, name: str = GLOBAL) -> Path:
        """The figure of a model's explanation, without its suffix."""
        return self.figures / (what if name == GLOBAL else f"{what}-{name}")

    def dial_figure(self, suffix: str) -> Path:
        return self.figures / f"dial{suffix}"

    def ways_figure(self, suffix: str) -> Path:
        """Losses and accuracies on the way between the endpoints of a dial."""
        return self.figures / f"dial-ways{suffix}"


@dataclass(frozen=True)
class ModulePaths:
    """The files of a measurement of modules: the report of each model, its figures, and what was measured so far."""

    folder: Path

    def report_file(self, name: str = GLOBAL) -> Path:
        return self.folder / f"{name}.json"

    def figure_files(self, name: str = GLOBAL) -> tuple[Path, Path]:
        return self.folder / f"{name}.png", self.folder / f"{name}.svg"

    def measured_file(self, key: str) -> Path:
        return self.folder / "measured" / f"{key[:20]}.json"
