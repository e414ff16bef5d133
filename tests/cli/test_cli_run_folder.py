"""What a run leaves behind, and what Python finds in it."""

import json
from pathlib import Path

import pytest
import torch
from cli_cases import SMALL
from PIL import Image

import generalist
from generalist.core.errors import UserError
from generalist.evaluation import evaluate_split
from generalist.runs.folder import Run

MODELS = ["global", "linf", "natural", "l2"]


def test_everything_is_there(trained: Run) -> None:
    names = {str(path.relative_to(trained.folder)) for path in trained.folder.rglob("*") if path.is_file()}
    wanted = {"recipe.yaml", "environment.json", "metrics.jsonl", "summary.json"}
    wanted |= {f"models/{name}.{kind}" for name in MODELS for kind in ("safetensors", "json")}
    wanted |= {
        f"figures/{name}.{kind}" for name in ("accuracy", "loss", "gamma", "regret", "drift") for kind in ("png", "svg")
    }
    assert wanted <= names
    checkpoints = sorted(Path(name).stem for name in names if name.startswith("checkpoints/"))
    assert checkpoints == ["step-000000006"] * 2 + ["step-000000009"] * 2
    assert not [name for name in names if name.endswith(".tmp")]


def test_it_explains_itself(trained: Run) -> None:
    assert trained.recipe == generalist.load_recipe("digits-generalist-t", SMALL)
    environment = json.loads((trained.folder / "environment.json").read_text())
    assert environment["images"]["train"] == 120
    assert environment["versions"]["torch"] == torch.__version__
    assert [row["epoch"] for row in trained.metrics if row["kind"] == "epoch"] == [1, 2, 3]
    assert trained.summary["steps"] == 9
    assert trained.summary["live_epochs"]["linf"] == 3
    assert list(trained.summary["selected"]) == MODELS
    assert trained.models == MODELS
    drawn = sorted((trained.folder / "figures").glob("*.png"))
    for path in drawn:
        assert Image.open(path).size[0] >= 800
        assert path.with_suffix(".svg").is_file()
    assert drawn


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_does_what_the_record_says(trained: Run, name: str) -> None:
    model = generalist.load(trained.folder, name)
    assert not model.training
    recipe = trained.recipe
    data = generalist.load_dataset("digits", validation=recipe.data.validation, limit=recipe.data.limit)
    validation = recipe.validation
    again = evaluate_split(
        model, data.validation, threats=validation.threats, steps=validation.steps, limit=validation.images
    ).record()
    kept = trained.summary["selected"][name]
    assert again["natural"] == kept["natural"]
    assert again["robust"] == kept["robust"]


def test_python_trains_loads_and_evaluates(tmp_path: Path) -> None:
    run = generalist.train("digits-nt", overrides=list(SMALL), out=tmp_path / "run")
    assert isinstance(run, Run)
    assert run.finished
    x, y = torch.rand(30, 1, 8, 8), torch.arange(30) % 10
    model = generalist.load(tmp_path / "run")
    found = generalist.evaluate(model, (x, y), threats=["linf:0.1"])
    assert list(found.record()["accuracy"]) == ["linf:1/10"]
    assert found.record()["natural"] == pytest.approx(100 * (model(x).argmax(1) == y).float().mean().item(), abs=0.01)
    by_file = generalist.load(tmp_path / "run" / "models" / "global.safetensors")
    assert torch.equal(model(x), by_file(x))


def test_python_says_what_is_missing(trained: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model 'l1' yet; it has global, linf, natural, l2"):
        generalist.load(trained.folder, "l1")
    with pytest.raises(UserError, match="not a run folder"):
        generalist.load(tmp_path)
    with pytest.raises(UserError, match="no run folder and no model file"):
        generalist.load(tmp_path / "nothing")
    model = generalist.load(trained.folder)
    with pytest.raises(UserError, match="at least one"):
        generalist.evaluate(model, (torch.rand(0, 1, 8, 8), torch.zeros(0)), threats=["linf:0.1"])
    with pytest.raises(UserError, match="norm:eps"):
        generalist.evaluate(model, "digits", threats=["0.1"])
    (tmp_path / "recipe.yaml").write_text(trained.recipe.to_yaml())
    with pytest.raises(UserError, match="not finished"):
        _ = Run(tmp_path).summary
