"""Few images left: several tries per image at once, and the same verdicts as one after the other."""

import pytest
import torch

from generalist import Threat
from generalist.attacks import apgd_t, fab_t, misclassified, square
from generalist.attacks.survivors import Copies, Survivors, tries
from generalist.attacks.view import View, counted_passes
from oracles import robust_digits

THREATS = {"linf": Threat.parse("linf:3/20"), "l2": Threat.parse("l2:3/4"), "l1": Threat.parse("l1:3")}


class Sign(torch.nn.Module):
    """Class 1 where the mean is above zero."""

    def forward(self, x):
        mean = x.flatten(1).mean(1)
        return torch.stack([-mean, mean], 1)


def test_the_first_try_to_win_counts_and_takes_the_others_along():
    x, y = -torch.ones(3, 1, 1, 1), torch.zeros(3, dtype=torch.long)
    survivors = Survivors(Sign(), x, y)
    group = Copies(survivors, 2)
    assert group.rows.tolist() == [0, 1, 2, 0, 1, 2]
    candidates = torch.tensor([-1.0, 5, -1, 7, 6, -1]).view(6, 1, 1, 1)
    stay = group.drop(candidates, torch.ones(6, dtype=torch.bool))
    assert stay.tolist() == [False, False, True, False, False, True]
    assert survivors.x_adv.flatten().tolist() == [7, 5, -1]
    assert survivors.rows.tolist() == [2]
    assert (group.rows.tolist(), group.number.tolist()) == ([2, 2], [0, 1])
    assert group.drop(candidates[stay], torch.ones(2, dtype=torch.bool)) is None


def test_every_run_is_made_once_and_in_order(monkeypatch):
    survivors = Survivors(Sign(), -torch.ones(3, 1, 1, 1), torch.zeros(3, dtype=torch.long))
    monkeypatch.setattr("generalist.attacks.survivors.CPU_ROWS", 7)
    assert [runs for runs, _ in tries(survivors, 5)] == [range(2), range(2, 4), range(4, 5)]
    monkeypatch.setattr("generalist.attacks.survivors.CPU_ROWS", 1)
    assert [runs for runs, _ in tries(survivors, 2)] == [range(1), range(1, 2)]


@pytest.mark.parametrize("norm", THREATS)
@pytest.mark.parametrize(
    ("attack", "options"),
    [(apgd_t, {"steps": 12, "restarts": 2}), (fab_t, {"steps": 10, "restarts": 2}), (square, {"queries": 150})],
)
def test_the_same_verdicts_as_one_try_at_a_time(attack, options, norm, monkeypatch):
    model, x, y = robust_digits(norm).first(40)
    found = []
    for rows in (1, 64, 400):
        monkeypatch.setattr("generalist.attacks.survivors.CPU_ROWS", rows)
        found.append(misclassified(model, attack(model, x, y, threat=THREATS[norm], **options), y))
    assert found[0].any()
    assert not found[0].all()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("norm", THREATS)
def test_square_takes_the_same_path_in_fewer_calls(norm, monkeypatch):
    """The same points, not the verdicts alone: proposals are thrown away once another one was taken before them.

    What is thrown away was put through the model for nothing, so fewer calls of the model see more images.
    """
    model, x, y = robust_digits(norm).first(12)
    found, calls, images, forward, queries = [], [], [], View.forward, 200

    def counted(view, batch):
        calls[-1] += 1
        return forward(view, batch)

    monkeypatch.setattr(View, "forward", counted)
    for rows in (1, 64, 1000):
        monkeypatch.setattr("generalist.attacks.survivors.CPU_ROWS", rows)
        calls.append(0)
        with counted_passes() as passes:
            found.append(square(model, x, y, threat=THREATS[norm], queries=queries))
        images.append(passes.forward)
    assert (found[0] != x).any()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert queries + 1 == calls[0] > calls[1] > calls[2]  # the start is a call as well
    assert images[0] < images[1] < images[2]
    checked = 3 * len(x)  # the images themselves, and whatever is suspected to be misclassified
    assert images[0] <= calls[0] * len(x) + checked
