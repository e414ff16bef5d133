"""What the page says, made of plain values: sentences, groups of runs, curves, corruptions, pictures."""

import base64
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from compare_cases import entry
from generalist.core.errors import UserError
from generalist.report.page.lead import lead, shared_ending, title
from generalist.report.page.measured import corruptions_view, curve_view
from generalist.report.page.pictures import heated, magnified, picture
from generalist.report.page.results import pretty, result_groups
from generalist.report.page.training import cost_view, training_view
from generalist.report.paper import paper_table


def groups(*entries: Any, **seedless: str) -> list[dict[str, Any]]:
    return result_groups(entries, paper=None, seedless={one.name: one.name for one in entries} | seedless)


NT, AT = entry("cifar10-nt", 95, 1, 3), entry("cifar10-at", 82, 48, 60)


def said(names: list[str], *entries: Any, mixed: tuple[str, ...] = (), epochs: tuple[int, ...] = (120,)) -> list[str]:
    return lead(names, mixed=mixed, data=["cifar10"], epochs=epochs, groups=groups(*entries))


def test_two_sentences_say_what_was_trained_and_what_came_of_it() -> None:
    assert said(["cifar10-nt", "cifar10-at"], NT, AT, epochs=(30, 120)) == [
        "cifar10-nt and cifar10-at were trained on cifar10 for 30 to 120 epochs.",
        "cifar10-nt is right most often on images as they are (95.0 % of 100 test images), cifar10-at most often under"
        " attack (54.0 % on average under ℓ∞\u00a08/255 and ℓ2\u00a0128/255; 82.0 % as they are).",
    ]
    assert said(["cifar10-at"], AT, epochs=(1,)) == [
        "cifar10-at was trained on cifar10 for 1 epoch.",
        "It is right on 82.0 % of 100 test images as they are, and on 48.0 % under AA ℓ∞\u00a08/255 and 60.0 % under AA"
        " ℓ2\u00a0128/255.",
    ]


def test_one_may_be_best_at_both_and_one_threat_has_no_mean() -> None:
    one, two = (
        entry(name, *figures, threats=("linf:8/255",))
        for name, figures in {"cifar10-at": (82, 48), "cifar10-fat": (80, 40)}.items()
    )
    assert said(["cifar10-at", "cifar10-fat"], one, two)[1] == (
        "cifar10-at is right most often on images as they are (82.0 % of 100 test images) and under attack"
        " (48.0 % under AA ℓ∞\u00a08/255)."
    )


@pytest.mark.parametrize(
    ("names", "mixed", "first"),
    [
        (["a", "m"], ("m",), "a was trained on cifar10 for 120 epochs, and m was mixed from learners by the dial."),
        (["m"], ("m",), "m was mixed by the dial from learners that were trained on cifar10 for 120 epochs."),
        (list("abcdefgh"), (), "8 runs were trained on cifar10 for 120 epochs."),
    ],
)
def test_mixtures_were_not_trained_and_many_runs_are_counted(
    names: list[str], mixed: tuple[str, ...], first: str
) -> None:
    sentences = said(names, mixed=mixed)
    assert sentences[0] == first
    assert sentences[1].endswith("not been attacked yet, so nothing is known about robustness.")


def test_titles_and_shared_settings() -> None:
    assert title(["at"], ["digits"]) == "at on digits"
    assert title(["at", "nt"], ["digits", "mnist"]) == "2 runs on digits and mnist"
    assert shared_ending(["AT: digits, small", "NT: digits, small"]) == (["AT", "NT"], "digits, small")
    assert shared_ending(["AT: digits", "mine"]) == (["AT: digits", "mine"], "")


def test_runs_attacked_otherwise_have_a_group_of_their_own() -> None:
    apart = groups(NT, AT, entry("cifar10-fat", 80, 40, threats=("linf:8/255",)))
    assert [[row["name"] for row in group["rows"]] for group in apart] == [
        ["cifar10-nt", "cifar10-at"],
        ["cifar10-fat"],
    ]


