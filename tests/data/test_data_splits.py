"""What is held out, limited and resized."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_data import random_images

from generalist.core.errors import UserError
from generalist.core.rng import generator
from generalist.data import ArraySplit, Dataset, load_dataset
from generalist.data.holdout import hold_out, mixed_order


def rows(split: object) -> set[bytes]:
    assert isinstance(split, ArraySplit)
    return {image.numpy().tobytes() for image in split.images}


def test_validation_is_a_stratified_part_of_train() -> None:
    data, whole = load_dataset("digits", validation=0.25), load_dataset("digits", validation=0)
    assert len(whole.validation) == 0
    assert rows(data.train).isdisjoint(rows(data.validation))
    assert rows(data.train) | rows(data.validation) == rows(whole.train)
    shares = data.validation.labels.bincount() / whole.train.labels.bincount()
    assert (shares - 0.25).abs().max() < 0.01


def test_seed_changes_validation_but_never_test() -> None:
    one, again, other = (load_dataset("digits", seed=seed) for seed in (1, 1, 2))
    assert rows(one.validation) == rows(again.validation) != rows(other.validation)
    assert rows(one.test) == rows(other.test)
    assert rows(one.test).isdisjoint(rows(one.train) | rows(one.validation))


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(lambda counts: sum(counts) > 0),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 5),
)
def test_hold_out(counts: list[int], share: float, seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    kept, held = hold_out(labels, share, generator(seed))
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(labels)))
    for count, taken in zip(counts, labels[held].bincount(minlength=len(counts)).tolist(), strict=True):
        assert abs(taken - count * share) <= 1
        assert (1 if count > 1 else 0) <= taken <= max(count - 1, 0)


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=8), n=st.integers(1, 240))
def test_every_beginning_is_a_fair_sample(counts: list[int], n: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    order = mixed_order(labels, generator(0))
    n = min(n, len(labels))
    assert sorted(order.tolist()) == list(range(len(labels)))
    got = labels[order[:n]].bincount(minlength=len(counts))
    expected = torch.tensor(counts) * (n / len(labels))
    assert (got - expected).abs().max() <= 2


def test_limit() -> None:
    data, again, other = (load_dataset("digits", limit=50, seed=seed) for seed in (0, 0, 1))
    for split in (data.train, data.validation, data.test):
        assert len(split) == 50
        assert split.labels.bincount(minlength=10).min() >= 3
    assert rows(data.train) == rows(again.train) != rows(other.train)
    assert rows(data.train) <= rows(load_dataset("digits").train)
    assert torch.equal(data.test.images, other.test.images), "the test split never depends on the seed"
    assert len(load_dataset("digits", limit=10**6).test) == len(load_dataset("digits").test)


def test_size_resizes() -> None:
    small, large = load_dataset("digits"), load_dataset("digits", size=32)
    assert large.shape == (1, 32, 32)
    assert large.size == 32
    means = (split.read(torch.arange(9)).float().mean((1, 2, 3)) for split in (small.test, large.test))
    assert torch.allclose(*means, atol=4)


def test_size_of_images_that_are_not_square(tmp_path: Path) -> None:
    images, labels = random_images(8, 6, 9), np.arange(8) % 2
    path = tmp_path / "data.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)
    data = load_dataset("npz", root=path, validation=0)
    assert data.shape == (1, 6, 9)
    with pytest.raises(UserError, match="6×9, not square"):
        _ = data.size
    square = load_dataset("npz", root=path, validation=0, size=6)
    assert square.size == 6
    assert np.array_equal(square.test.read(torch.arange(8))[:, 0], images[:, :, 1:7])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"validation": 1.0}, "validation"),
        ({"validation": -0.1}, "validation"),
        ({"limit": 0}, "limit"),
        ({"size": 0}, "size"),
    ],
)
def test_options_that_will_not_do(options: dict, complaint: str) -> None:
    with pytest.raises(UserError, match=f"{complaint}.*got"):
        load_dataset("digits", **options)


def test_nothing_to_hold_out(tmp_path: Path) -> None:
    x, y = random_images(3, 6, 6), np.arange(3)
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(UserError, match="leave none for validation"):
        load_dataset("npz", root=tmp_path / "d.npz")
    assert len(load_dataset("npz", root=tmp_path / "d.npz", validation=0).train) == 3


def test_root_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENERALIST_DATA", str(tmp_path))
    with pytest.raises(UserError) as error:
        load_dataset("cifar10")
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (torch.zeros(2, 1, 4, 4), torch.zeros(3, dtype=torch.int64), "2 images but 3 labels"),
        (torch.full((2, 1, 4, 4), 2.0), torch.zeros(2, dtype=torch.int64), r"in \[0, 1\]"),
        (torch.full((2, 1, 4, 4), float("nan")), torch.zeros(2, dtype=torch.int64), "finite"),
        (torch.zeros(2, 4, 4), torch.zeros(2, dtype=torch.int64), r"\[N, C, H, W\]"),
        (torch.zeros(2, 1, 4, 4), torch.zeros(2), "int64"),
    ],
)
def test_arrays_that_will_not_do(images: torch.Tensor, labels: torch.Tensor, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        ArraySplit(images, labels)


def test_dataset_made_by_hand_is_checked() -> None:
    split = ArraySplit(torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]))
    with pytest.raises(UserError, match="outside the 1 classes"):
        Dataset("mine", split, split, split, ("a",))
    with pytest.raises(UserError, match="test split is empty"):
        Dataset("mine", split, split, split.take(torch.arange(0)), ("a", "b"))
