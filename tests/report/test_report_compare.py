"""Runs side by side: ranks, the papers' values, and what is refused."""

import csv
import io
import re
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from compare_cases import SUITE_COLUMNS, entry
from generalist.core.errors import UserError
from generalist.recipes.shipped import recipe_parts
from generalist.report.comparison import Comparison, check_alike, distinct_names, make_comparison, ranks
from generalist.report.layouts import csv_text, latex_text, markdown_text, plain_text, terminal_tables
from generalist.report.paper import PAPER_NAMES, network_of, paper_table
from generalist.report.scatter import axis_floor, draw_scatter

C = "cifar10-resnet18"


@pytest.fixture
def beside_table_one() -> Comparison:
    entries = [
        entry(f"{C}-at", 84.0, 44.0, 57.0),
        entry(f"{C}-generalist-t", 88.0, 43.0, 63.0, seconds=90.0),
        entry(f"{C}-ramp", 80.0, 40.0, 60.0, seconds=None, selected_by="test"),
    ]
    return make_comparison(entries, paper=paper_table("I"))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1, 3, 2], (0, 1, 2)),
        ([3, 3, 2, 2, 1], (1, 1, 2, 2, 0)),
        ([1, 1], (1, 1)),
        ([5], (0,)),
        ([None, 5], (0, 0)),
        ([None, 5, 4], (0, 1, 2)),
        ([50.004, 50.001, 49], (1, 1, 2)),
        ([], ()),
    ],
)
def test_ranks(values: list[float | None], found: tuple[int, ...]) -> None:
    assert ranks(values) == found


def test_of_costs_the_lowest_is_best(beside_table_one: Comparison) -> None:
    by_name = {column.name: beside_table_one.ranks(column) for column in beside_table_one.columns}
    assert by_name["cost"] == (1, 2, 0)
    assert by_name["natural"] == (2, 1, 0)
    assert ranks([3, 1, 2], lower_is_better=True) == (0, 1, 2)


def test_columns_in_their_order(beside_table_one: Comparison) -> None:
    names = [column.name for column in beside_table_one.columns]
    assert names == ["natural", "AA linf:8/255", "AA l2:128/255", "mean over norms", "true union", "cost"]
    several = make_comparison([entry(f"{C}-at", 84.0, 44.0, 57.0, suite="paper", seconds=None)])
    wanted = [f"{attack} {threat}" for threat in ("linf:8/255", "l2:128/255") for attack in SUITE_COLUMNS["paper"]]
    assert [column.name for column in several.columns] == ["natural", *wanted, "mean over norms", "true union"]
    assert several.robust.attack == "AA"


def test_one_threat_has_no_unions() -> None:
    one = make_comparison([entry(f"{C}-at", 84.0, 44.0, threats=("linf:8/255",))])
    assert [column.name for column in one.columns] == ["natural", "AA linf:8/255", "cost"]
    assert one.robust.name == "AA linf:8/255"


def test_the_papers_union_stands_beside_the_mean_only(beside_table_one: Comparison) -> None:
    at = beside_table_one.rows[0].paper
    assert at == {"natural": 84.32, "AA linf:8/255": 44.37, "AA l2:128/255": 56.99, "mean over norms": 50.68}


def test_no_union_of_another_attack_or_another_set_of_threats() -> None:
    pgd = make_comparison([entry(f"{C}-at", 84.0, 44.0, 57.0, suite="pgd20")], paper=paper_table("I")).rows[0].paper
    assert set(pgd) == {"natural", "PGD20 linf:8/255", "PGD20 l2:128/255"}
    three = ("linf:8/255", "l2:128/255", "l1:12")
    more = make_comparison([entry(f"{C}-at", 84.0, 44.0, 57.0, 30.0, threats=three)], paper=paper_table("I"))
    assert set(more.rows[0].paper) == {"natural", "AA linf:8/255", "AA l2:128/255"}


def test_the_cvpr_tables_are_about_linf() -> None:
    found = make_comparison([entry(f"{C}-trades", 84.0, 44.0, 57.0, suite="paper")], paper=paper_table("1a")).rows[0]
    assert set(found.paper) == {"natural", *(f"{attack} linf:8/255" for attack in SUITE_COLUMNS["paper"])}
    assert found.paper["AA linf:8/255"] == 48.20


def test_another_radius_is_not_the_papers() -> None:
    threats = ("linf:4/255", "l2:128/255")
    found = make_comparison([entry(f"{C}-at", 84.0, 44.0, 57.0, threats=threats)], paper=paper_table("I"))
    assert set(found.rows[0].paper) == {"natural", "AA l2:128/255"}
    (note,) = found.notes
    assert "linf:4/255" in note


