"""Somebody else's model, and a saved one, on images of the user's own: end to end from the command line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_cases import Cli, Outcome
from PIL import Image

import generalist
import strangers
from generalist.report.console import Lines
from generalist.runs.folder import Run

LINF = ("--threat", "linf:8/255")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("GENERALIST_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def test_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An .npz with x_test and y_test alone."""
    x, y = strangers.images()
    path = tmp_path_factory.mktemp("images") / "test.npz"
    np.savez(path, x_test=x.numpy(), y_test=y.numpy())
    return path


def refused(outcome: Outcome, *parts: str) -> None:
    assert outcome.code == 2, outcome.err
    (line,) = outcome.errors
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def record(outcome: Outcome) -> dict:
    assert outcome.code == 0, outcome.err
    (found,) = outcome.json.values()
    return found


@pytest.mark.parametrize("network", strangers.WORKING, ids=lambda network: network.__name__)
def test_every_style_with_its_weights(cli: Cli, fast: Path, test_only: Path, tmp_path: Path, network: type) -> None:
    torch.save({"epoch": 9, "state_dict": {f"module.{k}": v for k, v in network().state_dict().items()}}, "w.ckpt")
    model = ("--model", f"strangers:{network.__name__}", "--weights", tmp_path / "w.ckpt")
    found = record(cli("eval", *model, "--data", test_only, *LINF, "--suite", fast, "--json"))
    assert found["images"] == 24
    assert found["natural"] == pytest.approx(95.83)
    assert 0 < found["accuracy"]["linf:8/255"]["fast"] < 95
    assert "no_weights" not in {flag["name"] for flag in found["red_flags"]}


@pytest.mark.parametrize(
    ("network", "part"),
    [
        ("TwoHeads", "not clear"),
        ("NotFinite", "NaN"),
        ("Detached", "gradient"),
        ("Flat", "[B, K]"),
        ("Raises", "64 × 64"),
    ],
)
def test_what_cannot_be_attacked(cli: Cli, fast: Path, test_only: Path, network: str, part: str) -> None:
    refused(cli("eval", "--model", f"strangers:{network}", "--data", test_only, *LINF, "--suite", fast), part)


@pytest.mark.parametrize(
    ("network", "part"),
    [("PairOut", "a tuple"), ("Double", "RuntimeError"), ("Flat", "[2] in torch.float32"), ("Raises", "64 ×")],
)
def test_what_cannot_be_trained(cli: Cli, tmp_path: Path, network: str, part: str) -> None:
    x, y = strangers.images()
    np.savez(tmp_path / "a.npz", x_train=x.numpy(), y_train=y.numpy(), x_test=x.numpy(), y_test=y.numpy())
    changes = ["--set", "data.name=npz", "--root", "a.npz", "--set", f"model.name=strangers:{network}"]
    refused(cli("train", "digits-at", *changes, "--out", "run"), f"'strangers:{network}'", part)
    assert not (tmp_path / "run").exists()


def test_a_model_without_weights_is_flagged_and_a_large_radius_too(cli: Cli, fast: Path, test_only: Path) -> None:
    model = ("--model", "strangers:Plain", "--data", test_only, "--threat", "linf:8", "--suite", fast)
    found = record(cli("eval", *model, "--json"))
    assert {"no_weights", "large_eps"} <= {flag["name"] for flag in found["red_flags"]}
    shown = cli("eval", *model)
    assert "red flag, strangers:Plain: no weights were given" in shown.out
    assert "warning: linf:8 is more than" in shown.err


def test_mean_and_std_are_given(cli: Cli, fast: Path, test_only: Path) -> None:
    base = ("eval", "--model", "strangers:Plain", "--data", test_only, *LINF, "--suite", fast)
    assert record(cli(*base, "--mean", "0.4,0.4,0.4", "--std", "0.2", "--json"))["natural"] == pytest.approx(95.83)
    refused(cli(*base, "--mean", "0.4,x", "--std", "0.2"), "--mean", "0.4,x")
    refused(cli(*base, "--mean", "0.4"), "both")
    refused(cli(*base, "--mean", "0.4,0.5", "--std", "0.2"), "2 values", "3 channels")
    base = ("eval", "--model", "strangers:Buffers", "--data", test_only, *LINF, "--suite", fast)
    refused(cli(*base, "--mean", "0.4", "--std", "0.2"), "'mu'", "--mean")


