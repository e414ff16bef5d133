"""What goes to standard error."""

import os
import sys

from generalist.core.errors import one_line


def complain(text: str) -> None:
    """One line to standard error; of several processes the main one speaks for all."""
    text = one_line(text)
    if int(os.environ.get("RANK", "0")) > 0:
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    if console.is_terminal:
        console.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)
    else:
        print(f"error: {text}", file=sys.stderr)
