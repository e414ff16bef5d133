"""`generalist init`: from a folder of images, or arrays, to a recipe that trains, evaluates, dials and reports."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_cases import Cli
from PIL import Image

import generalist
from generalist.recipes.catalogue import load_recipe

TINY = ("training.epochs=5", "model.width=4", "validation.every_epochs=5", "training.batch_size=10")
SHORT = [part for change in TINY for part in ("--set", change)]
Draw = Callable[..., Path]


@pytest.fixture
def photos(tmp_path: Path) -> Draw:
    """A folder of images whose colour tells the class."""

    def draw(
        counts: dict[str, int], *, sides: tuple[tuple[int, int], ...] = ((16, 16),), gray: tuple[str, ...] = ()
    ) -> Path:
        source = np.random.default_rng(0)
        for place, (name, count) in enumerate(counts.items()):
            folder = tmp_path / "photos" / name
            folder.mkdir(parents=True)
            for n in range(count):
                height, width = sides[n % len(sides)]
                pixels = source.integers(0, 100, (height, width, 3), dtype=np.uint8)
                pixels[..., place % 3] += 120
                image = Image.fromarray(pixels)
                (image.convert("L") if name in gray else image).save(folder / f"{n:03}.png")
        return tmp_path / "photos"

    return draw


def test_five_commands_from_images_to_a_report(cli: Cli, photos: Draw, fast: Path, tmp_path: Path) -> None:
    photos({"red": 30, "green": 30}, sides=((12, 12),))
    first = cli("init", "photos", "--no-probe")
    assert first.code == 0, first.err
    assert "train it with: generalist train photos.yaml" in first.out
    assert cli("train", "photos.yaml", *SHORT, "--out", "run").code == 0
    assert cli("dial", "run", "--points", "4", "--images", "8", "--maximise", "natural", "--export", "chosen").code == 0
    assert cli("eval", "run", "chosen", "--suite", fast, "--global").code == 0
    last = cli("report", "run", "chosen", "--images", "8", "--out", "page.html")
    assert last.code == 0, last.err
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_another_method_needs_no_other_file(cli: Cli, photos: Draw) -> None:
    photos({"red": 12, "green": 12})
    assert cli("init", "photos", "--no-probe").code == 0
    plan = cli("train", "photos.yaml", "--method", "at", "--dry-run", "--json", "--set", "training.batch_size=8")
    assert plan.json["recipe"] == "photos-at"
    assert list(plan.json["learners"]) == ["linf"]


def test_a_folder_as_folders_are(cli: Cli, photos: Draw, tmp_path: Path) -> None:
    """Mixed sizes, gray among colour, damaged files, one class far larger than the other."""
    root = photos({"many": 90, "rare": 10, "gray": 12}, sides=((30, 40), (48, 33), (36, 36)), gray=("gray",))
    (root / "many" / "broken.jpg").write_bytes(b"\xff\xd8 nothing")
    whole = (root / "many" / "000.png").read_bytes()
    (root / "rare" / "cut.png").write_bytes(whole[:300])
    (root / "many" / "notes.txt").touch()
    outcome = cli("init", "photos", "--out", "mine.yaml", "--no-probe", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert sorted(Path(file).name for file in found["broken"]) == ["broken.jpg", "cut.png"]
    assert any("2 of 114 files cannot be read and are left out" in note for note in found["notes"])
    assert any("10 to 90 images" in note for note in found["notes"])
    assert any("fewer than 20 training images of gray, rare" in note for note in found["notes"])
    data = found["fields"]["data"]
    assert (data["size"], data["channels"], data["balance"]) == (32, 3, 0.5)
    text = (tmp_path / "mine.yaml").read_text()
    assert "# 12 of 112 files are gray, and read as colour" in text
    assert "root: photos\n" in text
    recipe = load_recipe(tmp_path / "mine.yaml")
    assert (recipe.name, recipe.method, recipe.data.root) == ("mine", "generalist-late-t", str(root))
    plan = cli("train", "mine.yaml", "--dry-run", "--json")
    assert "2 of 114 images cannot be read" in plan.err
    assert sum(plan.json["images"].values()) == 112


def test_gray_files_give_a_gray_model_that_is_evaluated_on_their_folder(cli: Cli, photos: Draw, fast: Path) -> None:
    photos({"a": 20, "b": 20}, sides=((12, 12),), gray=("a", "b"))
    assert cli("init", "photos", "--no-probe", "--method", "at").code == 0
    recipe = load_recipe("photos.yaml")
    assert (recipe.data.channels, recipe.data.flip, recipe.model.name) == (1, False, "small_cnn")
    assert str(recipe.validation.threats[0]) in ("linf:3/20", "linf:1/10")
    assert cli("train", "photos.yaml", *SHORT, "--out", "run").code == 0
    assert generalist.load("run").spec.channels == 1
    threat = ["--threat", "linf:1/10", "--suite", fast]
    outcome = cli("eval", "run/models/global.safetensors", "--data", "photos", *threat)
    assert outcome.code == 0, outcome.err


def test_arrays(cli: Cli, npz: Callable[..., Path]) -> None:
    outcome = cli("init", npz(), "--out", "mine.yaml", "--no-probe")
    assert outcome.code == 0, outcome.err
    assert "cat (20), dog (20), eel (20)" in outcome.out
    recipe = load_recipe("mine.yaml")
    assert (recipe.data.name, recipe.data.size, recipe.model.name) == ("npz", 8, "small_cnn")
    colour = np.random.default_rng(0).random((60, 20, 24, 3)).astype(np.float32)
    path = npz(x_train=colour, x_test=colour[:30])
    assert cli("init", path, "--out", "colour.yaml", "--no-probe").code == 0
    assert load_recipe("colour.yaml").data.size == 16


def test_the_cost_is_told_and_written(
    cli: Cli, npz: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("generalist.runs.doctor.PROBE_SECONDS", 0.1)
    monkeypatch.setattr("generalist.runs.init.DEAR", 0)
    outcome = cli("init", npz(), "--out", "mine.yaml")
    assert "it takes about" in outcome.out
    assert "Cheaper: a smaller data.size" in (tmp_path / "mine.yaml").read_text()


def test_radii_stay_below_half_the_distance_between_classes(cli: Cli, npz: Callable[..., Path]) -> None:
    near = np.full((60, 1, 8, 8), 100, dtype=np.uint8)
    near[1::3] += 4
    near[2::3] += 8
    outcome = cli("init", npz(x_train=near), "--out", "mine.yaml", "--no-probe", "--json")
    assert outcome.json["fields"]["validation"]["threats"][0] == "linf:2/255"
    assert any("so near each other that linf:2/255" in note for note in outcome.json["notes"])


def test_a_pretrained_network_is_tuned(cli: Cli, npz: Callable[..., Path]) -> None:
    outcome = cli("init", npz(), "--out", "mine.yaml", "--no-probe", "--model", "timm/resnet18", "--size", "32")
    assert outcome.code == 0, outcome.err
    recipe = load_recipe("mine.yaml")
    assert (recipe.init.from_, recipe.init.epoch, recipe.model.name) == ("pretrained", 0, "timm/resnet18")
    assert recipe.learners["linf"].optimizer.options["lr"] == 0.01


def test_a_file_with_many_images_is_sampled(cli: Cli, photos: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("generalist.data.survey.MOST_FILES", 10)
    photos({"red": 20, "green": 20})
    assert "40, 10 of them looked at" in cli("init", "photos", "--no-probe").out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "neither a folder of images nor an .npz file"),
        (["nowhere.npz"], "there is no file"),
        (["photos", "--out", "mine.txt"], "a recipe is a .yaml file"),
        (["photos", "--out", "there.yaml"], "there.yaml exists"),
        (["photos", "--method", "att"], "did you mean 'at'"),
        (["photos", "--model", "resnet81"], "did you mean 'resnet18'"),
        (["empty"], "no images in class folders"),
        (["one"], "has one class"),
        (["broken"], "none of 2 image files can be read"),
        (["halves"], "2 of 4 files cannot be read"),
        (["photos", "--size", "0"], "--size"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    cli: Cli, photos: Draw, tmp_path: Path, arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("generalist.runs.doctor.PROBE_SECONDS", 0.01)
    photos({"red": 4, "green": 4})
    (tmp_path / "there.yaml").touch()
    (tmp_path / "empty" / "a").mkdir(parents=True)
    for folder, file, good in (("one", "a/1.png", True), ("broken", "a/1.png", False), ("broken", "b/1.png", False)):
        path = tmp_path / folder / file
        path.parent.mkdir(parents=True)
        path.write_bytes((tmp_path / "photos/red/000.png").read_bytes() if good else b"no image")
    for name in ("a", "b"):
        (tmp_path / "halves" / name).mkdir(parents=True)
        (tmp_path / "halves" / name / "good.png").write_bytes((tmp_path / "photos/red/000.png").read_bytes())
        (tmp_path / "halves" / name / "bad.png").write_bytes(b"no image")
    outcome = cli("init", *arguments)
    assert outcome.code == 2
    assert told in outcome.err
    assert len([line for line in outcome.errors if "timed" not in line]) == 1
    assert [path.name for path in tmp_path.glob("*.yaml")] == ["there.yaml"]


@pytest.mark.parametrize("method", ["extends: digits\nmethod: 3", "extends: digits\nmethod: att"])
def test_a_method_in_a_file_is_checked(cli: Cli, tmp_path: Path, method: str) -> None:
    (tmp_path / "mine.yaml").write_text(method)
    outcome = cli("train", "mine.yaml", "--dry-run")
    assert (outcome.code, len(outcome.errors)) == (2, 1)


def test_a_method_in_a_file_holds_unless_another_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: digits\nmethod: trades")
    (tmp_path / "next.yaml").write_text("extends: mine.yaml\ntraining: {epochs: 3}")
    told: list[Any] = [load_recipe(tmp_path / "mine.yaml"), load_recipe(tmp_path / "mine.yaml", method="at")]
    told += [load_recipe(tmp_path / "next.yaml"), load_recipe(tmp_path / "next.yaml", method="at")]
    assert [(one.name, one.method) for one in told] == [
        ("mine", "trades"), ("mine-at", "at"), ("next", "trades"), ("next-at", "at"),
    ]  # fmt: skip


def test_rare_classes_are_drawn_more_often_in_training(npz: Callable[..., Path]) -> None:
    from generalist.runs.experiment import build

    labels = np.array([0] * 50 + [1] * 8 + [2] * 2)
    fields = {"data": {"name": "npz", "root": str(npz(y_train=labels)), "balance": 1.0}, "extends": "digits-at"}
    experiment = build(load_recipe({**fields, "name": "mine", "training": {"batch_size": 16}, "model": {"width": 2}}))
    drawn = torch.cat([batch.y for batch, _ in zip(experiment.feed(0), range(9), strict=False)]).bincount()
    assert drawn.min() > 30
