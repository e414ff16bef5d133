"""Corruptions and perturbation sequences: verdicts by hand, kept on disk, read back only if they check."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from generalist import UserError
from generalist.core.files import sealed
from generalist.data import ArraySplit
from generalist.data.corruptions.official import Official
from generalist.evaluation import evaluate_ood, ood, read_ood
from oracles import natural_digits


class Bright(nn.Module):
    """Class 1 where the mean of the pixels is above one half."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((1, 2, 3))
        return torch.stack([0.5 - mean, mean - 0.5], dim=1)


def digits(count: int) -> tuple[nn.Module, ArraySplit]:
    model, x, y = natural_digits().first(count)
    return model, ArraySplit((x * 255).round().to(torch.uint8), y)


def flat(*levels: int) -> ArraySplit:
    """Images of one level each; class 1 from 128 on."""
    values = torch.tensor(levels, dtype=torch.uint8)
    return ArraySplit(values.view(-1, 1, 1, 1).expand(-1, 1, 8, 8).clone(), (values >= 128).long())


def test_the_mean_error_rises_with_the_severity() -> None:
    model, split = digits(120)
    record = evaluate_ood(model, split).record()
    levels = [sum(row[level] for row in record["corruptions"].values()) / 15 for level in range(5)]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] > levels[-1] + 5
    assert record["natural"] > levels[0] - 1
    assert record["severity5"] == pytest.approx(levels[-1], abs=0.01)
    assert record["mean"] == pytest.approx(sum(levels) / 5, abs=0.01)
    assert set(record["extra_corruptions"]) == {"speckle_noise", "gaussian_blur", "spatter"}
    assert set(record["extra_sequences"]) == {"speckle_noise", "gaussian_blur", "spatter", "shear"}


def test_figures_by_hand() -> None:
    found = evaluate_ood(Bright(), flat(110, 118, 200, 60))
    record = found.record()
    assert record["natural"] == 100
    # + 0.05, 0.1, 0.15, 0.2, 0.3 of 255 takes 118 above the half from 0.05 on, 110 from 0.1 on, 60 from 0.3 on
    assert record["corruptions"]["brightness"] == [75.0, 50.0, 50.0, 50.0, 25.0]
    assert record["per_image"]["corruptions"]["brightness"] == ["1011", "0011", "0011", "0011", "0010"]
    # frames go from −0.225 to +0.225: each of 110, 118 and 200 crosses the half once, or not at all
    along = found.sequences["brightness"]
    assert list(along.flips) == [1, 1, 0, 0]
    assert along.right[0] == 15 + 1 + int(0.0686 / 0.015)
    assert record["sequences"]["brightness"]["flip_rate"] == round(100 * 2 / 4 / 30, 2)
    assert found.sequences["gaussian_noise"].right[2] == 31


def test_noise_is_compared_with_the_first_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    shades = [0.2, 0.8, 0.8, 0.2]

    def frames(images: Tensor, name: str, *, seed: int) -> Iterator[Tensor]:
        yield from (torch.full_like(images, shade) for shade in shades)

    monkeypatch.setattr(ood, "perturbed", frames)
    monkeypatch.setattr(ood, "LENGTHS", {"gaussian_noise": 4, "rotate": 4})
    found = evaluate_ood(Bright(), flat(0))
    assert list(found.sequences["gaussian_noise"].flips) == [2]  # frames 1 and 2 are not as frame 0
    assert list(found.sequences["rotate"].flips) == [2]  # 0 → 1 and 2 → 3
    shades[:] = [0.2, 0.8, 0.8, 0.8]
    found = evaluate_ood(Bright(), flat(0))
    assert [list(found.sequences[name].flips) for name in ("gaussian_noise", "rotate")] == [[3], [1]]


def test_verdicts_do_not_depend_on_the_batch_and_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ood, "LENGTHS", {"gaussian_noise": 31, "rotate": 31, "spatter": 31})
    model, split = digits(25)
    told: list[float] = []
    whole = evaluate_ood(model, split, cache=tmp_path, progress=lambda done, of, share: told.append(share))
    assert told == sorted(told)
    assert told[-1] == 1
    small = evaluate_ood(model, split, batch_size=7)
    assert small.figures() == whole.figures()
    assert small.record()["per_image"] == whole.record()["per_image"]
    other = evaluate_ood(model, split, seed=1)
    assert other.record()["per_image"] != whole.record()["per_image"]

    def refuse(*args: object, **options: object) -> Tensor:
        raise AssertionError("computed again")

    monkeypatch.setattr(ood, "corrupt", refuse)
    monkeypatch.setattr(ood, "perturbed", refuse)
    again = evaluate_ood(model, split, cache=tmp_path, batch_size=11, limit=20)
    assert again.examples == whole.examples[:20]
    assert torch.equal(again.corruptions["fog"], whole.corruptions["fog"][:, :20])
    with pytest.raises(AssertionError, match="computed again"):
        evaluate_ood(model, split, cache=tmp_path, seed=1)


