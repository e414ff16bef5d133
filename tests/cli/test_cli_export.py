"""`generalist export` and `train --track`: what they print, write and refuse."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_cases import TINY, Cli

from generalist.runs.folder import Run


def test_a_hub_folder_of_a_run(cli: Cli, trained: Run, tmp_path: Path) -> None:
    outcome = cli("export", trained.folder, "--out", "mine")
    assert outcome.code == 0, outcome.err
    first, second, third, last = outcome.out.splitlines()
    assert first == "hub-folder: mine"
    assert second.startswith("loaded back: logits differ by ")
    assert third == "files: README.md, config.json, model.json, model.pt2, model.safetensors"
    assert last == 'model = torch.export.load("mine/model.pt2").module()'
    assert (tmp_path / "mine" / "README.md").is_file()


def test_a_dialled_point_is_exported_like_any_run(cli: Cli, copied: Path) -> None:
    few = ("--points", "6", "--images", "20", "--quiet")
    assert cli("dial", copied, *few, "--maximise", "natural", "--export", "picked").code == 0
    outcome = cli("export", "picked", "--to", "safetensors", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["files"] == ["picked.safetensors", "picked.json", "picked.card.md"]
    assert outcome.json["largest_difference"] < 1e-5
    card = Path("picked.card.md").read_text()
    assert "a mixture of finished models, chosen afterwards: " in card
    assert "Suite `pgd20`" in card


def test_where_it_was_pushed_is_said(cli: Cli, trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    api = SimpleNamespace(create_repo=lambda **_: "https://hub/me/mine", upload_folder=lambda **_: None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=lambda: api))
    outcome = cli("export", trained.folder, "--out", "mine", "--push", "me/mine")
    assert outcome.out.splitlines()[-1] == "pushed: https://hub/me/mine"
    assert "pushing mine to me/mine" in outcome.err


def test_only_the_path_where_quiet(cli: Cli, trained: Run) -> None:
    assert cli("export", trained.folder, "--to", "pt2", "--model", "l2", "--quiet").out == "pt2: small-t-l2.pt2\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to", "onxx"], "error: unknown format 'onxx'; did you mean 'onnx'?"),
        (["--push", "me"], "error: a repository of a hub is called user/name, got 'me'"),
        (["--model", "lnf"], "has no model 'lnf' yet; it has global, linf, natural, l2"),
        (["--to", "robustbench"], "has no AutoAttack record of its model 'global'; make it with: generalist eval"),
    ],
)
def test_mistakes_are_one_line_and_exit_with_2(cli: Cli, trained: Run, arguments: list[str], told: str) -> None:
    outcome = cli("export", trained.folder, *arguments)
    assert outcome.code == 2
    (line,) = outcome.errors
    assert told in line
    assert list(Path().iterdir()) == []


def test_an_unknown_tracker_is_one_line(cli: Cli) -> None:
    outcome = cli("train", "digits-nt", *TINY, "--track", "mlfow", "--out", "x")
    assert (outcome.code, outcome.errors) == (
        2, ["error: recipe 'digits-nt': track: unknown tracker 'mlfow'; did you mean 'mlflow'?"],
    )  # fmt: skip
    assert not Path("x").exists()


def test_trackers_are_asked_for_by_an_option(cli: Cli) -> None:
    outcome = cli("train", "digits-nt", *TINY, "--track", "tensorboard", "--out", "x", "--quiet")
    assert outcome.code == 0, outcome.err
    assert Run("x").recipe.track == ("tensorboard",)
