"""Exported models: whole, the same, with a card of what was measured, and without need of this package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

import generalist
from generalist import Run, RunError, UserError
from generalist.models import read_extra
from generalist.runs import export as exporting
from run_cases import forked

SMALL = {
    "training.epochs": 2, "training.batch_size": 40, "data.limit": 120, "model.width": 2, "validation.images": 10,
    "validation.steps": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With its records; not to be written to."""
    run = generalist.train("digits-at", out=tmp_path_factory.mktemp("runs") / "mine", overrides=SMALL)
    generalist.evaluate(run, images=20)
    generalist.evaluate(run, images=20, name="linf", threats="linf:1/20")
    return run


@pytest.fixture
def run(trained: Run, tmp_path: Path) -> Run:
    return Run(shutil.copytree(trained.folder, tmp_path / "mine"))


def front_matter(card: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(card.read_text().split("---\n")[1])
    return found


WITHOUT_THIS_PACKAGE = """
import sys
sys.modules["generalist"] = None  # cannot be imported
import torch
model = torch.export.load(sys.argv[1]).module()
torch.save(model(torch.load(sys.argv[2])), sys.argv[3])
assert not [name for name in sys.modules if name.startswith("generalist.")]
"""


def test_a_hub_folder_is_loaded_in_one_line_without_this_package(trained: Run, tmp_path: Path) -> None:
    exported = generalist.export(trained, "hub-folder", out=tmp_path / "hub")
    names = {path.name for path in exported.files}
    assert names == {"README.md", "config.json", "model.json", "model.pt2", "model.safetensors"}
    assert {path.name for path in exported.path.iterdir()} == names
    assert exported.difference is not None
    assert exported.difference < 1e-5
    line = next(line for line in (exported.path / "README.md").read_text().splitlines() if "torch.export.load" in line)
    assert line == 'model = torch.export.load("model.pt2").module()'
    x = torch.rand(7, 1, 8, 8)
    torch.save(x, tmp_path / "x.pt")
    arguments = [exported.path / "model.pt2", tmp_path / "x.pt", tmp_path / "logits.pt"]
    subprocess.run([sys.executable, "-c", WITHOUT_THIS_PACKAGE, *map(str, arguments)], check=True, cwd=tmp_path)
    with torch.no_grad():
        expected = generalist.load(trained.folder)(x)
    assert torch.allclose(torch.load(tmp_path / "logits.pt"), expected, atol=1e-5)
    assert torch.equal(generalist.load(exported.path / "model.safetensors")(x), generalist.load(trained.folder)(x))
    config = json.loads((exported.path / "config.json").read_text())
    assert (config["num_labels"], config["id2label"]["3"], config["image_size"]) == (10, "3", 8)


def test_the_card_has_the_measured_figures_of_this_model(trained: Run, tmp_path: Path) -> None:
    card = generalist.export(trained, out=tmp_path / "hub").path / "README.md"
    record = trained.record("pgd20")
    metrics = front_matter(card)["model-index"][0]["results"][0]["metrics"]
    figures = {metric["name"]: metric["value"] for metric in metrics}
    assert figures["natural accuracy"] == record["natural"]
    assert figures["robust accuracy, PGD20, linf:3/20"] == record["accuracy"]["linf:3/20"]["PGD20"]
    text = card.read_text()
    assert "chosen on the validation split" in text
    assert trained.model_digest() in text
    for flag in record["red_flags"]:
        assert flag["message"] in text
    of_learner = generalist.export(trained, "pt2", out=tmp_path / "learner", name="linf").path.with_suffix(".card.md")
    names = [metric["name"] for metric in front_matter(of_learner)["model-index"][0]["results"][0]["metrics"]]
    assert names == ["natural accuracy", "robust accuracy, PGD20, linf:1/20"]


def test_a_record_of_other_weights_is_left_out_of_the_card(run: Run, tmp_path: Path) -> None:
    model: Any = generalist.load(run.folder)
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    generalist.save_model(model, run.model_file(), extra=read_extra(run.model_file()))
    with pytest.warns(UserWarning, match="left out of the card: .*global-pgd20.json is of other weights"):
        path = generalist.export(run, "pt2", out=tmp_path / "changed.pt2").path
    assert "model-index" not in front_matter(path.with_suffix(".card.md"))


@pytest.mark.parametrize("to", ["pt2", "onnx", "safetensors"])
def test_a_file_and_its_card(to: str, trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    exported = generalist.export(trained.folder, to)  # called as the run, here
    assert exported.path == Path(f"mine.{to}")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in exported.files)
    card = Path("mine.card.md").read_text()
    assert f'"mine.{to}"' in card
    code = card.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"images": torch.rand(3, 1, 8, 8).numpy()}
    exec(code, names)
    model: Any = generalist.load(trained.folder)
    x = torch.from_numpy(names["images"])
    logits = torch.from_numpy(names["logits"]) if to == "onnx" else names["model"](x)
    assert torch.allclose(logits, model(x), atol=1e-4)


