"""The page of `generalist report` in a browser: it works, it reads well, and it asks nothing of any network."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from report_cases import page_data

from browser import Browser, browser, needs_browser
from generalist.report.page.rendering import render

pytestmark = needs_browser

CONTRAST = """
const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
};
const over = (top, below) => top.slice(0, 3).map((v, i) => v * top[3] + below[i] * (1 - top[3]));
const behind = (element) => {
  if (!element) return [255, 255, 255];
  const own = rgba(getComputedStyle(element).backgroundColor);
  return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
};
const light = (c) => {
  const [r, g, b] = c.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const poor = [];
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  const unseen = ['SCRIPT', 'STYLE', 'OPTION', 'NOSCRIPT', 'title'].includes(element.tagName);
  if (!own || unseen || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const drawn = element instanceof SVGElement;
  const before = element.previousElementSibling;
  const tile = drawn && before && before.tagName === 'polygon' ? rgba(getComputedStyle(before).fill) : null;
  const back = tile ? tile.slice(0, 3) : behind(element);
  const front = over(rgba(drawn ? style.fill : style.color), back);
  const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  const large = parseFloat(style.fontSize) >= 24;
  const words = element.textContent.trim().slice(0, 30);
  if (ratio < (large ? 3 : 4.5)) poor.push(`${element.tagName} "${words}": ${ratio.toFixed(2)}`);
}
return [...new Set(poor)];
"""


@pytest.fixture(scope="module")
def opened(reported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        found.resize(1200, 900)
        found.prefer("light")
        found.open(reported)
        yield found


def test_no_error_no_request_and_no_sideways_scrolling(opened: Browser, reported: Path) -> None:
    assert [line["message"] for line in opened.log("browser")] == []
    events = [json.loads(line["message"])["message"] for line in opened.log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    of_the_page = {url for url in asked if not url.startswith(("data:", "chrome:", "about:"))}  # not of an empty tab
    assert of_the_page == {reported.resolve().as_uri()}
    for width in (1200, 390, 320):
        opened.resize(width, 900)
        assert opened.run("return document.documentElement.scrollWidth") <= width
    opened.resize(1200, 900)
    assert opened.run("return document.querySelectorAll('figure svg').length") > 5


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


def test_the_slider_obeys_the_keyboard_and_the_button(opened: Browser, reported: Path) -> None:
    (dial,) = page_data(reported)["dials"]
    begin = "const s = document.querySelector('.dial input[type=range]'); s.value = 0; s.focus(); return s.value"
    assert opened.run(begin) == "0"
    opened.press("ArrowRight")
    assert opened.run("return document.activeElement.value") == "1"
    opened.run("document.querySelector('.dial .chosen').click()")
    weights = dial["points"][dial["chosen"]]["weights"]
    shown = opened.run("return document.querySelector('.dial .mixture').textContent")
    assert all(name in shown for name in weights)
    python = opened.run("return document.querySelector('.dial .python').textContent")
    assert f"dial.points[{dial['chosen']}]" in python


def test_the_way_between_learners_shows_losses_and_accuracies(opened: Browser) -> None:
    words = "return [...document.querySelectorAll('.ways svg')].map((one) => one.getAttribute('aria-label'))"
    losses = opened.run(words)
    assert any(text.startswith("cross-entropy between linf and natural") for text in losses)
    opened.run(
        "const s = document.querySelector('.way-measure'); s.value = 'accuracy'; s.dispatchEvent(new Event('change'))"
    )
    accuracies = opened.run(words)
    assert len(accuracies) == len(losses)
    assert any(text.startswith("accuracy (%) between linf and natural") for text in accuracies)


def test_tables_sort_and_empty_cells_stay_last(opened: Browser) -> None:
    press = """const head = document.querySelectorAll(arguments[0] + ' thead th')[arguments[1]];
    head.querySelector('button').click();
    const cells = [...document.querySelectorAll(arguments[0] + ' tbody tr')].map((row) => row.cells[arguments[1]]);
    return [head.getAttribute('aria-sort'), cells.map((cell) => cell.textContent.trim())];"""
    one = "#class-table > :first-child"
    first, second = opened.run(press, one, 0), opened.run(press, one, 0)
    assert [first[0], second[0]] == ["ascending", "descending"]
    assert first[1] == second[1][::-1] == sorted(first[1])
    down, up = opened.run(press, "#cost", 6), opened.run(press, "#cost", 6)
    assert [down[0], up[0]] == ["descending", "ascending"]
    assert [down[1][-1], up[1][-1]] == ["–", "–"]


def test_runs_and_measures_can_be_chosen(opened: Browser) -> None:
    choose = """const select = document.querySelector(arguments[0]); select.value = arguments[1];
    select.dispatchEvent(new Event('change')); return document.querySelector(arguments[2]).textContent;"""
    assert "first 30 test images" in opened.run(choose, "#class-measure", "unattacked", "#class-table caption")
    assert "severity 5 of 5" in opened.run(choose, "#ood-view", "5", "#ood caption")
    assert opened.run(choose, "#ood-view", "run 0", "#ood tfoot").startswith("mean92.5")
    assert "10 epochs" not in opened.run(choose, "#curve-run", "1", "#curve-note")


def test_everything_has_a_name_and_a_place(opened: Browser) -> None:
    unnamed = """return [...document.querySelectorAll('img:not([alt]), svg[role=img]:not([aria-label])')].length
      + [...document.querySelectorAll('select, input')].filter((one) => !one.labels.length && !one.ariaLabel).length
      + [...document.querySelectorAll('button')].filter((one) => !one.textContent.trim()).length"""
    assert opened.run(unnamed) == 0
    found = opened.run(
        "return ['header', 'nav', 'main', 'footer', 'h1'].map((n) => document.querySelectorAll(n).length)"
    )
    assert found == [1, 1, 1, 1, 1]
    links = "return [...document.querySelectorAll('nav a')].filter((a) => !document.querySelector(a.hash)).length"
    assert opened.run(links) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_what_is_behind_it(opened: Browser, scheme: str) -> None:
    opened.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    opened.prefer(scheme)
    assert opened.run(CONTRAST) == []


def test_the_theme_follows_the_system_or_the_button(opened: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    opened.prefer("light")
    light = opened.run(paper)
    press = "const b = document.querySelector('#theme'); b.click(); return b.textContent"
    assert opened.run(press) == "Theme: light"
    opened.prefer("dark")
    assert opened.run(paper) == light
    assert opened.run(press) == "Theme: dark"
    opened.prefer("light")
    assert opened.run(paper) != light
    assert opened.run(press) == "Theme: system"
    assert opened.run(paper) == light


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1200, "light"), (1200, "dark")])
def test_screenshots_have_the_width_and_the_theme(opened: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    opened.resize(width, 900)
    opened.prefer(scheme)
    time.sleep(0.2)  # charts are drawn again for the new width
    opened.screenshot(tmp_path / "page.png")
    pixels = np.asarray(Image.open(tmp_path / "page.png").convert("RGB"))
    assert pixels.shape[1] == width
    corner = pixels[-1, 0].mean()
    assert corner > 200 if scheme == "light" else corner < 50
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50


def test_paper_is_light_and_has_everything_open(opened: Browser) -> None:
    opened.prefer("dark")
    made: dict[str, Any] = opened.command("Page.printToPDF", printBackground=True)
    content = base64.b64decode(made["data"])
    assert content.startswith(b"%PDF")
    assert len(content) > 20_000
    opened.resize(1200, 900)


def test_fifty_runs_are_drawn(opened: Browser, reported: Path, tmp_path: Path) -> None:
    """The first of them many times over."""
    data = page_data(reported)
    group, run = data["groups"][0], data["runs"][0]
    group["rows"] = [{**group["rows"][0], "name": f"run {number}"} for number in range(50)]
    data["runs"] = [{**run, "name": f"run {number}", "examples": []} for number in range(50)]
    many = tmp_path / "many.html"
    many.write_text(render(data))
    opened.open(many)
    assert [line["message"] for line in opened.log("browser")] == []
    assert opened.run("return document.documentElement.scrollWidth") <= 1200
    assert opened.run("return document.querySelectorAll('#results tbody tr').length") == 100
