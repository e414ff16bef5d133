"""An explanation of a run: its figures are those of an evaluation, and it is kept."""

import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import generalist
from generalist.core.errors import UserError
from generalist.evaluation.explained import Explanation
from generalist.runs import explain as module
from generalist.runs.explain import explain_run, explained_images

LINF, L2 = "linf:1/20", "l2:1/2"
SMALL = {
    "training.epochs": 4, "data.limit": 300, "model.width": 8, "validation.images": 20, "validation.steps": 2,
    "validation.threats": [LINF, L2],
}  # fmt: skip
FEW = {"images": 60, "examples": 6}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> generalist.Run:
    """Not to be written to."""
    return generalist.train("digits-generalist-t", out=tmp_path_factory.mktemp("runs") / "t", overrides=SMALL)


@pytest.fixture
def run(trained: generalist.Run, tmp_path: Path) -> generalist.Run:
    return generalist.Run(shutil.copytree(trained.folder, tmp_path / "t"))


def same(a: Explanation, b: Explanation) -> bool:
    """To the last bit, with the same types."""
    ours, theirs = a.arrays(), b.arrays()
    return (
        a.record() == b.record()
        and a.image_ids == b.image_ids
        and ours.keys() == theirs.keys()
        and all(ours[key].dtype == theirs[key].dtype and np.array_equal(ours[key], theirs[key]) for key in ours)
    )


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each explanation that is computed."""
    calls, compute = [], module.explain

    def explain(*args: object, **options: object) -> Explanation:
        calls.append("computed")
        return compute(*args, **options)

    monkeypatch.setattr(module, "explain", explain)
    return calls


def test_predictions_are_those_of_the_evaluation(run: generalist.Run) -> None:
    found, record = explain_run(run, **FEW), generalist.evaluate(run, images=60).record()
    assert found.threats == (LINF, L2)
    assert list(found.image_ids) == record["examples"]
    assert found.labels.tolist() == record["labels"]
    right = {view: (found.predicted[view] == found.labels).astype(int).tolist() for view in found.views}
    assert right["natural"] == record["per_image"]["natural"]
    for threat in found.threats:
        survived = [int(verdict == 1) for verdict in record["per_image"][threat]["PGD20"]]
        assert right[threat] == survived
        assert record["accuracy"][threat]["PGD20"] == round(found.classwise.overall(threat), 2)
    assert sum(right["natural"]) > sum(right[LINF]) > 0  # else this shows nothing


def test_confusion_rows_sum_to_the_images_of_the_class(run: generalist.Run) -> None:
    found = explain_run(run, **FEW)
    counts = np.bincount(found.labels, minlength=10)
    for view, matrix in found.confusion.items():
        assert matrix.shape == (10, 10)
        assert matrix.sum(1).tolist() == counts.tolist()
        assert matrix.trace() == (found.predicted[view] == found.labels).sum()


def test_examples_have_their_images_attacks_and_maps(run: generalist.Run) -> None:
    found = explain_run(run, **FEW)
    examples = found.examples
    assert [found.survives(one.index) for one in examples] == sorted(
        (found.survives(one.index) for one in examples), reverse=True
    )
    assert {found.survives(one.index) for one in examples} == {True, False}
    assert len({one.label for one in examples}) == len(examples) == 6
    assert np.array_equal(explained_images(run, [one.index for one in examples]), found.images)
    test = generalist.load_dataset("digits", limit=300).test
    for one in examples:
        assert np.array_equal(one.image, test.images[one.index].numpy())
        assert one.predicted["natural"] == one.label
        for threat in map(generalist.Threat.parse, found.threats):
            x_adv, perturbation = one.x_adv[str(threat)], one.perturbation[str(threat)]
            assert np.allclose(x_adv, one.image / 255 + perturbation, atol=1e-6)
            assert 0 <= x_adv.min() <= x_adv.max() <= 1
            flat = np.abs(perturbation).ravel()
            size = flat.max() if threat.norm == "linf" else np.sqrt((flat**2).sum())
            assert 0.5 * threat.radius < size <= threat.radius * (1 + 1e-4)
        for view in found.views:
            assert one.heat[view].shape == (8, 8)
            assert 0 <= one.heat[view].min() <= one.heat[view].max() <= 1
            assert 0.1 <= one.confidence[view] <= 1


def test_the_same_seed_the_same_explanation_and_a_kept_one_is_equal(
    run: generalist.Run, trained: generalist.Run, tmp_path: Path, counted: list[str]
) -> None:
    first = explain_run(run, **FEW)
    assert len(counted) == 1
    assert same(first, explain_run(run.folder, **FEW))
    assert len(counted) == 1  # kept
    other = generalist.Run(shutil.copytree(trained.folder, tmp_path / "again" / "t"))
    assert same(first, explain_run(other, **FEW))
    assert len(counted) == 2  # computed afresh
    seeded = explain_run(run, **FEW, seed=1)
    assert not np.array_equal(seeded.x_adv[LINF], first.x_adv[LINF])
    assert len(explain_run(run, images=60, examples=2).examples) == 2
    assert len(explain_run(run, images=10, examples=6).labels) == 10
    assert explain_run(run, **FEW, name="natural").about["model"] == "natural"
    assert len(counted) == 6  # every option counts


@pytest.mark.parametrize("suffix", [".json", ".npz"])
@pytest.mark.parametrize("harm", ["cut", "changed", "gone"])
def test_a_damaged_explanation_is_computed_again(
    run: generalist.Run, counted: list[str], suffix: str, harm: str
) -> None:
    first = explain_run(run, **FEW)
    (path,) = run.explanations.glob(f"*{suffix}")
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        place = len(content) // 2
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        path.write_bytes(content[:place] if harm == "cut" else changed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again = explain_run(run, **FEW)
    damaged = [str(one.message) for one in said if "computed again" in str(one.message)]
    assert len(damaged) == (0 if (suffix, harm) == (".json", "gone") else 1)
    assert len(counted) == 2
    assert same(first, again)
    assert same(first, explain_run(run, **FEW))
    assert len(counted) == 2


def test_another_model_in_the_folder_is_explained_anew(run: generalist.Run, counted: list[str]) -> None:
    explain_run(run, **FEW)
    for suffix in (".safetensors", ".json"):
        natural, card = run.model_file("natural").with_suffix(suffix), run.model_file().with_suffix(suffix)
        card.write_bytes(natural.read_bytes())
    with pytest.raises(UserError, match="is of another model"):
        explain_run(run, **FEW)
    generalist.save_model(generalist.load(run.folder, "natural"), run.model_file(), extra={})
    explain_run(run, **FEW)
    assert len(counted) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_said(run: generalist.Run) -> None:
    run.folder.chmod(0o500)
    with pytest.warns(UserWarning, match="the explanation is not kept"):
        explain_run(run, **FEW)


def test_a_file_where_the_folder_should_be_is_said(run: generalist.Run) -> None:
    run.explanations.write_text("")
    with pytest.warns(UserWarning, match="the explanation is not kept"):
        assert len(explain_run(run, **FEW).labels) == 60


def test_mistakes_are_named(run: generalist.Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="images must be at least 1, got 0"):
        explain_run(run, images=0)
    with pytest.raises(UserError, match="examples must be at least 1, got -1"):
        explain_run(run, examples=-1)
    with pytest.raises(UserError, match="has no model 'nobody'"):
        explain_run(run, name="nobody")
    with pytest.raises(UserError, match="is not a run folder"):
        explain_run(tmp_path)