def test_a_suite_of_ones_own_is_not_the_papers() -> None:
    found = make_comparison([entry(f"{C}-at", 84.0, 44.0, 57.0, suite="AA")], paper=paper_table("I"))
    assert set(found.rows[0].paper) == {"natural"}


@pytest.mark.parametrize(("network", "data"), [(None, "cifar10"), ("resnet50", "cifar10"), ("resnet18", "cifar100")])
def test_another_network_or_dataset_matches_nothing(network: str | None, data: str) -> None:
    found = make_comparison([entry(f"{C}-at", 84.0, 44.0, 57.0, network=network, data=data)], paper=paper_table("I"))
    assert not found.rows[0].paper
    assert found.paper_rows == ()
    (note,) = found.notes
    assert "nothing" in note
    assert "cifar10 with resnet18" in note
    assert note in plain_text(found)


def test_what_only_the_paper_has_stands_below_and_is_never_best(beside_table_one: Comparison) -> None:
    names = [row.name for row in beside_table_one.paper_rows]
    assert "RMC" in names
    assert "AT" not in names
    assert len(names) == 13
    assert all(len(beside_table_one.ranks(column)) == 3 for column in beside_table_one.columns)
    rmc = next(line for line in plain_text(beside_table_one).splitlines() if line.startswith("RMC"))
    assert "*" not in rmc
    assert "paper only" in rmc


def test_paper_rows_of_two_networks_say_which() -> None:
    entries = [entry(f"{C}-at", 84.0, 44.0, 57.0), entry("cifar10-wrn32-10-at", 86.0, 46.0, 59.0, network="wrn32-10")]
    names = [row.name for row in make_comparison(entries, paper=paper_table("I")).paper_rows]
    assert "RMC, resnet18" in names
    assert "RMC, wrn32-10" in names


def test_the_papers_name_shipped_methods() -> None:
    _, methods = recipe_parts()
    assert set(PAPER_NAMES) <= set(methods)


@pytest.mark.parametrize("method", ["generalist-d-natural", "generalist-d-norms", "generalist-t"])
def test_as_in_the_published_code_is_the_same_method(method: str) -> None:
    ours, theirs = (entry(f"{C}-{name}", 84.0, 44.0, 57.0) for name in (method, f"{method}-code"))
    assert ours.paper_names == theirs.paper_names != ()


def test_a_generalist_of_trades_learners_is_not_trades() -> None:
    names = ("trades", "generalist-d-trades")
    entries = [entry(f"{C}-{name}", 84.0, 44.0, 57.0, suite="paper") for name in names]
    trades, generalist = make_comparison(entries, paper=paper_table("1a")).rows
    assert trades.paper
    assert generalist.method == "generalist-d-trades"
    assert not generalist.paper


def test_every_method_the_papers_name_is_known_or_has_no_recipe() -> None:
    known = {name for names in PAPER_NAMES.values() for name in names}
    for table in ("I", "II", "III", "IV", "1a", "1b", "3"):
        for methods in paper_table(table).rows.values():
            assert set(methods) <= known, table


def test_networks_are_the_papers_only_at_their_width() -> None:
    assert network_of("resnet18", None) == network_of("resnet18", 64) == "resnet18"
    assert network_of("resnet18", 16) is None
    assert network_of("small_cnn", None) is None
    assert network_of("wrn-32-10", None) == "wrn32-10"
    assert network_of("wide_resnet50_2", 64) == "wrn50-2"


def test_tables_of_the_papers() -> None:
    assert paper_table("ii").rows.keys() == paper_table("II").rows.keys()
    with pytest.raises(UserError, match="paper table 'IIII'; did you mean 'III'"):
        paper_table("IIII")
    with pytest.raises(UserError, match="known: 1a, 1b, 2, 3, 4, 5, I, II, III, IV"):
        paper_table("nine")


@pytest.mark.parametrize(
    ("changed", "fragment"),
    [
        ({"images": 50}, "different numbers of images: 100 and 50"),
        ({"examples": ["c-0", "b-1"]}, "different images"),
        ({"stages": {"AA": {"attack": "pgd"}}}, "different attacks"),
    ],
)
def test_runs_that_were_not_evaluated_alike_are_refused(changed: dict[str, object], fragment: str) -> None:
    first, second = entry("a-at", 84.0, 44.0, 57.0), entry("a-nt", 90.0, 0.0, 0.0)
    check_alike([first, second])
    with pytest.raises(UserError, match=f"^a-at and a-nt .*{fragment}$"):
        check_alike([first, replace(second, record={**second.record, **changed})])


