"""Datasets of a user's own package."""

import sys

import pytest
import torch

from generalist import DATASETS, UserError, load_dataset
from generalist.data import DataWarning, load_evaluation_images

SOURCE = """
import torch
from generalist.data import ArraySplit, MissingData, Parts

def _split(count):
    images = torch.rand(count, 1, 6, 6, generator=torch.Generator().manual_seed(count))
    return ArraySplit(images, torch.arange(count) % 2)

def both(root, *, size, test_only):
    return Parts(("a", "b"), train=_split(40), test=_split(20))

def train_alone(root, *, size, test_only):
    return Parts(("a", "b"), train=_split(40))

def missing(root, *, size, test_only):
    raise MissingData(f"mine: no images.bin in {root}")

def fails(root, *, size, test_only):
    return [][0]

def tuple_of_three(root, *, size, test_only):
    return ("a", "b"), _split(40), _split(20)

def no_train(root, *, size, test_only):
    return Parts(("a", "b"), train=None, test=_split(20))

def asks(root, *, size, test_only, year):
    return None

def root_alone(root):
    return None
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_data", None)


def test_a_dataset_is_read_by_its_reference(folder):
    data = load_dataset("own_data:both", validation=0.25, size=4)
    assert (len(data.train), len(data.validation), len(data.test)) == (30, 10, 20)
    assert data.shape == (1, 4, 4)
    assert len(load_evaluation_images("own_data:both").split) == 20


def test_a_registered_dataset_is_read_by_its_name(folder):
    DATASETS.register("own")(DATASETS.get("own_data:both"))
    try:
        assert load_dataset("own").training_digest() == load_dataset("own_data:both").training_digest()
    finally:
        del DATASETS._entries["own"]


def test_without_a_test_split_training_and_evaluation_hold_out_the_same(folder):
    with pytest.warns(DataWarning, match="no test split"):
        data = load_dataset("own_data:train_alone", seed=5)
    with pytest.warns(DataWarning, match="no test split"):
        judged = load_evaluation_images("own_data:train_alone")
    assert torch.equal(judged.split.images, data.test.images)


@pytest.mark.parametrize(
    ("name", "says"),
    [("own_data:missing", "mine: no images.bin in"),
     ("own_data:fails", r"raised IndexError: .* \(own_data.py, line 19\)"),
     ("own_data:tuple_of_three", "return Parts"), ("own_data:no_train", "return Parts"),
     ("own_data:asks", "year: Field required"), ("own_data:root_alone", r"takes \(root\); it is called with"),
     ("own_data:btoh", "did you mean 'both'?"), ("no_such:both", "no module 'no_such'")],
)  # fmt: skip
def test_a_mistake_is_one_line(folder, name, says):
    with pytest.raises(UserError, match=says) as error:
        load_dataset(name)
    assert "\n" not in str(error.value)


def test_a_path_with_a_colon_stays_a_path(folder):
    with pytest.raises(UserError, match="there is no folder"):
        load_evaluation_images("a/own_data:both")
    (folder / "own_data:both").mkdir()
    with pytest.raises(UserError, match="own_data:both"):
        load_evaluation_images("own_data:both")
