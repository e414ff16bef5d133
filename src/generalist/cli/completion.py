"""`generalist completion`."""

import os
from enum import StrEnum
from typing import Annotated

import typer

VARIABLE = "_GENERALIST_COMPLETE"
"""What the shell's script sets when it asks what could come next."""


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_command(context: typer.Context, shell: Annotated[Shell, typer.Argument(help="Which shell.")]) -> None:
    """Print the script that completes commands, options, recipes, suites and run folders in a shell."""
    os.environ[VARIABLE] = f"source_{shell}"
    enable_completion()
    context.find_root().command.main([], prog_name="generalist")  # which answers the variable, and exits


def enable_completion() -> None:
    """Answer a shell that asks what could come next; typer does so only where it is asked to."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init

        completion_init()