def test_fewer_labels_than_classes(cli: Cli, fast: Path, tmp_path: Path) -> None:
    x, y = strangers.images()
    np.savez(tmp_path / "two.npz", x=x[y < 2].numpy(), y=y[y < 2].numpy())
    torch.save(strangers.Plain().state_dict(), tmp_path / "w.pt")
    model = ("eval", "--model", "strangers:Plain", "--weights", "w.pt", "--data", "two.npz", *LINF, "--suite", fast)
    refused(cli(*model), "fc.weight", "[3, 6]")
    assert record(cli(*model, "--classes", "3", "--json"))["images"] == 16


@pytest.mark.parametrize("arrays", ["x_test", "x", "x_train"])
def test_all_images_are_the_test_split_and_n_means_n(cli: Cli, fast: Path, tmp_path: Path, arrays: str) -> None:
    x, y = strangers.images()
    np.savez(tmp_path / "a.npz", **{arrays: x.numpy(), arrays.replace("x", "y"): y.numpy()})
    model = ("eval", "--model", "strangers:Plain", "--data", "a.npz", *LINF, "--suite", fast, "--json")
    outcome = cli(*model)
    assert record(outcome)["images"] == 24
    assert ("no x_test" in outcome.err) == (arrays == "x_train")
    assert record(cli(*model, "--n", "20"))["images"] == 20


def folder_of(root: Path, classes: dict[str, int], *, size: int = 8) -> Path:
    """Class folders; the number of a class is the channel that is brightest."""
    for name, channel in classes.items():
        (root / name).mkdir(parents=True)
        for index in range(6):
            pixels = np.full((size, size, 3), 90, np.uint8)
            pixels[..., channel] += 10 + 8 * index
            Image.fromarray(pixels).save(root / name / f"{index}.png")
    return root


@pytest.mark.parametrize("part", ["", "test", "val"])
def test_a_flat_tree_or_a_test_folder_alone(cli: Cli, fast: Path, tmp_path: Path, part: str) -> None:
    folder_of(tmp_path / "images" / part, {"a": 0, "b": 1, "c": 2})
    found = record(cli("eval", "--model", "strangers:Plain", "--data", "images", *LINF, "--suite", fast, "--json"))
    assert (found["images"], found["natural"]) == (18, 100.0)


def test_images_of_any_size_at_the_size_that_is_given(cli: Cli, fast: Path, tmp_path: Path) -> None:
    folder_of(tmp_path / "images", {"a": 0, "b": 1, "c": 2}, size=100)
    model = ("eval", "--model", "strangers:Viewed", "--data", "images", *LINF, "--suite", fast)
    refused(cli(*model), "[16, 3, 224, 224]")
    assert record(cli(*model, "--size", "8", "--json"))["natural"] == 100.0


