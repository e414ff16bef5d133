"""Fronts side by side on points made by hand: gaps, rows, layouts, figure."""

import csv
import io

import pytest
import torch

from generalist import UserError
from generalist.evaluation.fronts import Front, FrontPoint
from generalist.report.front_figure import draw_fronts
from generalist.report.front_layouts import csv_text, markdown_text
from generalist.report.fronts import BEST, compare_fronts

IMAGES = 100


def point(natural, robust, name="", **more):
    images = torch.arange(IMAGES)
    return FrontPoint(name or f"{natural}/{robust}", images < natural, images < robust, chosen_by="last", **more)


def front(name, *pairs, seed=0, **more):
    return Front(name, seed, tuple(point(*pair, **more) for pair in pairs))


A0, B0 = front("A", (80, 60), (90, 40)), front("B", (82, 58), (88, 48))
LATE0 = front("late", (79, 59), (84, 55), (89, 45))
ABOUT = {"data": "digits", "split": "test", "suite": "quick", "threat": "linf:1/10"}


def compared(*fronts, **options):
    return compare_fronts(fronts, **(ABOUT | options))


def test_a_gap_is_to_the_best_of_the_baselines_there():
    found = compared(A0, B0, LATE0, at=[84, 86], baselines=["A", "B"])
    # at 84: A 52, B 54.67; at 86: A 48, B 51.33. The front of all of their points is B's there.
    a, b, late, best = found.rows
    assert best.name == BEST
    assert [one.mean for one in best.robust] == pytest.approx([58 - 10 / 3, 58 - 20 / 3])
    assert [one.mean for one in late.robust] == pytest.approx([55, 51])
    assert [one.mean for one in late.gaps] == pytest.approx([55 - 58 + 10 / 3, 51 - 58 + 20 / 3])
    assert [one.mean for one in a.gaps] == pytest.approx([52 - 58 + 10 / 3, 48 - 58 + 20 / 3])
    assert [one.mean for one in b.gaps] == pytest.approx([0, 0], abs=1e-6)
    assert (a.is_baseline, late.is_baseline) == (True, False)


def test_between_two_baselines_the_front_of_both_counts():
    one, other = front("A", (80, 60)), front("B", (90, 40))
    found = compared(one, other, front("late", (85, 50), (86, 49)), at=[85], baselines=["A", "B"])
    assert found.rows[2].gaps[0].mean == pytest.approx(0)


def test_a_point_below_the_line_of_a_baseline_does_not_lower_it():
    """The front of all points passes through (85, 41), below A's own straight line."""
    found = compared(A0, front("B", (85, 41), (85, 30)), LATE0, at=[85], baselines=["A", "B"])
    assert found.rows[-1].robust[0].mean == pytest.approx(50)


def test_the_interval_of_a_gap_is_paired_by_image():
    found = compared(front("A", (80, 50)), front("late", (80, 54)), at=[80], baselines=["A"])
    late = found.rows[1]
    assert late.margins[0] == pytest.approx(196 * (0.04 * 0.96) ** 0.5 / 10, abs=1e-3)
    assert found.rows[-1].name == "late"  # of one baseline there is no best
    assert "54.0 (+4.0 ± 3.8)" in str(found)


def test_outside_its_range_a_front_has_a_dash():
    found = compared(A0, front("one", (85, 50)), at=[79, 85, 95], baselines=["A"])
    assert [one and one.mean for one in found.rows[0].robust] == [None, 50, None]
    assert [one and one.mean for one in found.rows[1].gaps] == [None, 0, None]
    head, a, one, *_ = str(found).splitlines()
    assert head.split()[2:8] == ["at", "79", "at", "85", "at", "95"]
    assert a.split()[2] == "–"
    assert one.split()[2] == "–"


def test_over_seeds_means_deviations_and_how_many():
    more = [front("A", (80, 58), (90, 38), seed=1), front("late", (80, 59), (89, 44), seed=1)]
    found = compared(A0, LATE0, *more, front("A", (80, 56), (90, 36), seed=2), at=[80], baselines=["A"])
    a, late = found.rows
    assert (a.seeds, late.seeds) == (3, 2)
    assert (a.robust[0].mean, a.robust[0].sd) == pytest.approx((58, 2))
    gaps = [(59 - 0.8) - 60, 59 - 58]  # each against the baseline of its own seed
    assert late.gaps[0].values == pytest.approx(gaps, abs=1e-5)
    assert late.margins == (None,)
    text = str(found)
    assert "58.0 ± 2.0" in text
    assert "[2]" in text
    assert "standard deviation over seeds" in text
    assert "the baseline" not in text.splitlines()[-1]


