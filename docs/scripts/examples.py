"""Read `Example:` of a docstring as a section of code; Google's style knows `Examples:` alone."""

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Named by mkdocs.yml."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
