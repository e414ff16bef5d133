"""`generalist recipes` and `generalist recipes show`."""

import json

import typer

from generalist.cli.importing import importing
from generalist.cli.options import Json, Method, RecipeName, Set
from generalist.recipes.shipped import recipe_names, recipe_parts

recipes_app = typer.Typer(help="The shipped recipes: listed, or one shown in full.", invoke_without_command=True)


@recipes_app.callback()
def recipes_command(context: typer.Context, as_json: Json = False) -> None:
    """List the shipped recipes, or show one in full."""
    if context.invoked_subcommand is None:
        if as_json:
            print(json.dumps(recipe_names()))
        else:
            from generalist.report import tables

            settings, methods = recipe_parts()
            tables.show(tables.parts_table("setting", settings))
            tables.show(tables.parts_table("method", methods))
            print("a recipe is <setting>-<method>, such as digits-generalist-t; show one with: generalist recipes show")


@recipes_app.command("show")
def recipes_show(recipe: RecipeName, set_: Set = None, method: Method = None, as_json: Json = False) -> None:
    """Print a recipe with everything resolved."""
    with importing():
        from generalist.recipes.catalogue import load_recipe

    loaded = load_recipe(recipe, set_ or [], method=method)
    print(json.dumps(loaded.plain()) if as_json else loaded.to_yaml().rstrip())