def test_a_baseline_that_lacks_a_seed_is_said():
    found = compared(A0, LATE0, front("late", (80, 59), seed=1), baselines=["A"])
    assert "the baseline A has no point with seed 1" in str(found)
    assert compared(A0, front("late", (80, 59), (85, 52), seed=1), at=[85], baselines=["A"]).rows[1].gaps == (None,)


def test_levels_are_those_that_fronts_of_several_points_share():
    assert compared(A0, B0, front("one", (70, 10))).levels == (83.5, 85.0, 86.5)
    together = compared(front("A", (70, 60), (80, 50)), front("B", (78, 55), (90, 40)), LATE0, baselines=["A", "B"])
    assert together.levels == (81.5, 84.0, 86.5)  # 79 to 89 of the late one; A and B reach from 70 to 90
    none = compared(front("A", (70, 50), (75, 40)), front("B", (80, 30), (85, 20)))
    assert none.levels == ()
    assert "no range of natural accuracy in common" in str(none)


def test_points_that_another_front_beats():
    found = compared(A0, front("bad", (70, 50), (69, 49)))
    bad = found.rows[1]
    assert (bad.points, bad.kept, bad.dominated, bad.clearly) == (2, 1, 2, 2)
    lines = str(found).splitlines()[-2:]
    assert lines[0].startswith("bad: 69/49 (69.0 / 49.0) is dominated by A: 80/60 (80.0 / 60.0): ")
    assert lines[0].endswith(": natural +11.0 ±6.1, robust +11.0 ±6.1, clearly")
    nested = compared(front("A", (80, 60), (70, 50)))
    assert nested.rows[0].dominated == 0  # its own points do not count
    assert len(nested.dominated) == 1


def test_many_dominated_points_are_cut_short():
    found = compared(front("A", (90, 90)), front("many", *((n, 10) for n in range(20, 45))))
    assert str(found).endswith("and 5 more dominated points: --csv and --json have all")


def test_costs_and_the_reference_stand_beside():
    dialled = front("late", (80, 59), (90, 45), training="x", cost=1.05)
    found = compared(A0, dialled, reference=(50, 10))
    text = str(found)
    assert "above natural 50, robust 10" in text
    late = next(line for line in text.splitlines() if line.startswith("late"))
    assert "1.05" in late
    assert found.rows[1].hypervolume.mean == pytest.approx((30 * 49 + 10 * 35) / 45)


def test_the_record_has_everything():
    found = compared(A0, LATE0, at=[84], baselines=["A"]).record()
    assert found["hypervolume_reference"] == [0, 0]
    assert found["fronts"][1]["gap_to_best_baseline"]["84"] == {"mean": 3.0, "sd": None, "seeds": 1}
    late = found["per_seed"][1]
    assert late["gap_to_best_baseline"]["84"]["points"] == pytest.approx(3)
    assert late["gap_to_best_baseline"]["84"]["margin"] > 0
    beaten = late["points"][0]["dominated"]
    assert (beaten["by_front"], beaten["by"], beaten["natural"]["points"]) == ("A", "80/60", 1.0)
    assert late["points"][1]["dominated"] is None


def test_csv_has_a_row_per_point():
    rows = list(csv.DictReader(io.StringIO(csv_text(compared(A0, LATE0)))))
    assert len(rows) == 5
    assert rows[2]["by"] == "80/60"
    assert float(rows[2]["robust_change"]) == 1
    assert (rows[0]["by"], rows[0]["on_front"], rows[0]["suite"]) == ("", "1", "quick")


def test_markdown_escapes_names():
    text = markdown_text(compared(front("a|b", (80, 60), (90, 40)), A0))
    assert text.splitlines()[2].startswith(r"| a\|b | 2 |")
    assert "- % right of 100 test images of digits" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at": [101]}, "from 0 to 100, got 101"),
        ({"at": [float("nan")]}, "from 0 to 100, got nan"),
        ({"baselines": ["a"]}, "unknown front 'a'"),
        ({"reference": (0, 100)}, "reference point"),
        ({"reference": (0,)}, "reference point"),
    ],
)
def test_what_cannot_be_compared_is_refused(options, said):
    with pytest.raises(UserError, match=said):
        compared(A0, **options)
    with pytest.raises(UserError, match="no fronts"):
        compare_fronts([])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "fronts",
    [
        (A0, B0, LATE0, front("nt", (95, 0))),
        (A0, front("A", (81, 59), (89, 42), seed=1), front("nt", (95, 0)), front("nt", (96, 1), seed=1)),
        (front("one", (80, 60)),),
    ],
)
def test_the_figure(fronts):
    drawn = draw_fronts(compared(*fronts))
    assert drawn[".png"].startswith(b"\x89PNG")
    assert b"natural accuracy" in drawn[".svg"] or b"<svg" in drawn[".svg"]
    assert draw_fronts(compared(*fronts)) == drawn
