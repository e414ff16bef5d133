"""One's own network and images: a run like any other, from objects at hand."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import generalist
from generalist.core.errors import UserError
from generalist.data import DataWarning
from generalist.models import given
from run_cases import exit_code, forked_command, same, weights

FOUR = {"threats": "linf:1/10", "method": "at", "epochs": 4, "batch_size": 16}


class Net(nn.Module):
    """Importable as test_fit:Net, and made from the number of classes alone."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * 36, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.bn(self.conv(x)).relu().flatten(1))


def pictures(count: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes that differ by where they are bright."""
    source = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = 0.3 * torch.rand(count, 1, 8, 8, generator=source)
    for n, label in enumerate(labels.tolist()):
        images[n, :, 2 * label : 2 * label + 3] += 0.6
    return images, labels


def sequence(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))


@pytest.fixture
def forgotten() -> Iterator[None]:
    """As in another process: nothing is remembered."""
    before = dict(given._REMEMBERED)
    given._REMEMBERED.clear()
    yield
    given._REMEMBERED.update(before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> generalist.Run:
    """A late Generalist-T of a network that no file can build; not to be written to."""
    out = tmp_path_factory.mktemp("fit") / "mine"
    threats = ("linf:1/10", "l2:1/2")
    sets = {"validation": pictures(24, 1), "test": pictures(30, 2)}
    return generalist.fit(sequence(), pictures(), **sets, threats=threats, epochs=10, batch_size=16, out=out)


def test_it_learns_and_is_evaluated_and_dialled(finished: generalist.Run) -> None:
    assert finished.models == ["global", "linf", "natural", "l2"]
    result = generalist.evaluate(finished).record()
    assert result["images"] == 30
    assert result["natural"] > 60
    found = generalist.dial(finished, points=3, images=24)
    assert len(found.points) == 3
    assert found.model({"natural": 0.5}).spec.classes == 3


def test_the_history_is_flat_and_has_every_epoch(finished: generalist.Run) -> None:
    rows = finished.history
    assert [row["epoch"] for row in rows] == list(range(1, 11))
    assert all(isinstance(value, int | float) for row in rows for value in row.values())
    assert rows[0]["train/linf/loss"] > rows[5]["train/linf/loss"]  # the last epoch of that learner
    assert 0 <= rows[-1]["validation/global/robust/linf:1/10"] <= 100
    assert rows[-1]["gamma/l2"] == pytest.approx(0.5, abs=0.05)


def test_another_process_is_told_to_give_the_network_again(finished: generalist.Run, forgotten: None) -> None:
    with pytest.raises(UserError, match=r"given to generalist.fit as an object.*generalist.load\(run, model=…\)"):
        generalist.load(finished.folder)
    with pytest.raises(UserError, match="another architecture"):
        generalist.load(finished.folder, model=sequence(classes=4))
    with pytest.raises(UserError, match="a function that returns one, got a int"):
        generalist.load(finished.folder, model=3)  # type: ignore[arg-type]
    model = generalist.load(finished.folder, model=sequence)
    x, y = pictures(30, 2)
    assert (model(x).argmax(1) == y).float().mean() > 0.6
    assert generalist.evaluate(finished, images=5).record()["images"] == 5  # remembered from then on
    given._REMEMBERED.clear()
    file = finished.model_file("linf")
    assert torch.equal(generalist.load(file, model=sequence())(x), generalist.load(finished.folder, "linf")(x))


def test_training_starts_from_the_weights_that_are_given_and_leaves_the_module_alone(tmp_path: Path) -> None:
    network = sequence()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    frozen = {"learners.linf.optimizer.lr": 1e-12, "learners.linf.optimizer.weight_decay": 0.0}
    run = generalist.fit(network, pictures(), **FOUR, overrides=frozen, out=tmp_path / "a")
    assert same(before, network.state_dict())
    kept = weights(run, "linf")
    assert all(torch.allclose(kept[f"network.{name}"], tensor, atol=1e-6) for name, tensor in before.items())


def test_it_resumes_bit_for_bit_and_refuses_another_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = sequence()
    whole = generalist.fit(network, pictures(), **FOUR, out=tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop_at_two(row: dict[str, Any]) -> None:
        if row["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        generalist.fit(network, pictures(), **FOUR, out=tmp_path / "cut", callbacks=[stop_at_two])
    with pytest.raises(UserError, match="holds a run already"):
        generalist.fit(network, pictures(), **FOUR, out=tmp_path / "cut")
    with pytest.raises(UserError, match="a run of another recipe"):
        generalist.fit(Net(), pictures(), **FOUR, out=tmp_path / "cut", resume=True)
    with pytest.warns(DataWarning, match="differ from those"):  # and another start, which does not count any more
        resumed = generalist.fit(sequence(), pictures(seed=5), **FOUR, out=tmp_path / "cut", resume=True)
    assert same(weights(whole), weights(resumed))


def test_a_callback_ends_training(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []

    def enough(row: dict[str, Any]) -> bool:
        rows.append(row)
        return row["epoch"] == 3

    run = generalist.fit(
        sequence(), pictures(), threats=("linf:1/10", "l2:1/2"), epochs=10, batch_size=16, out=tmp_path / "a",
        callbacks=[enough],
    )  # fmt: skip
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows == run.history
    assert run.summary["epochs"] == 3
    assert run.models == ["global", "linf"]  # the late learners had not begun
    assert generalist.evaluate(run, images=5).record()["images"] == 5
    again = generalist.fit(
        sequence(), pictures(), threats=("linf:1/10", "l2:1/2"), epochs=10, batch_size=16, out=tmp_path / "a",
        resume=True,
    )  # fmt: skip
    assert again.summary["epochs"] == 3


def test_a_class_that_can_be_imported_is_found_by_the_command_line(tmp_path: Path) -> None:
    run = generalist.fit(Net(), TensorDataset(*pictures()), test=pictures(9, 2), **FOUR, out=tmp_path / "a")
    assert run.recipe.model.name == "test_fit:Net"
    command = ["eval", str(run.folder), "--global", "--quiet"]
    assert exit_code(forked_command(command, tmp_path / "log", first=given._REMEMBERED.clear)) == 0
    assert "PGD20" in (tmp_path / "log").read_text()


def test_the_command_line_says_in_one_line_that_an_object_is_missing(finished: generalist.Run, tmp_path: Path) -> None:
    command = ["eval", str(finished.folder), "--quiet"]
    assert exit_code(forked_command(command, tmp_path / "log", first=given._REMEMBERED.clear)) == 2
    (said,) = (tmp_path / "log").read_text().splitlines()
    assert "generalist.load(run, model=…)" in said


def test_a_function_and_a_name_are_taken_too(tmp_path: Path) -> None:
    run = generalist.fit(Net, pictures(), **FOUR, out=tmp_path / "a", lr=0.05)
    assert run.recipe.model.name == "test_fit:Net"
    assert run.recipe.learners["linf"].optimizer.options["lr"] == 0.05
    short = {"data.limit": 64, "model.width": 2, "validation.images": 10}
    named = generalist.fit("small_cnn", "digits", **FOUR, overrides=short, out=tmp_path / "b")
    assert (named.recipe.data.name, named.recipe.model.name) == ("digits", "small_cnn")
    assert not named.given.exists()
    local = generalist.fit(lambda: sequence(), pictures(), **FOUR, out=tmp_path / "c")
    assert local.recipe.model.name.startswith("given/Sequential-")


def test_a_run_that_was_moved_finds_its_images(finished: generalist.Run, tmp_path: Path) -> None:
    moved = generalist.Run(shutil.copytree(finished.folder, tmp_path / "moved"))
    assert moved.recipe.data.root == str(moved.given_data)
    assert generalist.evaluate(moved, images=4).record()["images"] == 4


def test_labels_may_lack_a_class_that_the_model_has(tmp_path: Path) -> None:
    images, labels = pictures()
    with pytest.warns(DataWarning, match="no training image of 3"):
        run = generalist.fit(sequence(4), (images, labels), **FOUR, out=tmp_path / "a")
    assert generalist.load(run.folder).spec.classes == 4


class Uneven(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(1, 8 + index % 2, 8), index % 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"threats": "linf:1/10", "method": "generalist-late-t"}, "trains in l2 and linf, but threats has linf:1/10"),
        ({"method": "att"}, "did you mean 'at'"),
        (
            {"train": (torch.full((20, 1, 8, 8), 3.0), torch.arange(20) % 3)},
            "train: float images must be finite and in",
        ),
        ({"train": Uneven()}, r"train: its images cannot be put together"),
        ({"train": "nowhere.npz", "validation": pictures()}, "splits of its own"),
        ({"model": sequence(2)}, "returns 2 logits, the labels are of 3 classes"),
        ({"model": nn.Conv2d(1, 3, 3)}, r"returns \[2, 3, 6, 6\]"),
        ({"model": nn.Linear(3, 3)}, r"cannot be run on images \[2, 1, 8, 8\]"),
        ({"model": lambda: 3}, "returned a int"),
        ({"model": lambda: 1 / 0}, "raised ZeroDivisionError"),
        ({"threats": "linf"}, "linf"),
        ({"batch_size": 1000}, "batch_size 1000"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    fields: dict[str, Any] = {"model": sequence(), "train": pictures(), **FOUR, **changes}
    with pytest.raises(UserError, match=told) as caught:
        generalist.fit(**fields, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.lock = nn.Linear(64, 3), Lock()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))


def test_a_network_that_cannot_be_copied_is_said(tmp_path: Path) -> None:
    class Hidden(Locked):  # nobody can import it
        pass

    with pytest.raises(UserError, match="a Hidden that cannot be copied"):
        generalist.fit(Hidden(), pictures(), **FOUR, out=tmp_path / "run")
    assert given.reference(type("Made", (), {"__module__": "no.such.module"})) is None


def test_too_many_images_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("generalist.runs.fit.MOST_BYTES", 1000)
    with pytest.raises(UserError, match=r"write them as a folder of images"):
        generalist.fit(sequence(), pictures(), **FOUR, out=tmp_path / "run")
