"""The site: it builds without a warning and needs no network, and what its pages print runs, in one folder.

Pages come in the order of a reader, who does not train the same twice: a training that another page has printed before
is there already. Trainings are cut short, and minima of a dial to 0. What needs data or machines that a test has not is
checked to be a valid command with a recipe that loads. Blocks without a language are not for running. What a page takes
from README or CONTRIBUTING is run by their tests.
"""

import html
import json
import logging
import re
import shlex
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import generalist
from browser import browser, needs_browser
from generalist.attacks import ATTACKS
from generalist.cli.main import UsageError, app
from generalist.recipes.catalogue import load_recipe
from generalist.recipes.schema import Recipe
from generalist.recipes.shipped import part_names
from printed import (
    blocks,
    reader_environment,
    run_block_forked,
    run_command_forked,
    shortened,
    write_foreign_model,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "scripts"))

import fields  # noqa: E402
import figures  # noqa: E402

FIRST = ("index.md", "dial.md")
"""The pages that make the runs of others."""
PAGES = [*FIRST, *sorted(page.name for page in DOCS.glob("*.md") if page.name not in FIRST)]
SHORT = [
    "training.epochs=2", "data.limit=80", "model.width=4", "validation.images=20", "validation.steps=2",
    "validation.every_epochs=2",
]  # fmt: skip
HERE = ("digits", "npz")
"""The data that a test has."""


