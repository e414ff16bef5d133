"""`generalist report`: one page that needs nothing else, whatever the folders hold."""

import json
import re
import shutil
from pathlib import Path

import pytest
from cli_cases import Cli

import generalist
from browser import Browser, browser, needs_browser
from generalist import Run

FEW = ("--points", "6", "--images", "20", "--quiet")


def page_data(path: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    assert found is not None
    return json.loads(found.group(1))


@pytest.fixture(scope="module")
def reported(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run that was attacked and dialled, and of a second one that was only trained."""
    place = tmp_path_factory.mktemp("reported")
    attacked, other = (Run(shutil.copytree(trained.folder, place / name)) for name in ("attacked", "other"))
    dial = generalist.dial(attacked, points=6, images=20)
    dial.keep(chosen={**dial.pick().record(), "rule": "most", "red_flags": []})
    generalist.evaluate(attacked, images=30)
    with pytest.warns(UserWarning, match="has no record of suite pgd20"):
        return generalist.write_report([attacked, other], place / "page.html", images=20)


def test_the_page_has_the_figures_of_the_records(reported: Path) -> None:
    data = page_data(reported)
    record = json.loads((reported.parent / "attacked" / "evaluations" / "global-pgd20.json").read_text())
    (row,) = data["groups"][0]["rows"]
    assert row["values"]["natural"] == record["natural"]
    (dial,) = data["dials"]
    kept = json.loads((reported.parent / "attacked" / "dial" / "last.json").read_text())
    assert [point["natural"] for point in dial["points"]] == [point["natural"] for point in kept["points"]]
    assert dial["points"][dial["chosen"]]["weights"] == kept["chosen"]["weights"]
    assert all(len(point["said"]) == len(dial["pictures"]) for point in dial["points"])
    assert any("other has no record of suite pgd20" in line for line in data["warnings"])
    assert [run["flags"] for run in data["runs"]][1] == []


def test_class_accuracies_and_losses_of_points_are_those_of_their_verdicts(reported: Path) -> None:
    (dial,) = page_data(reported)["dials"]
    for point in dial["points"]:
        shares = [value for value in point["by_class"]["natural"] if value is not None]
        assert min(shares) <= point["natural"] <= max(shares)
        assert point["losses"]["natural"] < max(point["losses"][threat] for threat in dial["threats"])


def test_a_page_asks_nothing_of_the_network(reported: Path) -> None:
    text = reported.read_text()
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert "default-src 'none'" in text


def test_a_broken_record_is_named_and_left_out(cli: Cli, copied: Path, tmp_path: Path) -> None:
    assert cli("eval", copied, "--global", "--n", "20", "--quiet").code == 0
    record = copied / "evaluations" / "global-pgd20.json"
    record.write_text(record.read_text().replace('"natural": ', '"natural": 1', 1))
    outcome = cli("report", copied, "--out", tmp_path / "page.html", "--images", "0", "--quiet")
    assert outcome.code == 0
    assert "was changed since it was written" in outcome.err
    data = page_data(tmp_path / "page.html")
    assert data["groups"] == []
    assert any(str(record) in line for line in data["warnings"])
    assert "No attack has been recorded" in data["lead"][-1]


def test_a_broken_dial_is_named_and_left_out(cli: Cli, copied: Path, tmp_path: Path) -> None:
    assert cli("dial", copied, *FEW).code == 0
    last = copied / "dial" / "last.json"
    last.write_text(last.read_text().replace('"images": 20', '"images": 21', 1))
    assert cli("report", copied, "--out", tmp_path / "page.html", "--images", "0", "--quiet").code == 0
    data = page_data(tmp_path / "page.html")
    assert data["dials"] == []
    assert any(str(last) in line for line in data["warnings"])


def test_fifty_runs_with_seeds_make_one_page(cli: Cli, copied: Path, tmp_path: Path) -> None:
    assert cli("eval", copied, "--global", "--n", "20", "--quiet").code == 0
    runs = [Path(shutil.copytree(copied, tmp_path / f"run-{number}")) for number in range(50)]
    outcome = cli("report", *runs, "--out", tmp_path / "page.html", "--images", "0", "--quiet")
    assert outcome.code == 0, outcome.err
    data = page_data(tmp_path / "page.html")
    (over,) = data["groups"][0]["seeds"]
    assert len(over["runs"]) == 50
    assert set(over["sd"].values()) == {0.0}
    assert (tmp_path / "page.html").stat().st_size < 6e6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "is not a run folder"),
        (["{run}", "--out", "{run}"], "is a folder"),
        (["{run}", "--paper", "IX"], "unknown paper table"),
    ],
)
def test_mistakes_are_one_line(cli: Cli, copied: Path, arguments: list[str], said: str) -> None:
    outcome = cli("report", *(part.format(run=copied) for part in arguments), "--quiet")
    assert outcome.code == 2
    (line,) = outcome.errors
    assert said in line


@pytest.fixture(scope="module")
def opened(reported: Path, tmp_path_factory: pytest.TempPathFactory) -> Browser:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        found.resize(1200, 900)
        found.open(reported)
        yield found


@needs_browser
def test_no_error_no_request_and_no_sideways_scrolling(opened: Browser, reported: Path) -> None:
    assert [line["message"] for line in opened.log("browser")] == []
    events = [json.loads(line["message"])["message"] for line in opened.log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    of_the_page = {url for url in asked if not url.startswith(("data:", "chrome:", "about:"))}  # not of an empty tab
    assert of_the_page == {reported.resolve().as_uri()}
    for width in (1200, 390):
        opened.resize(width, 900)
        assert opened.run("return document.documentElement.scrollWidth") <= width
    opened.resize(1200, 900)
    assert opened.run("return document.querySelectorAll('figure svg').length") > 5


@needs_browser
def test_the_slider_moves_figures_classes_and_images(opened: Browser, reported: Path) -> None:
    (dial,) = page_data(reported)["dials"]
    seen = {}
    opened.run(
        "const all = document.querySelector('.dial .all'); all.checked = true; all.dispatchEvent(new Event('change'))"
    )
    for place in range(len(dial["points"])):
        seen[place] = opened.run(
            """const slider = document.querySelector('.dial input[type=range]');
            slider.value = arguments[0]; slider.dispatchEvent(new Event('input'));
            const parts = ['.figures', '.classbars', '.pictures', '.python'];
            return parts.map((part) => document.querySelector('.dial ' + part).innerHTML)
              .concat(slider.getAttribute('aria-valuetext'), document.querySelector('.dial .figure b').textContent);""",
            place,
        )
    naturals = sorted(point["natural"] for point in dial["points"])
    assert [seen[place][-1] for place in seen] == [f"{value:.1f} %" for value in naturals]
    assert len({row[2] for row in seen.values()}) > 1
    assert len({row[3] for row in seen.values()}) == len(dial["points"])


@needs_browser
def test_tables_sort_and_the_theme_changes(opened: Browser) -> None:
    press = """const head = document.querySelectorAll('#class-table thead th')[0];
    head.querySelector('button').click();
    const names = [...document.querySelectorAll('#class-table tbody th')];
    return [head.getAttribute('aria-sort'), names.map((cell) => cell.textContent)];"""
    first, second = opened.run(press), opened.run(press)
    assert [first[0], second[0]] == ["ascending", "descending"]
    assert first[1] == second[1][::-1]
    paper = "return getComputedStyle(document.body).backgroundColor"
    opened.prefer("light")
    light = opened.run(paper)
    opened.run("document.querySelector('#theme').click(); document.querySelector('#theme').click()")
    assert opened.run(paper) != light
    opened.run("document.querySelector('#theme').click()")
    opened.prefer("dark")
    assert opened.run(paper) != light
