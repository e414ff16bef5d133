"""Docstrings as the reference reads them; mkdocs.yml names this extension of griffe."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import generalist
from generalist.core.registry import Registry

REGISTRIES = [name for name in generalist.__all__ if isinstance(getattr(generalist, name), Registry)]


class Docstrings(Extension):
    """`Example:` is a section of code, as `Examples:` is in Google's style. A registry has a docstring of its own."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        if attr.name in REGISTRIES:
            text = inspect.getdoc(getattr(generalist, attr.name)) or ""
            attr.docstring, attr.value = Docstring(text.replace("\nExample:\n", "\nExamples:\n"), parent=attr), None
