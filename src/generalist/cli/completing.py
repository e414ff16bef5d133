"""What a shell offers after the tab key: recipes, methods, suites, run folders. Nothing here imports torch."""

from collections.abc import Iterator
from pathlib import Path

from generalist.core.names import ANALYSES, RECIPE_FILE, SUITE_NAMES
from generalist.recipes.shipped import part_names, recipe_names

MOST = 200
"""Folders that are offered at once."""


def recipes(incomplete: str) -> list[str]:
    """Shipped recipes, and YAML files."""
    named = [name for name in recipe_names() if name.startswith(incomplete)] if "/" not in incomplete else []
    return [*named, *(path for path in _paths(incomplete) if path.endswith(("/", ".yaml", ".yml")))]


def methods(incomplete: str) -> list[str]:
    """Shipped methods."""
    return [name for name in part_names("methods") if name.startswith(incomplete)]


def suites(incomplete: str) -> list[str]:
    """Shipped suites, and YAML files."""
    named = [name for name in (*SUITE_NAMES, *ANALYSES) if name.startswith(incomplete)]
    return [*named, *(path for path in _paths(incomplete) if path.endswith(("/", ".yaml", ".yml")))]


def runs(incomplete: str) -> list[str]:
    """Run folders, and folders on the way to them."""
    found = [path for path in _paths(incomplete) if path.endswith("/")]
    return [path.rstrip("/") if (Path(path).expanduser() / RECIPE_FILE).is_file() else path for path in found]


def _paths(incomplete: str) -> Iterator[str]:
    """What lies in the folder that the text names so far and begins like it; folders end with a slash."""
    folder, slash, beginning = incomplete.rpartition("/")
    try:
        place = Path(folder or ("/" if slash else ".")).expanduser()
        entries = sorted(place.iterdir())
    except (OSError, RuntimeError):
        return
    fitting = (entry for entry in entries if entry.name.startswith(beginning))
    shown = [entry for entry in fitting if beginning.startswith(".") or not entry.name.startswith(".")]
    for entry in shown[:MOST]:
        yield f"{folder}{slash}{entry.name}{'/' if entry.is_dir() else ''}"