class Reader:
    """Does what pages say, in a folder of their own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.done: list[list[str]] = []

    def follow(self, language: str, text: str) -> None:
        if language == "yaml":
            self._write(text)
        elif language == "bash":
            for line in text.replace("\\\n", " ").splitlines():
                self._command(line)
        else:
            assert language == "python", f"no test knows how to run a block of {language!r}"
            short = shortened(language, text, SHORT)
            run_block_forked(language, short, folder=self.folder, environment=self.environment)

    def _write(self, text: str) -> None:
        named = re.match(r"# ([\w-]+\.yaml)\n", text)
        path = self.folder / (named[1] if named else "printed.yaml")
        path.write_text(text)
        raw = yaml.safe_load(text)
        if "attacks" in raw:
            assert generalist.load_suite(path).stages
        else:
            method = "at" if raw["extends"] in part_names("settings") else None
            assert load_recipe(path, method=method).learners

    def _command(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        assert words[0] in ("generalist", "torchrun"), line
        words = launched(words) if words[0] == "torchrun" else words[1:]
        check_arguments(words)
        if words[0] == "train" and ("--dry-run" in words or not self._has_data(words)):
            self._recipe(words)
        elif not line.startswith("torchrun") and not (words[0] in ("train", "dial") and words in self.done):
            self.done.append(words)
            changes = [word for change in SHORT for word in ("--set", change)]
            short = [*words, *changes] if words[0] == "train" else cut_short(words)
            run_command_forked(short, folder=self.folder, environment=self.environment)

    def _recipe(self, words: list[str]) -> Recipe:
        changes = [change for option, change in pairwise(words) if option == "--set"]
        method = words[words.index("--method") + 1] if "--method" in words else None
        name = self.folder / words[1] if words[1].endswith(".yaml") else words[1]
        return load_recipe(name, changes, method=method)

    def _has_data(self, words: list[str]) -> bool:
        return self._recipe(words).data.name in HERE


def cut_short(words: list[str]) -> list[str]:
    """The command on few images, without minima that a model of two epochs cannot reach."""
    given = re.sub(r"-at-least \d+", "-at-least 0", shlex.join(words))
    given = re.sub(r" --(?:images|n) \d+", "", given)
    few = {
        "eval": ["--images", "3" if "curve" in words else "12"],
        "explain": ["--images", "12", "--examples", "2"],
        "report": ["--images", "12"],
        "modules": ["--images", "20"],
        "dial": ["--images", "20", "--points", "6"],
    }
    return [*shlex.split(given), *few.get(words[0], [])]


def launched(words: list[str]) -> list[str]:
    """The words of `torchrun … -m generalist …` after its own, which are checked."""
    from torch.distributed.run import get_args_parser

    given = get_args_parser().parse_args(words[1:])
    assert given.module
    assert given.training_script == "generalist"
    return list(given.training_script_args)


def check_arguments(words: list[str]) -> None:
    """The command exists, and takes these options and arguments."""
    from typer.main import get_command

    group: Any = get_command(app)
    context = group.make_context("generalist", [], resilient_parsing=True)
    name, command, rest = group.resolve_command(context, list(words))
    inner = command.make_context(name, list(rest), parent=context)
    if hasattr(command, "resolve_command") and rest:
        command.resolve_command(inner, list(rest))


def test_what_the_pages_print_runs(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    write_foreign_model(folder)
    reader = Reader(folder, reader_environment(tmp_path))
    printed = {page: blocks((DOCS / page).read_text()) for page in PAGES}
    assert sum(map(len, printed.values())) > 20
    for page in PAGES:
        for language, text in printed[page]:
            reader.follow(language, text)
    assert {"at", "late", "dialled", "trades", "adjustable", "mine-at"} <= {
        run.name for run in (folder / "runs").iterdir()
    }
    for made in ("report.html", "curve.svg", "table.tex", "trade-off.png", "explained"):
        assert (folder / made).exists(), made


def test_commands_in_the_text_take_their_options() -> None:
    """Also those that are too long to run. A command that is only spoken of may lack its arguments."""
    found: list[tuple[str, str]] = []
    for page in [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        printed = re.findall(r"(?:`|^)generalist ([a-z][^`\n]*)", page.read_text().replace("\\\n", " "), re.MULTILINE)
        found += [(page.name, words) for words in printed if "…" not in words]
    assert len(found) > 30
    for page, words in found:
        try:
            check_arguments(shlex.split(words, comments=True))
        except UsageError as error:
            if type(error).__name__ != "MissingParameter":
                pytest.fail(f"{page}: generalist {words}: {error}")


def test_make_targets_scripts_and_links_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = page.read_text()
        for target in re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE):
            assert f"\n{target}:" in makefile, f"{page.name}: make {target}"
        for script in re.findall(r"\b((?:benchmarks|tests|docs)/[\w/]+\.(?:py|md))", text):
            assert (ROOT / script).is_file(), f"{page.name}: {script}"
    for link in re.findall(r"\]\(([^)#:]+)[^)]*\)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).is_file(), f"README.md: {link}"


def test_every_field_is_explained() -> None:
    for section in dict.fromkeys(fields._sections(Recipe)):
        for name, _, meaning in fields.section_fields(section):
            assert meaning, f"{section.__name__} says nothing of {name}: add it to `Attributes:`"
    for registry, _ in fields.COMPONENTS.values():
        for name in registry.names():
            for field, _, meaning in fields.fields_of(registry, name):
                assert meaning, f"{registry.kind} {name} says nothing of {field}: add it to `Args:`"


def test_fields_have_the_values_that_the_types_allow() -> None:
    text = fields.recipe_page() + fields.components_page()
    for row in (
        "| `epochs` | whole number, 1 to 10000 | required | Epochs of the whole training. |",
        "| `select` | `validation` · `last` · `test` | `validation` |",
        "| `decay` | number, at least 0, below 1 | `0.999` |",
        "| `start` | exact number, 0 to 1, such as `1/3` | `5/8` |",
        "| `threats` | list of 2 threats, such as `linf:8/255` | required |",
        "| `patience` | 3 whole numbers, 0 to 1000 | `[0, 1, 2]` |",
        "| `root` † | text | – |",
        "| `from` | text | required |",
        "| `flip` | `true` · `false` | `false` |",
    ):
        assert row in text, row
    assert "several forms" not in fields.components_page()
    assert [f"### `{name}`" in text for name in ATTACKS.names()] == [True] * len(ATTACKS.names())


def test_the_figures_are_those_that_the_script_draws(tmp_path: Path) -> None:
    """By their words, which matplotlib keeps as comments; curves round differently elsewhere."""
    figures.main(tmp_path)

    def words(folder: Path) -> dict[str, list[str]]:
        return {path.name: re.findall(r"<!-- (.*?) -->", path.read_text()) for path in sorted(folder.glob("*.svg"))}

    assert len(words(tmp_path)) == 5
    assert words(tmp_path) == words(figures.FOLDER)
    shown = (DOCS / "how-it-works.md").read_text() + (DOCS / "attacks.md").read_text()
    assert [name for name in words(tmp_path) if f"figures/{name}" not in shown] == []


def test_the_figures_say_what_the_plan_does() -> None:
    plan = figures.plan_of("generalist-t")
    assert [plan.active_epochs(name) for name in ("linf", "natural", "l2")] == [120, 40, 40]
    assert [epoch for epoch in range(1, 121) if plan.redistributes_in(epoch)] == list(range(75, 120, 5))
    late = figures.plan_of("generalist-late-t")
    assert [late.active_epochs(name) for name in ("linf", "natural", "l2")] == [72, 48, 48]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]' to build the site")
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install '.[docs]' to build the site")
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install '.[docs]' to build the site")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
    assert config.strict
    config.plugins.on_startup(command="build", dirty=False)
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("mkdocs").addHandler(handler)
    try:
        build(config)
    except SystemExit:
        pytest.fail("\n".join(said))
    finally:
        logging.getLogger("mkdocs").removeHandler(handler)
    assert said == []
    return folder


def test_the_site_builds_without_a_warning_and_has_every_page(site: Path) -> None:
    for page in PAGES:
        assert (site / page.replace(".md", ".html")).is_file(), page
    assert not (site / "scripts").exists()


def test_nothing_on_the_site_comes_from_a_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe|source|link|video)\b[^>]*?(?:src|href)=\"?([^\"\s>]+)", page.read_text()
        )
        assert [link for link in loaded if re.match(r"(?:https?:)?//", link)] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import", style.read_text()), style.name


def test_the_reference_has_every_public_name_with_its_example(site: Path) -> None:
    text = (site / "api.html").read_text()
    plain = html.unescape(re.sub(r"<[^>]+>", "", text))
    headings = re.findall(r"<h3 id=\"(generalist[\w.]*)\"", text)
    for name in generalist.__all__:
        if name not in ("LAYERS", "__version__", "attacks"):
            assert [heading for heading in headings if heading.rpartition(".")[2] == name], name
    for name in ATTACKS.names():
        assert any(ATTACKS.get(name).__name__ == heading.rpartition(".")[2] for heading in headings), name
    assert '>>> recipe = generalist.load_recipe("digits-generalist-t")' in plain
    assert plain.count(">>> import generalist") > 10


def test_what_is_generated_and_included_is_there(site: Path) -> None:
    assert "<!-- generated" not in "".join(page.read_text() for page in site.glob("*.html"))
    assert "<!-- include" not in "".join(page.read_text() for page in site.glob("*.html"))
    assert 'id="objective-trades"' in (site / "fields.html").read_text()
    assert "fashion-mnist-mini" in (site / "recipes.html").read_text()
    assert "Add a dataset" in (site / "extending.html").read_text()
    assert "late Generalist-T" in (site / "results.html").read_text()


def test_links_of_readme_lead_to_headings(site: Path) -> None:
    for page, heading in re.findall(r"\]\(docs/([\w-]+)\.md#([\w-]+)\)", (ROOT / "README.md").read_text()):
        assert f'id="{heading}"' in (site / f"{page}.html").read_text(), f"{page}.md#{heading}"


@needs_browser
def test_search_works_from_a_folder_and_asks_no_network(site: Path, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as window:
        window.open(site / "index.html")
        window.run(
            "const box = document.querySelector('.md-search__input');"
            "box.focus(); box.value = 'redistribution'; box.dispatchEvent(new Event('keyup', {bubbles: true}))"
        )
        links: list[str] = []
        for _ in range(100):
            links = window.run("return [...document.querySelectorAll('.md-search-result__link')].map(a => a.href)")
            if links:
                break
            time.sleep(0.1)
        events = [json.loads(entry["message"])["message"] for entry in window.log("performance")]
    assert any("how-it-works.html" in link for link in links)
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert len([address for address in asked if address.startswith("file:")]) > 3
    assert [address for address in asked if address.startswith(("http:", "https:", "ws:", "wss:"))] == []
