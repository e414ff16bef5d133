"""What a user can get wrong, and how it is told."""

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

LONGEST_VALUE, LONGEST_LINE = 200, 900
"""Characters of a given value, and of a whole message, that are shown."""


class UserError(Exception):
    """A mistake in what was given: one line saying what was given and what would do. The command line exits with 2.

    Args:
        message: The line, in words that fit Python and the command line alike.
        command: What to type, for users of the command line alone.

    Example:
        >>> import generalist
        >>> generalist.load_recipe("digits-att")
        Traceback (most recent call last):
        generalist.core.errors.UserError: unknown recipe 'digits-att'; did you mean 'digits-at'?
    """

    def __init__(self, message: str, *, command: str = "") -> None:
        super().__init__(message)
        self.command = command


class RunError(Exception):
    """A run that cannot go on (divergence, a full disk): one line saying why and what is safe. Exits with 1.

    Example:
        >>> from generalist import RunError
        >>> raise RunError("learner 'linf' diverged")
        Traceback (most recent call last):
        generalist.core.errors.RunError: learner 'linf' diverged
    """


class _Short(reprlib.Repr):
    """`repr` that never walks more of a value than is shown of it."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 10
        self.maxstring = self.maxlong = self.maxother = LONGEST_VALUE

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 1000 else f"an integer of {x.bit_length()} bits"


def shown(value: Any) -> str:
    """What a user gave, as an error shows it: like `repr`, but never long."""
    return cut(_Short().repr(value), LONGEST_VALUE)


def cut(text: str, longest: int) -> str:
    """The text, without its middle where it is too long."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"


def one_line(text: str) -> str:
    """A message of any origin as one line of bounded length, without characters that a terminal would act on."""
    plain = "".join(letter if letter.isprintable() else " " for letter in cut(text, 2 * LONGEST_LINE))
    return cut(" ".join(plain.split()), LONGEST_LINE)


def unknown(kind: str, given: Any, known: Iterable[str]) -> UserError:
    """The error for a name that is not among the known ones, with the near-miss suggested."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.6) if isinstance(given, str) else []
    hint = f"did you mean {close[0]!r}?" if close else f"known: {cut(', '.join(names), LONGEST_LINE)}"
    return UserError(f"unknown {kind} {shown(given)}; {hint}")
