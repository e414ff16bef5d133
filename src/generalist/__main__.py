"""Where the command starts. An interrupt ends it quietly from here on."""

import sys

from generalist.cli.importing import importing


def main() -> None:
    """`generalist …`."""
    with importing():
        from generalist.cli.main import main as command
    try:
        command()
    except KeyboardInterrupt:  # before the command line's own handling of it, or after
        sys.exit(130)


if __name__ == "__main__":
    main()
