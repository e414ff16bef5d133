"""Packages that not everybody has: imported when they are needed, missed with the command that installs them."""

import importlib
from types import ModuleType

from generalist.core.errors import UserError
from generalist.core.user_code import first_line

DISTRIBUTION = "robust-generalist"


def import_extra(module: str, *, extra: str, needed_by: str) -> ModuleType:
    """An optional package, or one line with the command that installs it.

    Args:
        module: What is imported.
        extra: The extra of this distribution that brings it.
        needed_by: What needs it, for the message.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:
        # A broken installation fails in many ways; all of them mean that the package cannot be used here.
        raise UserError(
            f"{needed_by} needs {module} ({first_line(error)}); install it with: pip install '{DISTRIBUTION}[{extra}]'"
        ) from None
