"""The template with its style, scripts and data, as one text."""

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from generalist.report.console import duration

SCRIPTS = ("basics.js", "charts.js", "dial.js", "sections.js")
"""In the order in which they are run, as one function."""


def render(page: Mapping[str, Any]) -> str:
    """The page as HTML. It asks nothing of any network: style, scripts, data and pictures are inside.

    Args:
        page: In JSON types, as `generalist.runs.report` collects it.
    """
    here = resources.files("generalist.report.page")

    def text(name: str) -> str:
        return (here / name).read_text(encoding="utf-8")

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["duration"] = duration
    plain = json.dumps(page, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    script = "\n".join(['"use strict";', "(() => {", *map(text, SCRIPTS), "})();"])
    return environment.from_string(text("page.html")).render(
        page=page,
        style=text("style.css"),
        script=script,
        data=plain.replace("<", "\\u003c"),  # no text of the data can end the element that holds it
    )
