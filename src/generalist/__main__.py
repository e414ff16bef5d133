"""Where the command starts. An interrupt must end it quietly from here on, also while torch is imported (seconds)."""

import os
import signal
import sys
from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)  # not by an exception: a half-imported extension turns one into another


def main() -> None:
    """`generalist …`."""
    before = signal.signal(signal.SIGINT, _leave)
    from generalist.cli.main import main as command

    signal.signal(signal.SIGINT, before)
    try:
        command()
    except KeyboardInterrupt:  # before the command line's own handling of it, or after
        sys.exit(130)


if __name__ == "__main__":
    main()