def test_a_model_file_finds_its_run_while_it_lies_there(trained: Run, tmp_path: Path) -> None:
    card = generalist.export(trained.model_file("linf"), "pt2", out=tmp_path / "a.pt2").path.with_suffix(".card.md")
    assert "# mine-linf" in card.read_text()
    assert "model-index" in front_matter(card)
    for suffix in (".safetensors", ".json"):
        shutil.copy(trained.model_file("linf").with_suffix(suffix), tmp_path / f"alone{suffix}")
    card = generalist.export(tmp_path / "alone.safetensors", "pt2", out=tmp_path / "b").path.with_suffix(".card.md")
    assert "# alone" in card.read_text()
    assert "Nothing: this model has not been evaluated" in card.read_text()
    assert "chosen on the validation split" in card.read_text()


@pytest.mark.parametrize("to", ["pt2", "safetensors", "hub-folder"])
def test_what_differs_is_not_written(to: str, trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(content: Any) -> Any:
        return lambda x: torch.zeros(len(x), 10)

    monkeypatch.setattr(exporting, "from_pt2", other)
    monkeypatch.setattr(exporting, "load_model", other)
    with pytest.raises(RunError, match="gives other logits than the model"):
        generalist.export(trained, to, out=tmp_path / "deep" / "mine")
    assert list(tmp_path.iterdir()) == []


def test_a_half_made_hub_folder_leaves_nothing(trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what a killed process left is removed by the next one."""

    def fail(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "_config", fail)
    with pytest.raises(KeyboardInterrupt):
        generalist.export(trained, out=tmp_path / "deep" / "hub")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    ended = forked(lambda: None)
    (tmp_path / f".hub.{ended}.partial").mkdir()
    os.waitpid(ended, 0)
    generalist.export(trained, out=tmp_path / "hub")
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"to": "onx"}, "unknown format 'onx'; did you mean 'onnx'?"),
        ({"to": "tflite"}, "unknown format 'tflite'; known: hub-folder, onnx, pt2, robustbench, safetensors"),
        ({"to": "pt2", "push": "me/mine"}, "a hub takes a hub-folder, not pt2"),
        ({"push": "mine"}, "a repository of a hub is called user/name, got 'mine'"),
        ({"to": "pt2", "threat": "linf:1/4"}, "a threat goes with robustbench, not with pt2"),
        ({"to": "pt2", "out": "."}, "is a folder; give a file to write"),
        ({"to": "pt2", "out": "x.onnx"}, "'x.onnx' ends like another format; a file of pt2 ends in .pt2"),
        ({"to": "hub-folder", "out": "."}, "is not empty; give another folder"),
        ({"name": "natural"}, "has no model 'natural' yet; it has global, linf"),
    ],
)
def test_mistakes_are_one_line(
    options: dict[str, Any], told: str, trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as caught:
        generalist.export(trained, **options)
    assert told in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_path_of_this_machine_goes_to_others(run: Run, tmp_path: Path) -> None:
    here = str(tmp_path)
    extra = read_extra(run.model_file())
    extra["data"]["root"] = f"{here}/images"
    extra["dial"] = {"mixture": "1/2 linf", "endpoints": {"linf": {"run": f"{here}/mine", "model": "linf"}}}
    generalist.save_model(run.model(), run.model_file(), extra=extra)
    exported = generalist.export(run, out=tmp_path / "hub")
    for path in exported.files:
        assert here.encode() not in path.read_bytes()
    shared = read_extra(exported.path / "model.safetensors")
    assert shared["dial"]["endpoints"]["linf"] == {"run": "mine", "model": "linf"}
    assert generalist.load(exported.path / "model.safetensors").spec.classes == 10


def test_a_model_file_is_one_model(trained: Run) -> None:
    with pytest.raises(UserError, match=r"linf.safetensors is one model; the name of another goes with its run folder"):
        generalist.export(trained.model_file("linf"), "pt2", name="global")


def test_a_run_without_models_and_nothing_at_all(run: Run, tmp_path: Path) -> None:
    for path in run.models_folder.iterdir():
        path.unlink()
    with pytest.raises(UserError, match="has no model 'global' yet; it has none"):
        generalist.export(run)
    with pytest.raises(UserError, match="there is no run folder and no model file"):
        generalist.export(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is not a run folder"):
        generalist.export(tmp_path / "empty")


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_the_command(
    missing: str, trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, module, None if module == missing else SimpleNamespace())
    with pytest.raises(UserError, match=rf"ONNX needs {missing} .*pip install 'robust-generalist\[onnx\]'$"):
        generalist.export(trained, "onnx", out=tmp_path / "x.onnx")
    assert list(tmp_path.iterdir()) == []


class Api:
    """What is used of huggingface_hub.HfApi; it keeps what it is asked."""

    asked: list[tuple[str, dict[str, Any]]]
    fails = False

    def create_repo(self, **options: Any) -> str:
        self.asked.append(("create_repo", options))
        return f"https://hub/{options['repo_id']}"

    def upload_folder(self, **options: Any) -> None:
        if self.fails:
            raise PermissionError("401: no token\nand much more")
        files = sorted(path.name for path in Path(options["folder_path"]).iterdir())
        self.asked.append(("upload_folder", options | {"files": files}))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[Api]:
    Api.asked, Api.fails = [], False
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=Api))
    return Api


def test_a_folder_is_pushed_where_that_is_asked(trained: Run, tmp_path: Path, hub: type[Api]) -> None:
    generalist.export(trained, out=tmp_path / "first")
    assert hub.asked == []  # nothing is sent without push
    exported = generalist.export(trained, out=tmp_path / "hub", push="me/mine")
    assert exported.pushed == "https://hub/me/mine"
    (made, options), (uploaded, sent) = hub.asked
    assert (made, uploaded) == ("create_repo", "upload_folder")
    assert (options["repo_id"], options["private"], options["exist_ok"]) == ("me/mine", True, True)
    assert (sent["repo_id"], sent["files"]) == ("me/mine", sorted(path.name for path in exported.files))


def test_a_push_that_fails_leaves_the_folder(trained: Run, tmp_path: Path, hub: type[Api]) -> None:
    hub.fails = True
    with pytest.raises(
        RunError, match=r"hub is written, but was not pushed to me/mine: PermissionError: 401: no token$"
    ):
        generalist.export(trained, out=tmp_path / "hub", push="me/mine")
    assert (tmp_path / "hub" / "README.md").is_file()


def test_pushing_without_the_package_is_refused_first(
    trained: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pushing to a hub needs huggingface_hub .*'robust-generalist\[hub\]'"):
        generalist.export(trained, out=tmp_path / "hub", push="me/mine")
    assert list(tmp_path.iterdir()) == []