def test_the_papers_points_stand_beside_runs_that_they_are_about() -> None:
    (group,) = groups(entry("cifar10-resnet18-at", 82, 48, 60))
    assert group["paper"] == paper_table("I").title
    (row,) = group["rows"]
    assert row["paper"]["natural"] > 0
    assert "TRADES (beta=1)" in [other["name"] for other in group["paper_rows"]]
    (ours,) = groups(entry("digits-at", 99, 80, 15, data="digits", network=None))
    assert (ours["paper"], ours["paper_rows"]) == ("", [])


def test_seeds_become_mean_and_deviation() -> None:
    runs = [entry("cifar10-at", natural, 48, 60, name=f"at ({natural})") for natural in (80, 84)]
    (group,) = groups(*runs, **{one.name: "at" for one in runs})
    (over,) = group["seeds"]
    assert (over["name"], over["mean"]["natural"], over["sd"]["natural"]) == ("at", 82, 2.828)


def test_threats_are_written_as_people_do() -> None:
    assert pretty("linf:8/255") == "ℓ∞\u00a08/255"
    assert pretty("true union") == "true union"


def epoch(number: int, loss: float, **more: Any) -> dict[str, Any]:
    return {"kind": "epoch", "epoch": number, "train": {"linf": {"loss": loss}}, "gamma": {"linf": 1.0}, **more}


def test_curves_are_thinned_keep_their_ends_and_lack_what_is_not_finite() -> None:
    rows = [
        epoch(number, float("nan") if number == 2 else number, redistributed=number == 300) for number in range(1, 401)
    ]
    judged = {"kind": "validation", "epoch": 400, "split": "validation"}
    view = training_view([*rows, judged | {"models": {"global": {"natural": 90.0, "robust": {"l2:1": 5.0}}}}])
    line = view["panels"]["Training loss"]["linf"]
    assert line[0] == [1, 1.0]
    assert line[-1] == [400, 400.0]
    assert len(line) < 160
    assert view["resets"] == [300]
    assert view["panels"]["Accuracy under ℓ2\u00a01, %"] == {"global": [[400, 5.0]]}
    assert "Weight in the global model, γ" not in view["panels"]
    assert training_view([]) == {"panels": {}, "resets": [], "split": ""}


def test_what_a_run_cost_may_be_unknown() -> None:
    assert set(cost_view({}, {}).values()) == {None}
    assert cost_view({"seconds": 3}, {"wall_seconds": 4})["attack_seconds"] == 4


def test_corruptions_are_five_severities_each_and_their_means() -> None:
    view = corruptions_view({"images": 50, "corruptions": {"fog": [90, 80, 70, 60, 50], "snow": [80, 70, 60, 50, 40]}})
    assert view["means"] == [85, 75, 65, 55, 45]
    assert (view["mean"], view["flip_rate"]) == (65, None)
    for broken in ({}, {"images": 1, "corruptions": {"fog": [1]}}, {"images": 1, "corruptions": {"fog": "x"}}):
        with pytest.raises(UserError, match="corruptions"):
            corruptions_view(broken)


def test_a_curve_lists_the_distances_that_were_found() -> None:
    row = {"norm": "linf", "eps": "8/255", "eps_max": 0.1, "distances": [0.05, None, 0.0], "auc": 0.02, "median": 0.05}
    record = {"natural": 66.7, "images": 3, "threats": {"linf:8/255": row | {"accuracy": {"1": 33.3}}}}
    (threat,) = curve_view(record)["threats"]
    assert threat["distances"] == [0.0, 0.05]
    assert threat["eps"] == pytest.approx(8 / 255)
    assert threat["figures"] == [66.7, 33.3, 0.05, 0.02]


def pixels(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_pictures_are_what_was_given() -> None:
    colour = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    assert np.array_equal(pixels(picture(colour)), np.moveaxis(colour, 0, 2))
    assert np.array_equal(pixels(picture(colour[:1])), colour[0])
    changed, times = magnified(np.array([[[0.1, 0.0], [-0.1, 0.05]]]))
    assert times == pytest.approx(5)
    assert pixels(changed).tolist() == [[255, 128], [0, 191]]
    hot = pixels(heated(np.zeros((1, 1, 2), dtype=np.uint8), np.array([[0.0, 1.0]])))
    assert hot[0, 1].sum() > 2 * hot[0, 0].sum()