@pytest.fixture(scope="session")
def on_colours(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on a folder of red, green and blue images of 8 × 8."""
    root = folder_of(tmp_path_factory.mktemp("colours") / "images", {"blue": 2, "green": 1, "red": 0})
    changes = ["data.name=folder", f"data.root={root}", "data.size=8", "training.epochs=2", "training.batch_size=4"]
    changes += ["model.width=4", "validation.steps=1", "data.validation=0.3"]
    return generalist.train("digits-nt", overrides=changes, out=tmp_path_factory.mktemp("runs") / "colours")


def saved(run: Run) -> Path:
    return run.folder / "models" / "global.safetensors"


def test_a_saved_model_reads_images_at_its_own_size_and_pairs_classes_by_name(
    cli: Cli, fast: Path, tmp_path: Path, on_colours: Run
) -> None:
    card = json.loads(saved(on_colours).with_suffix(".json").read_text())
    assert card["extra"]["data"]["classes"] == ["blue", "green", "red"]
    folder_of(tmp_path / "all", {"blue": 2, "green": 1, "red": 0})
    folder_of(tmp_path / "some", {"green": 1, "red": 0}, size=100)
    every = record(cli("eval", saved(on_colours), "--data", "all", *LINF, "--suite", fast, "--json"))
    outcome = cli("eval", saved(on_colours), "--data", "some", *LINF, "--suite", fast, "--json")
    right = dict(zip(every["examples"], every["per_image"]["natural"], strict=True))
    some = dict(zip(record(outcome)["examples"], record(outcome)["per_image"]["natural"], strict=True))
    assert len(some) == 12
    assert some.items() <= right.items()  # the same images with the same labels
    result = generalist.evaluate(generalist.load(on_colours.folder), tmp_path / "some", threats=["linf:8/255"])
    assert set(result.examples) == set(some)


def test_what_does_not_fit_a_saved_model_is_refused(
    cli: Cli, fast: Path, tmp_path: Path, on_colours: Run, npz: Callable[..., Path]
) -> None:
    folder_of(tmp_path / "strange", {"green": 1, "purple": 0})
    x, y = strangers.images()
    np.savez(tmp_path / "four.npz", x=x.numpy(), y=np.arange(24) % 4)
    np.savez(tmp_path / "good.npz", x=x.numpy(), y=y.numpy())
    model = ("eval", saved(on_colours), *LINF, "--suite", fast, "--data")
    refused(cli(*model, "strange"), "'purple'", "'blue', 'green', 'red'")
    refused(cli(*model, "digits"), "1 channels", "takes 3")
    refused(cli(*model, "four.npz"), "label 3", "3 classes")
    assert cli(*model, "good.npz").code == 0
    refused(cli(*model, "nowhere/at/all"), "nowhere/at/all")
    refused(cli("eval", "no.safetensors", "--data", "good.npz"), "no.safetensors")


def test_training_images_among_them_are_told(cli: Cli, fast: Path, tmp_path: Path, on_colours: Run) -> None:
    root = on_colours.recipe.data.root
    assert root is not None
    again = cli("eval", saved(on_colours), "--data", root, *LINF, "--suite", fast)
    assert "was trained on" in again.err
    shutil.copytree(root, tmp_path / "copy")
    assert "was trained on" not in cli("eval", saved(on_colours), "--data", "copy", *LINF, "--suite", fast).err


def test_a_run_whose_data_moved(cli: Cli, fast: Path, tmp_path: Path, on_colours: Run) -> None:
    root = on_colours.recipe.data.root
    assert root is not None
    run = shutil.copytree(on_colours.folder, tmp_path / "run")
    shutil.copytree(root, tmp_path / "moved")
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace(root, str(tmp_path / "gone")))
    refused(cli("eval", run, *LINF, "--suite", fast), "gone")
    assert cli("eval", run, "--root", "moved", *LINF, "--suite", fast).code == 0


def test_options_that_do_not_go_together(cli: Cli, on_colours: Run, test_only: Path) -> None:
    refused(cli("eval", on_colours.folder, "--data", test_only), "--data", "global.safetensors")
    refused(cli("eval", on_colours.folder, "--weights", "w.pt"), "--weights", "--model")
    refused(cli("eval", saved(on_colours), "--data", test_only, *LINF, "--mean", "0.5"), "--mean", "--model")
    refused(cli("eval", saved(on_colours), "--data", test_only, *LINF, "--root", "there"), "there")


@pytest.mark.parametrize("command", [("train", "cifar10-resnet18-at"), ("doctor", "cifar10-resnet18-at")])
def test_root_and_download_exist_where_an_error_advises_them(
    cli: Cli, tmp_path: Path, command: tuple[str, ...]
) -> None:
    outcome = cli(*command, "--root", "empty")
    refused(outcome, "empty", "--download", "--root", "GENERALIST_DATA")
    for option in ("--download", "--root"):
        assert option in cli(command[0], "--help").out


def test_the_test_batch_alone_is_enough(cli: Cli, fast: Path, tmp_path: Path) -> None:
    model = ("eval", "--model", "small_cnn", "--data", "cifar10", *LINF, "--suite", fast)
    refused(cli(*model, "--root", "."), "test_batch", "--download", "--root")
    (tmp_path / "cifar-10-batches-bin").mkdir()
    random = np.random.default_rng(0)
    rows = np.concatenate([np.arange(20)[:, None] % 10, random.integers(0, 256, (20, 3072))], 1).astype(np.uint8)
    rows.tofile(tmp_path / "cifar-10-batches-bin" / "test_batch.bin")
    assert record(cli(*model, "--root", ".", "--json"))["images"] == 20


@pytest.mark.parametrize(("more", "said"), [((), "goes on from here"), (("--save-adv", "a.npz"), "nothing is kept")])
def test_an_interrupted_evaluation_promises_what_it_keeps(
    cli: Cli, fast: Path, test_only: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], said: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("generalist.runs.evaluate.evaluate_suite", interrupted)
    outcome = cli("eval", "--model", "strangers:Plain", "--data", test_only, *LINF, "--suite", fast, *more)
    assert outcome.code == 130
    assert said in outcome.err


def test_the_bar_counts_the_images_that_are_asked_for(
    cli: Cli, fast: Path, test_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals: list[int] = []
    bar = Lines.bar

    def kept(self: Lines, title: str, done: int, total: int, **options: Any) -> Any:
        totals.append(total)
        return bar(self, title, done, total, **options)

    monkeypatch.setattr(Lines, "bar", kept)
    base = ("eval", "--model", "strangers:Plain", "--data", test_only, *LINF, "--suite", fast)
    for n in (5, 1000):
        cli(*base, "--n", str(n))
    assert totals == [5, 24]