def test_an_interrupted_evaluation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ood, "LENGTHS", {"rotate": 31})
    model, split = digits(12)
    whole = evaluate_ood(model, split)
    plain, calls = ood.corrupt, []

    def failing(images: Tensor, name: str, severity: int, *, seed: int) -> Tensor:
        calls.append(name)
        if len(calls) == 23:
            raise KeyboardInterrupt
        return plain(images, name, severity, seed=seed)

    monkeypatch.setattr(ood, "corrupt", failing)
    with pytest.raises(KeyboardInterrupt):
        evaluate_ood(model, split, cache=tmp_path)
    kept = set(calls[:20])
    calls[:] = ["begun"] * 30
    resumed = evaluate_ood(model, split, cache=tmp_path)
    assert not kept & set(calls)
    assert resumed.figures() == whole.figures()


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="results are not kept"):
        evaluate_ood(Bright(), flat(0, 255), cache=tmp_path / "file")


def test_official_images_are_used_where_they_are() -> None:
    split = ArraySplit(torch.zeros(3, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 1, 0]))
    stored = np.zeros((50_000, 1, 1, 1), np.uint8)
    stored[[20_000, 20_001, 40_002]] = 255  # of severity 3 the images 0 and 1, of severity 5 the image 2
    files = {"fog": np.broadcast_to(stored, (50_000, 32, 32, 3))}
    frames = np.broadcast_to((np.arange(31) > 20).astype(np.uint8)[None, :, None, None, None] * 255, (3, 31, 32, 32, 3))
    found = evaluate_ood(Bright(), split, official=Official(files, {"rotate": frames}))
    assert list(found.corruptions) == ["fog"]
    assert found.corruptions["fog"].int().tolist() == [[1, 0, 1], [1, 0, 1], [0, 1, 1], [1, 0, 1], [1, 0, 0]]
    assert list(found.sequences["rotate"].right) == [21, 10, 21]
    assert list(found.sequences["rotate"].flips) == [1, 1, 1]
    assert found.record()["sources"] == {"corruptions": "official", "sequences": "official"}
    with pytest.warns(UserWarning, match="note"):
        drawn = evaluate_ood(Bright(), split, official=Official({}, {"rotate": frames}, ["note"]), limit=2)
    assert len(drawn.corruptions) == 19
    assert drawn.record()["sources"] == {"corruptions": "drawn", "sequences": "official"}
    assert drawn.notes == ["note"]


def test_images_of_seven_pixels_are_refused() -> None:
    split = ArraySplit(torch.zeros(2, 1, 7, 9, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(UserError, match="images are 7×9; corruptions need at least 8×8 pixels"):
        evaluate_ood(Bright(), split)


def test_a_record_is_believed_only_if_its_figures_check(tmp_path: Path) -> None:
    found = evaluate_ood(Bright(), flat(0, 110, 255))
    path = tmp_path / "record.json"
    record = found.record()
    path.write_text(json.dumps(sealed(record)))
    assert read_ood(path)["severity5"] == record["severity5"]
    assert "severity 5" in str(found)
    assert "natural 100.00" in str(found)
    path.write_text(json.dumps(sealed(record)).replace('"severity5": ', '"severity5": 1'))
    with pytest.raises(UserError, match="was changed since it was written"):
        read_ood(path)
    path.write_text(json.dumps(sealed({**record, "severity5": 1.0})))
    with pytest.raises(UserError, match="figures that are not those of its verdicts"):
        read_ood(path)
    path.write_text(json.dumps(sealed({**record, "examples": record["examples"][:1]})))
    with pytest.raises(UserError, match="figures that are not those of its verdicts"):
        read_ood(path)
    path.write_text(json.dumps(sealed({"suite": "ood"})))
    with pytest.raises(UserError, match="is not the record of suite ood"):
        read_ood(path)
    path.write_text("{")
    with pytest.raises(UserError, match=r"is damaged.*run generalist eval again"):
        read_ood(path)
