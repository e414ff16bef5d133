"""Batches: a pure function of (seed, epoch, step), however they are made."""

import multiprocessing
import pickle
from collections.abc import Callable, Iterable

import pytest
import torch

from generalist.core.errors import UserError
from generalist.core.types import Batch
from generalist.data import (
    ArraySplit,
    Augment,
    FileSplit,
    Split,
    batches,
    load_dataset,
    sequential_batches,
    steps_per_epoch,
)

SPEC = Augment(crop=2, flip=True, cutout=3)


def array_split(count: int = 30, *, seed: int = 0) -> ArraySplit:
    source = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=source)
    return ArraySplit(images, torch.arange(count) % 3)


@pytest.fixture
def file_split(image_folder: Callable, monkeypatch: pytest.MonkeyPatch) -> FileSplit:
    monkeypatch.setattr("generalist.data.folder._MEMORY", 0)
    root = image_folder({"train": {"a": 7, "b": 7}, "test": {"a": 1, "b": 1}}, side=(20, 14))
    split = load_dataset("folder", root=root, size=8, validation=0).train
    assert isinstance(split, FileSplit)
    return split


def same(one: Iterable[Batch], other: Iterable[Batch]) -> bool:
    one, other = list(one), list(other)
    return len(one) == len(other) and all(
        torch.equal(x, y) for a, b in zip(one, other, strict=True) for x, y in zip(a[:3], b[:3], strict=True)
    )


def test_a_batch_is_what_it_says() -> None:
    split = array_split()
    batch = next(batches(split, batch_size=8, seed=0, epoch=0))
    assert batch.x.dtype == torch.float32
    assert batch.x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch.x, split.images[batch.ids].float() / 255)
    assert torch.equal(batch.y, split.labels[batch.ids])


