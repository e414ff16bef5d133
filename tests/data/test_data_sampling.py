"""Rare classes drawn more often: still a pure function of (seed, epoch), and every image in turn."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from generalist.data import ArraySplit, Augment, FileSplit, Mixture, batches, load_dataset
from generalist.data.sampling import drawn_ids, places

COUNTS = (60, 0, 10, 2)  # no training image of the second class
LABELS = torch.tensor([label for label, count in enumerate(COUNTS) for _ in range(count)])


def split() -> ArraySplit:
    images = torch.arange(len(LABELS), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).contiguous()
    return ArraySplit(images, LABELS)


def test_without_balance_every_image_is_drawn_once() -> None:
    assert drawn_ids(LABELS, seed=0, epoch=0).sort().values.tolist() == list(range(72))


@pytest.mark.parametrize(("balance", "expected"), [(1.0, (24, 0, 24, 24)), (0.5, (45.26, 0, 18.48, 8.26))])
def test_classes_are_drawn_as_often_as_the_balance_says(balance: float, expected: tuple[float, ...]) -> None:
    totals = torch.zeros(4)
    for epoch in range(20):
        ids = drawn_ids(LABELS, seed=0, epoch=epoch, balance=balance)
        counts = LABELS[places(ids)].bincount(minlength=4)
        assert len(ids) == 72
        assert (counts - torch.tensor(expected)).abs().max() < 1.2  # quotas are rounded at random, by less than one
        totals += counts
    assert torch.allclose(totals / 20, torch.tensor(expected, dtype=torch.float32), atol=0.5)


def test_images_of_a_class_take_turns_and_are_told_apart_when_drawn_again() -> None:
    ids = drawn_ids(LABELS, seed=3, epoch=1, balance=1.0)
    assert len(ids.unique()) == len(ids)  # so that random streams differ
    for label in (0, 2, 3):
        times = places(ids)[LABELS[places(ids)] == label].bincount()
        assert times[times > 0].max() - times[LABELS[: len(times)] == label].min() <= 1


def test_it_depends_on_seed_and_epoch_alone() -> None:
    first = drawn_ids(LABELS, seed=0, epoch=0, balance=1.0)
    assert torch.equal(first, drawn_ids(LABELS, seed=0, epoch=0, balance=1.0))
    assert not torch.equal(first, drawn_ids(LABELS, seed=0, epoch=1, balance=1.0))
    assert not torch.equal(first, drawn_ids(LABELS, seed=1, epoch=0, balance=1.0))


def test_balanced_batches_have_the_images_of_their_labels_and_can_start_late() -> None:
    spec = Augment(crop=2)
    whole = list(batches(split(), batch_size=16, seed=0, epoch=0, balance=1.0))
    assert len(whole) == 4
    for batch in whole:
        assert torch.equal((batch.x[:, 0, 0, 0] * 255).round().long(), places(batch.ids))
        assert torch.equal(batch.y, LABELS[places(batch.ids)])
    full = list(batches(split(), batch_size=16, seed=0, epoch=0, balance=1.0, augment=spec))
    late = list(batches(split(), batch_size=16, seed=0, epoch=0, balance=1.0, augment=spec, start=2))
    assert all(torch.equal(a.x, b.x) for a, b in zip(full[2:], late, strict=True))


def test_an_image_drawn_twice_is_varied_differently() -> None:
    one = ArraySplit(torch.rand(2, 3, 16, 16), torch.tensor([0, 1]))
    labels = torch.tensor([0] * 40 + [1])
    many = ArraySplit(torch.cat([one.images[:1].expand(40, -1, -1, -1), one.images[1:]]), labels)
    (batch,) = batches(many, batch_size=41, seed=0, epoch=0, balance=1.0, augment=Augment(crop=4))
    rare = batch.x[batch.y == 1]
    assert len(rare) >= 20
    assert len({tuple(x.flatten().tolist()) for x in rare}) > 10


def test_extra_images_are_marked_beside_balanced_ones() -> None:
    mixture = Mixture(split(), ArraySplit(torch.zeros(8, 1, 8, 8), torch.zeros(8, dtype=torch.int64)), 0.5)
    batch = next(mixture.batches(batch_size=16, seed=0, epoch=0, balance=1.0))
    assert batch.extra is not None
    assert batch.extra.tolist() == [False] * 8 + [True] * 8


def test_files_are_read_alike(image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("generalist.data.folder._MEMORY", 0)
    root = image_folder({"train": {"a": 12, "b": 3}, "test": {"a": 1, "b": 1}})
    files = load_dataset("folder", root=root, size=8, validation=0).train
    assert isinstance(files, FileSplit)
    held = ArraySplit(files.read(torch.arange(15)), files.labels)
    drawn = [
        list(batches(one, batch_size=5, seed=0, epoch=0, balance=1.0, augment=Augment(crop=1, flip=True)))
        for one in (files, held)
    ]
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(*drawn, strict=True))