def test_other_data_and_other_threats_are_refused() -> None:
    first = entry("a-at", 84.0, 44.0, 57.0)
    with pytest.raises(UserError, match="different data: cifar10 and svhn"):
        check_alike([first, entry("b-at", 84.0, 44.0, 57.0, data="svhn")])
    with pytest.raises(UserError, match="different threats: l2:128/255 linf:8/255 and linf:8/255"):
        check_alike([first, entry("b-at", 84.0, 44.0, threats=("linf:8/255",))])


@pytest.mark.parametrize(
    ("paths", "parts"),
    [
        (["/r/one", "/r/two"], ["one", "two"]),
        (["/r/seed0/at", "/r/seed1/at"], ["seed0", "seed1"]),
        (["/a/x/at", "/a/y/at", "/b/x/at"], ["a/x/at", "a/y/at", "b/x/at"]),
        (["/r/at", "/r/old/at"], ["r", "old"]),
    ],
)
def test_equal_names_are_told_apart_by_their_folders(paths: list[str], parts: list[str]) -> None:
    names = distinct_names(["at"] * len(paths), [PurePath(path) for path in paths])
    assert names == [f"at ({part})" for part in parts]
    assert distinct_names(["at", "nt"], [PurePath("/r/a"), PurePath("/r/b")]) == ["at", "nt"]


def test_plain_text_is_aligned_and_explains_its_marks(beside_table_one: Comparison) -> None:
    head, at, t, ramp, *rest = plain_text(beside_table_one).splitlines()
    assert "84.00+ (84.32)" in at
    assert "88.00* (88.03)" in t
    assert "80.00  (    –)" in ramp
    assert head.index("natural") + len("natural") == at.index("(84.32)") + len("(84.32)")
    assert at.index("84.00") == t.index("88.00") == ramp.index("80.00")
    assert "\x1b" not in "".join(rest)
    assert "* best of the column, + second best; ties share a mark" in rest
    assert any("Generalist++, table I" in line for line in rest)


def test_a_checkpoint_chosen_on_the_test_split_is_marked(beside_table_one: Comparison) -> None:
    text = plain_text(beside_table_one)
    (warning,) = [line for line in text.splitlines() if line.startswith("warning: ")]
    assert "test split" in warning
    assert f"{C}-ramp" in warning
    assert "test (!)" in text.splitlines()[3]
    for written in (latex_text(beside_table_one), markdown_text(beside_table_one)):
        assert "test (!)" in written


def _in_terminal(comparison: Comparison, width: int) -> str:
    console = Console(width=width, force_terminal=True, file=io.StringIO(), color_system="standard")
    for table in terminal_tables(comparison, width=width):
        console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_in_a_terminal_the_best_is_bold_green_and_the_second_underlined(beside_table_one: Comparison) -> None:
    printed = _in_terminal(beside_table_one, 200)
    assert "\x1b[1;32m88.00\x1b[0m" in printed
    assert "\x1b[4m84.00\x1b[0m" in printed
    assert "\x1b[1;31mtest (!)\x1b[0m" in printed


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_narrow_terminal_gets_several_tables_and_cuts_nothing(width: int) -> None:
    entries = [entry(f"{C}-{m}", 80.11 + i, 40.22, 60.33, suite="paper") for i, m in enumerate(["at", "generalist-t"])]
    comparison = make_comparison(entries, paper=paper_table("I"))
    printed = _in_terminal(comparison, width)
    assert "…" not in printed
    assert printed.count("40.22") == 2 * (len(SUITE_COLUMNS["paper"]) + 1)


def test_names_with_markup_are_printed_as_they_are() -> None:
    comparison = make_comparison([entry("[red]a_b|c-at", 84.0, 44.0, 57.0)])
    assert "[red]a_b|c-at" in _in_terminal(comparison, 200)
    assert r"{[}red]a\_b" in latex_text(comparison)  # a bracket after a line's end would be its argument
    assert r"\[red\]a\_b\|c-at" in markdown_text(comparison)


def test_csv_has_plain_numbers(beside_table_one: Comparison) -> None:
    at, t, ramp = csv.DictReader(io.StringIO(csv_text(beside_table_one)))
    assert at["natural"] == "84.0"
    assert at["paper:mean over norms"] == "50.68"
    assert "paper:true union" not in at
    assert (t["method"], t["cost"], t["selected_by"]) == ("generalist-t", "90.0", "validation")
    assert (ramp["cost"], ramp["paper:natural"]) == ("", "")
    plain = csv_text(make_comparison([entry("a-at", 84.0, 44.0, 57.0)]))
    assert "paper" not in plain


