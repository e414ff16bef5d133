"""The tree tells the story, left to right."""

import ast
from pathlib import Path

import generalist

ROOT = Path(generalist.__file__).parent


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {
                f"{node.module}.{alias.name}" if node.module == "generalist" else str(node.module)
                for alias in node.names
            }
    return {name.split(".")[1] for name in found if name.startswith("generalist.")}


def test_a_file_imports_only_from_its_own_layer_and_those_before():
    files = [
        path
        for path in ROOT.rglob("*.py")
        if path.name not in ("__main__.py",) and path.parent / path.name != ROOT / "__init__.py"
    ]
    for path in files:
        layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
        assert layer in generalist.LAYERS, f"{layer} is not in LAYERS"
        allowed = generalist.LAYERS[: generalist.LAYERS.index(layer) + 1]
        assert _imports(path) <= set(allowed), f"{path}: {_imports(path) - set(allowed)} comes after {layer}"


def test_every_public_name_is_there():
    assert [name for name in generalist.__all__ if not hasattr(generalist, name)] == []
    assert len(generalist.__all__) <= 40


def test_no_module_stands_outside_a_package():
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py", "version.py"}


def test_one_file_knows_the_file_names_of_a_run():
    names = ("recipe.yaml", "environment.json", "metrics.jsonl", "summary.json", ".lock")
    folders = (
        "checkpoints",
        "models",
        "figures",
        "evaluations",
        "needs",
        "tensorboard",
        "mlflow",
        "wandb",
        "dial",
        "modules",
        "explanations",
    )
    quoted = [f'"{name}"' for name in names] + [f'/ "{name}"' for name in folders]
    knowing = {path for path in ROOT.rglob("*.py") if any(text in path.read_text() for text in quoted)}
    own_cache = ROOT / "runs" / "targets.py"  # the user's cache has a folder called evaluations too
    shell = ROOT / "core" / "names.py"  # what a shell's completion looks for, before torch is imported
    assert knowing - {own_cache} == {ROOT / "runs" / "paths.py", shell}
