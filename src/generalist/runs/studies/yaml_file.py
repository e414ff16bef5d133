"""A recipe that a search found, as a file that says what it changed and why."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from generalist.core.yaml_text import parse_yaml
from generalist.recipes.schema import Recipe


def recipe_file(
    recipe: Recipe,
    base: Any,
    method: str | None,
    overrides: Sequence[str],
    fields: Mapping[str, tuple[Any, str]],
    comments: Sequence[str],
) -> str:
    """The text of a YAML file that extends a recipe.

    Args:
        recipe: The recipe that was searched around.
        base: Its name or file, and with `method` the setting.
        overrides: What was changed of it before the search, `field=value`.
        fields: What the search changed, each with a comment.
        comments: What stands at the top.
    """
    lines = [f"# {comment}" for comment in comments]
    lines += [f"extends: {_flow(f'{base}-{method}' if method else str(base))}", f"name: {recipe.name}-tuned"]
    tree: dict[str, Any] = {}
    for override in overrides:
        name, _, value = override.partition("=")
        _put(tree, name.strip(), (parse_yaml(value, name), "given with the search"))
    for name, leaf in fields.items():
        _put(tree, name, leaf)
    return "\n".join([*lines, *_lines(tree, 0), ""])


def _put(tree: dict[str, Any], name: str, leaf: tuple[Any, str]) -> None:
    *above, last = name.split(".")
    for part in above:
        tree = tree.setdefault(part, {})
    tree[last] = leaf


def _lines(tree: Mapping[str, Any], depth: int) -> list[str]:
    lines = []
    for name, content in tree.items():
        if isinstance(content, tuple):
            value, comment = content
            lines.append(f"{'  ' * depth}{name}: {_flow(value)}  # {comment}")
        else:
            lines += [f"{'  ' * depth}{name}:", *_lines(content, depth + 1)]
    return lines


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return text.removesuffix("...\n").strip()  # which YAML writes after a lone number