def test_latex_is_a_booktabs_table(beside_table_one: Comparison) -> None:
    text = latex_text(beside_table_one)
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    assert lines[0] == r"\begin{tabular}{lrrrrrrl}"
    assert lines[-1] == r"\end{tabular}"
    assert text.count(r"\midrule") == 2
    assert r"\textbf{88.00} (88.03)" in text
    assert r"\underline{84.00} (84.32)" in text
    assert all(line.count(" & ") == 7 for line in lines if line.endswith(r"\\"))
    escaped = latex_text(make_comparison([entry("a_b&c%-at", 84.0, 44.0, 57.0)]))
    assert r"a\_b\&c\%-at" in escaped


def test_markdown(beside_table_one: Comparison) -> None:
    head, rule, at, t, *_ = markdown_text(beside_table_one).splitlines()
    assert head.startswith("| run | natural | AA linf:8/255 |")
    assert rule.startswith("| --- | ---: |")
    assert "| <u>84.00</u> (84.32) |" in at
    assert "| **88.00** (88.03) |" in t


def test_the_record_for_json(beside_table_one: Comparison) -> None:
    record = beside_table_one.record()
    t = record["runs"][1]
    assert (t["recipe"], t["method"], t["run"]) == (f"{C}-generalist-t", "generalist-t", f"runs/{C}-generalist-t")
    assert t["accuracy"]["mean over norms"] == 53.0
    assert t["paper"]["mean over norms"] == 53.32
    assert record["runs"][2]["cost"] is None
    assert record["runs"][2]["selected_by"] == "test"
    assert len(record["paper_only"]) == 13


def test_a_point_far_below_does_not_press_the_others_together() -> None:
    assert axis_floor([0.0, 45.0, 50.0, 55.0]) == pytest.approx(43.5)
    assert axis_floor([40.0, 45.0, 50.0, 55.0]) is None
    assert axis_floor([0.0, 45.0, 50.0]) is None


@pytest.mark.parametrize("count", [1, 2, 12])
def test_the_scatter_is_a_picture(count: int) -> None:
    entries = [entry(f"{C}-{m}", 80 + i / 3, 40 + i % 3, 55 - i / 2) for i, m in enumerate(list(PAPER_NAMES)[:count])]
    picture = Image.open(io.BytesIO(draw_scatter(make_comparison(entries, paper=paper_table("I")))))
    assert picture.format == "PNG"
    assert picture.size[0] >= 800
    assert len(picture.convert("RGB").getcolors(2**24) or []) > 10


def test_labels_are_where_they_belong_in_an_svg_too() -> None:
    """An SVG has 72 units to the inch, a PNG 200 pixels: text placed by pixels would be far outside."""
    entries = [entry(f"{C}-{method}", 80 + i, 40 - i, 55) for i, method in enumerate(["at", "nt", "trades"])]
    text = draw_scatter(make_comparison(entries), kind="svg").decode()
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups())  # type: ignore[union-attr]
    for method in ("at", "nt", "trades"):
        after = text.split(f"<!-- {method} -->")[1]
        x, y = map(float, re.search(r"translate\(([-\d.]+) ([-\d.]+)\)", after).groups())  # type: ignore[union-attr]
        assert 0 < x < width
        assert 0 < y < height


def test_the_scatter_explains_its_colours_and_shortens_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig

    def keep(self: Figure, *args: Any, **options: Any) -> None:
        drawn.append(self)
        save(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    entries = [entry(f"{C}-{method}", 80 + i, 40 - i, 55) for i, method in enumerate(["at", "generalist-t"])]
    draw_scatter(make_comparison(entries, paper=paper_table("I")))
    draw_scatter(make_comparison([replace(one, name=one.name.replace(C, "my-own"), method=None) for one in entries]))
    with_paper, own = drawn
    wanted = ["Pareto front", "runs of Generalist", "runs of other methods"]
    assert {text.get_text() for text in own.legends[0].get_texts()} == set(wanted)
    told = {text.get_text() for text in with_paper.legends[0].get_texts()}
    assert told == {*wanted, "the same method", "Generalist++, table I"}
    for figure in drawn:
        labels = {text.get_text() for text in figure.axes[0].texts}
        assert {"at", "generalist-t"} <= labels
        assert all(0 <= end <= 100 for end in (*figure.axes[0].get_xlim(), *figure.axes[0].get_ylim()))
        assert "select: validation" in figure._suptitle.get_text()  # type: ignore[attr-defined]
