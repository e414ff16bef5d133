"""The options that several commands have, and the checks of paths that a user gave."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from generalist.cli import completing
from generalist.core.errors import UserError, shown
from generalist.core.files import user_path

if TYPE_CHECKING:
    from generalist.recipes.schema import Recipe


def read_path(given: Any) -> Any:
    """A path that is to be read, or several; none where none was given."""
    return [user_path(path) for path in given] if isinstance(given, list) else given and user_path(given)


def read_data(given: str) -> str:
    user_path(given)
    return given


def written(given: Path | None) -> Path | None:
    """A file or folder that is to be written, looked at before anything long begins."""
    if given is None:
        return None
    path = user_path(given)
    nearest = next(place for place in (path, *path.absolute().parents) if place.exists())
    if nearest != path and not nearest.is_dir():
        raise UserError(f"{shown(str(path))} cannot be written: {shown(str(nearest))} is not a folder")
    return path


def written_file(given: Any) -> Any:
    """The same of a file alone; - is standard output."""
    path = given if given in (None, "-") else written(Path(given))
    if isinstance(path, Path) and path.is_dir():
        raise UserError(f"{shown(str(path))} is a folder; give a file to write")
    return path if given is None or isinstance(given, Path) else str(path)


def figure_file(param: typer.CallbackParam, given: Any) -> Any:
    """A file for a figure, whose ending says what kind it is."""
    if given is not None and Path(given).suffix.lower() not in (".png", ".svg"):
        raise UserError(f"{param.opts[0]} writes a .png or .svg file, got {shown(str(given))}")
    return written_file(given)


MOST_IMAGES = 1_000_000_000
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only results.")]
Json = Annotated[bool, typer.Option("--json", help="Results as JSON on standard output.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a recipe field, such as training.epochs=10; repeatable."),
]
Root = Annotated[
    Path | None,
    typer.Option(help="The folder that has the data; $GENERALIST_DATA, else ~/.cache/generalist, if not given."),
]
Download = Annotated[bool, typer.Option("--download", help="Fetch missing data from its official source.")]
RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", autocompletion=completing.recipes, help="A shipped recipe's name or a YAML file."),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        autocompletion=completing.methods,
        help="For a setting, or a file that extends one: which method.",
    ),
]


def with_root(recipe: "Recipe", root: Path | None) -> "Recipe":
    """The recipe with its data below `root`, where one was given."""
    if root is None:
        return recipe
    found_anywhere = str(user_path(root).resolve())
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"root": found_anywhere})})
