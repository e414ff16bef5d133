"""Which images are shown, and by which images models differ."""

import numpy as np
import pytest

from generalist.core.errors import UserError
from generalist.evaluation.explained import Explanation, choose_examples, gallery

LINF, L2 = "linf:1/10", "l2:1"


def explained(labels: list[int], predicted: dict[str, list[int]], *, ids: str = "image") -> Explanation:
    """An explanation without examples."""
    none = np.zeros((0, 1, 2, 2), dtype=np.float32)
    threats = tuple(view for view in predicted if view != "natural")
    empty = dict.fromkeys(predicted, none)
    return Explanation(
        classes=("cat", "dog", "eel"), threats=threats, attack="PGD20",
        image_ids=tuple(f"{ids}-{index}" for index in range(len(labels))), labels=np.array(labels),
        predicted={view: np.array(guess) for view, guess in predicted.items()},
        indices=np.zeros(0, dtype=np.int64), images=none.astype(np.uint8), x_adv=empty, perturbations=empty,
        confidence=empty, heat=empty,
    )  # fmt: skip


def test_half_of_the_examples_survive_and_classes_are_spread() -> None:
    labels = [0, 0, 1, 2, 0, 1, 2, 2]
    natural = [True, True, True, True, True, True, False, True]
    survives = [True, True, True, False, False, False, False, True]
    assert choose_examples(labels, natural, survives, count=4) == [0, 2, 3, 4]  # cat, dog | eel, cat
    assert choose_examples(labels, natural, survives, count=1) == [0]
    assert choose_examples(labels, natural, survives, count=8) == [0, 2, 7, 1, 3, 5, 4, 6]


def test_what_one_kind_lacks_the_others_fill() -> None:
    assert choose_examples([0, 1, 0, 1], [True] * 4, [True] * 4, count=4) == [0, 1, 2, 3]
    assert choose_examples([0, 1, 0, 1], [True] * 4, [False] * 4, count=3) == [0, 1, 2]
    assert choose_examples([0, 1, 0, 1], [False] * 4, [False] * 4, count=2) == [0, 1]
    assert choose_examples([0, 1], [True] * 2, [False] * 2, count=8) == [0, 1]


def test_confusions_by_the_share_of_their_class() -> None:
    found = explained([0, 0, 0, 0, 1, 1, 2], {"natural": [0, 0, 0, 0, 1, 1, 2], LINF: [0, 1, 1, 2, 0, 1, 2]})
    assert found.confusion["natural"].tolist() == [[4, 0, 0], [0, 2, 0], [0, 0, 1]]
    assert found.confusion[LINF].tolist() == [[1, 2, 1], [1, 1, 0], [0, 0, 1]]
    shares = [(one.label, one.predicted, one.count, one.percent) for one in found.confusions(LINF)]
    assert shares == [(0, 1, 2, 50.0), (1, 0, 1, 50.0), (0, 2, 1, 25.0)]
    assert len(found.confusions(LINF, most=1)) == 1
    assert found.confusions("natural") == []
    assert [found.survives(index) for index in (0, 1, 6)] == [True, False, True]


def test_a_gallery_has_what_one_model_alone_gets_right_or_wrong() -> None:
    labels = [0, 0, 1, 2]
    runs = {
        "a": explained(labels, {"natural": [0, 0, 1, 2], LINF: [0, 1, 1, 0], L2: [0, 0, 1, 2]}),
        "b": explained(labels, {"natural": [0, 0, 1, 0], LINF: [1, 0, 1, 0]}),
        "c": explained(labels, {"natural": [0, 0, 1, 2], LINF: [1, 0, 1, 0]}),
    }
    found = gallery(runs)
    assert found.views == ("natural", LINF)  # the threats that all have
    assert {name: rows[LINF] for name, rows in found.only_right.items()} == {"a": (0,), "b": (), "c": ()}
    assert {name: rows[LINF] for name, rows in found.only_wrong.items()} == {"a": (1,), "b": (), "c": ()}
    assert found.only_wrong["b"]["natural"] == (3,)
    assert found.record()["only_right"]["a"][LINF] == [0]


def test_a_gallery_of_other_images_or_threats_is_refused() -> None:
    one = explained([0, 1], {"natural": [0, 1], LINF: [0, 1]})
    with pytest.raises(UserError, match="at least two models"):
        gallery({"a": one})
    with pytest.raises(UserError, match="a and b were explained on different images"):
        gallery({"a": one, "b": explained([0, 1], {"natural": [0, 1], LINF: [0, 1]}, ids="other")})
    with pytest.raises(UserError, match="no threat in common: linf:1/10; l2:1"):
        gallery({"a": one, "b": explained([0, 1], {"natural": [0, 1], L2: [0, 1]})})