def test_an_epoch_has_every_image_once_in_an_order_of_its_own() -> None:
    split = array_split()
    orders = [
        torch.cat([b.ids for b in batches(split, batch_size=8, seed=seed, epoch=epoch, drop_last=False)]).tolist()
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_the_last_small_batch_is_dropped_or_kept() -> None:
    split = array_split(30)
    assert [len(b.y) for b in batches(split, batch_size=8, seed=0, epoch=0)] == [8, 8, 8]
    assert [len(b.y) for b in batches(split, batch_size=8, seed=0, epoch=0, drop_last=False)] == [8, 8, 8, 6]
    assert steps_per_epoch(split, batch_size=8) == 3
    assert steps_per_epoch(split, batch_size=8, drop_last=False) == 4


@pytest.mark.parametrize("start", [0, 1, 3])
def test_starting_late_gives_the_rest(start: int) -> None:
    split = array_split()
    full = list(batches(split, batch_size=8, seed=3, epoch=2, augment=SPEC))
    late = batches(split, batch_size=8, seed=3, epoch=2, augment=SPEC, start=start)
    assert same(full[start:], late)


def test_starting_late_with_files(file_split: FileSplit) -> None:
    full = list(batches(file_split, batch_size=3, seed=3, epoch=2, augment=SPEC))
    assert same(full[2:], batches(file_split, batch_size=3, seed=3, epoch=2, augment=SPEC, start=2))


@pytest.mark.parametrize("spec", [None, Augment(flip=True), Augment(scale=(0.3, 0.8), cutout=2), SPEC])
def test_views_do_not_depend_on_the_batch(file_split: FileSplit, spec: Augment | None) -> None:
    for split in (array_split(14), file_split):
        views = {}
        for size in (1, 3, 14):
            for batch in batches(split, batch_size=size, seed=1, epoch=1, augment=spec, drop_last=False):
                for x, i in zip(batch.x, batch.ids.tolist(), strict=True):
                    assert torch.equal(views.setdefault(i, x), x)
        assert len(views) == 14


def test_views_change_with_epoch_and_seed(file_split: FileSplit) -> None:
    def views(split: Split, seed: int, epoch: int) -> torch.Tensor:
        (batch,) = batches(split, batch_size=14, seed=seed, epoch=epoch, augment=Augment(scale=(0.2, 0.9)))
        return batch.x[batch.ids.argsort()]

    for split in (array_split(14), file_split):
        first = views(split, 0, 0)
        for other in (views(split, 0, 1), views(split, 1, 0)):
            assert (first == other).flatten(1).all(1).sum() <= 2


def test_files_are_cut_at_random_in_training_only(file_split: FileSplit) -> None:
    plain = file_split.read(torch.arange(14)).float() / 255
    assert torch.equal(torch.cat([b.x for b in sequential_batches(file_split, batch_size=4)]), plain)
    batch = next(batches(file_split, batch_size=14, seed=0, epoch=0))
    assert torch.equal(batch.x, plain[batch.ids])
    cut = next(batches(file_split, batch_size=14, seed=0, epoch=0, augment=Augment()))
    assert all(not torch.equal(x, plain[i]) for x, i in zip(cut.x, cut.ids.tolist(), strict=True))


@pytest.mark.parametrize("spec", [None, Augment(flip=True, cutout=2)])
def test_workers_give_the_same_bits(file_split: FileSplit, spec: Augment | None) -> None:
    options = {"batch_size": 3, "seed": 5, "epoch": 1, "augment": spec, "drop_last": False}
    here = list(batches(file_split, workers=0, **options))
    assert same(here, batches(file_split, workers=2, **options))
    assert same(sequential_batches(file_split, batch_size=4, workers=2), sequential_batches(file_split, batch_size=4))


def test_readers_can_be_sent_to_spawned_workers(file_split: FileSplit) -> None:
    from generalist.data.files import FileReader

    reader = FileReader(file_split, key=(0, "augment", 0), augment=Augment(flip=True))
    copy = pickle.loads(multiprocessing.reduction.ForkingPickler.dumps(reader))
    one, other = reader.__getitems__([3, 1]), copy.__getitems__([3, 1])
    assert isinstance(one, Batch)
    assert isinstance(other, Batch)
    assert torch.equal(one.x, other.x)


def test_the_global_generator_is_left_alone(file_split: FileSplit) -> None:
    before = torch.random.get_rng_state()
    for split in (array_split(), file_split):
        for workers in (0, 1):
            list(batches(split, batch_size=5, seed=0, epoch=0, augment=SPEC, workers=workers))
            list(sequential_batches(split, batch_size=5, workers=workers))
    load_dataset("digits", limit=30)
    assert torch.equal(before, torch.random.get_rng_state())


def test_ordered_goes_through_once_in_order() -> None:
    split = array_split(10)
    passes = list(sequential_batches(split, batch_size=4))
    assert [len(b.y) for b in passes] == [4, 4, 2]
    assert torch.cat([b.ids for b in passes]).tolist() == list(range(10))
    assert torch.equal(torch.cat([b.x for b in passes]), split.images.float() / 255)
    assert torch.cat([b.ids for b in sequential_batches(split, batch_size=4, limit=5)]).tolist() == list(range(5))
    assert not list(sequential_batches(split.take(torch.arange(0)), batch_size=4))


def test_float_images_come_as_they_are() -> None:
    images = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    (batch,) = sequential_batches(ArraySplit(images, torch.zeros(6, dtype=torch.int64)), batch_size=6)
    assert torch.equal(batch.x, images)


def test_batches_do_not_share_memory_with_the_data() -> None:
    """An attack or a loss that writes into a batch must not change the data."""
    images = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    split = ArraySplit(images.clone(), torch.zeros(6, dtype=torch.int64))
    for batch in sequential_batches(split, batch_size=6):
        batch.x.zero_()
        batch.y.fill_(1)
    assert torch.equal(split.images, images)
    assert not split.labels.any()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda s: batches(s, batch_size=31, seed=0, epoch=0), "batch_size 31 is more than the 30 images"),
        (lambda s: steps_per_epoch(s, batch_size=31), "batch_size 31 is more than the 30 images"),
        (lambda s: steps_per_epoch(s, batch_size=0), "at least 1, got 0"),
        (lambda s: batches(s, batch_size=10, seed=0, epoch=0, start=4), "step 4 is not in an epoch of 3"),
        (lambda s: batches(s, batch_size=10, seed=0, epoch=0, workers=-1), "workers"),
        (lambda s: sequential_batches(s, batch_size=0), "batch_size"),
        (lambda s: sequential_batches(s, batch_size=1, limit=0), "limit"),
    ],
)
def test_what_will_not_do_is_said_at_once(make: Callable[[Split], object], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        make(array_split(30))
