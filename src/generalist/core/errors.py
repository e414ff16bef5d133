"""What a user can get wrong, and how it is told."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what was given: one line saying what was given and what would do. The command line exits with 2."""


class RunError(Exception):
    """A run that cannot go on (divergence, a full disk): one line saying why and what is safe. Exits with 1."""


def unknown(kind: str, given: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not among the known ones, with the near-miss suggested."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
    return UserError(f"unknown {kind} {given!r}; {hint}")
