"""What the site makes while it is built: pages from the types, the reference, and parts of README and CONTRIBUTING."""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import fields  # noqa: E402

import generalist  # noqa: E402
from generalist import attacks  # noqa: E402
from generalist.core.registry import Registry  # noqa: E402

GROUPS = {
    "Train, attack, compare": ("train", "evaluate", "compare", "fronts", "dial", "write_report", "measure_modules"),
    "Runs and models": ("Run", "load", "Dial", "build_model", "load_model", "save_model", "load_weights"),
    "Recipes, data, suites": (
        "Recipe", "load_recipe", "recipe_names", "Dataset", "load_dataset", "Suite", "SuiteResult", "load_suite",
    ),
    "Pieces of the loop": ("Learner", "Mix", "MixPlan", "Batch", "LossTerms", "Threat"),
    "Errors": ("UserError", "RunError"),
    "Registries": ("OBJECTIVES", "MODELS", "DATASETS"),
}  # fmt: skip
"""The order of the reference; a public name that is in none of the groups comes under "More"."""
NOT_DOCUMENTED = ("LAYERS", "__version__", "attacks")


def reference() -> str:
    """A heading and a directive of mkdocstrings for every public name."""
    public = [name for name in generalist.__all__ if name not in NOT_DOCUMENTED]
    listed = [name for names in GROUPS.values() for name in names]
    groups = {**GROUPS, "More": tuple(name for name in public if name not in listed)}
    lines: list[str] = []
    for title, names in groups.items():
        present = [name for name in names if name in public]
        lines += [f"## {title}", ""] if present else []
        for name in present:
            home = next(home for home, these in generalist._HOMES.items() if name in these)
            lines += [f"::: generalist.{home}.{name}", ""]
    lines += ["## Attacks", "", "All of them are in `generalist.attacks`.", ""]
    for name in dict.fromkeys(["autoattack", *attacks.__all__]):
        attack = getattr(attacks, name)
        if callable(attack) and not isinstance(attack, Registry):
            lines += [f"::: {attack.__module__}.{attack.__name__}", ""]  # modules have the same names
    return "\n".join(lines)


PARTS = {
    "recipe fields": fields.recipe_page,
    "component fields": fields.components_page,
    "shipped recipes": fields.shipped_page,
    "reference": reference,
}


def included(file: str, part: str | None) -> str:
    """A file of the repository, or what stands between `<!-- part: NAME -->` and `<!-- end -->` in it."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if part is not None:
        (text,) = re.findall(rf"^<!-- part: {part} -->\n(.*?)^<!-- end -->", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"\]\(docs/", "](", text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """`<!-- generated: recipe fields -->` and `<!-- include: README.md demo -->` → what they stand for."""
    markdown = re.sub(r"<!-- generated: ([\w ]+) -->", lambda found: PARTS[found[1]](), markdown)
    return re.sub(r"<!-- include: (\S+)(?: (\S+))? -->", lambda found: included(found[1], found[2]), markdown)
