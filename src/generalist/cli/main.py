"""The whole command line: every command, and the only place that exits."""

import io
import os
import platform
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from generalist.cli.compare import compare_command
from generalist.cli.completion import completion_command, enable_completion
from generalist.cli.demo import demo_command
from generalist.cli.dial import dial_command
from generalist.cli.doctor import doctor_command
from generalist.cli.eval import eval_command
from generalist.cli.explain import explain_command
from generalist.cli.export import export_command
from generalist.cli.front import front_command
from generalist.cli.importing import importing
from generalist.cli.init import init_command
from generalist.cli.messages import complain
from generalist.cli.modules import modules_command
from generalist.cli.recipes import recipes_app
from generalist.cli.report import report_command
from generalist.cli.study import study_command
from generalist.cli.train import train_command
from generalist.cli.tune import tune_command
from generalist.core.errors import RunError, UserError, one_line
from generalist.distributed.launch import is_main_process, launched_processes
from generalist.version import __version__

UsageError: Any = typer.BadParameter.__base__
"""What the parser of arguments raises; typer has no public name for it."""

EXIT_CODES = """Exit codes: 0 done; 1 a run that cannot go on (divergence, a full disk); 2 a mistake in what was given,
told in one line; 130 interrupted, 143 terminated, with nothing lost; 141 nobody reads the output any more."""

app = typer.Typer(
    help="Robust image classifiers: trained, attacked and explained.",
    epilog=" ".join(EXIT_CODES.split()),
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _add(group: str, name: str, command: Callable[..., Any] | typer.Typer, example: str, short: str) -> None:
    """A command under its group of `--help`, with an example there and under its own `--help`."""
    about: Any = {
        "rich_help_panel": group,
        "short_help": f"{short}: [dim]generalist {name} {example}[/]",
        "epilog": f"Example: [bold]generalist {name} {example}[/]",
    }
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, **about)
    else:
        app.command(name, **about)(command)


TRAIN, ATTACK, UNDERSTAND, HERE = "Train", "Attack and compare", "Understand and choose", "This machine"
_add(TRAIN, "init", init_command, "photos/", "a recipe for images of your own")
_add(TRAIN, "train", train_command, "digits-generalist-t --out runs/t", "a recipe into a run folder")
_add(TRAIN, "tune", tune_command, "digits-generalist-t --budget 30m", "a search around a recipe, on validation")
_add(TRAIN, "recipes", recipes_app, "show digits-at", "what is shipped")
_add(ATTACK, "eval", eval_command, "runs/t --suite autoattack", "a run's model, a saved one, or anybody's")
_add(ATTACK, "compare", compare_command, "runs/*", "evaluated runs side by side")
_add(ATTACK, "front", front_command, "runs/* --at 95", "accuracy of whole fronts at equal natural accuracy")
_add(ATTACK, "study", study_command, "communication --setting digits", "a table or ablation of the papers, or your own")
_add(UNDERSTAND, "dial", dial_command, "runs/t --natural-at-least 95 --export chosen", "the trade-off after training")
_add(UNDERSTAND, "report", report_command, "runs/* --out report.html", "one page that explains runs")
_add(UNDERSTAND, "explain", explain_command, "runs/t --out explained", "confusions, weak classes, Grad-CAM")
_add(UNDERSTAND, "modules", modules_command, "runs/t", "what each module could give, for how much robustness")
_add(UNDERSTAND, "export", export_command, "runs/t --to onnx", "a model for other tools, with its card")
_add(HERE, "demo", demo_command, "--out runs/demo", "all of it on digits, in minutes")
_add(HERE, "doctor", doctor_command, "digits-generalist-t", "device, data, and what a recipe would cost")
_add(HERE, "completion", completion_command, "bash >> ~/.bashrc", "tab completion for bash, zsh and fish")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the versions and the device.")] = False,
) -> None:
    if version:
        versions = f"torch {_installed('torch')}, Python {platform.python_version()}"
        print(f"generalist {__version__} ({versions}, {_device()})")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def _device() -> str:
    """What `device: auto` takes. torch takes seconds to import, so it is asked only where there may be a GPU."""
    nodes = ("nvidia*", "kfd", "dxg")  # of CUDA, ROCm and WSL
    if sys.platform == "linux" and not any(path for name in nodes for path in Path("/dev").glob(name)):
        return "cpu"
    from generalist.training.precision import pick_device

    return str(pick_device())


def _installed(package: str) -> str:
    """Its version, without importing it."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "is not installed"


def _warn(message: Warning | str, category: type[Warning], *_: Any) -> None:
    print(f"warning: {one_line(str(message))}", file=sys.stderr)


def _advice(error: UserError) -> str:
    """What is wrong, and what to type."""
    return f"{error} ({error.command})" if error.command else str(error)


def _usage(error: Any) -> str:
    """The parser's complaint in one line, with where to read more."""
    where = error.ctx.command_path if error.ctx else "generalist"
    return f"{' '.join(error.format_message().split()).removesuffix('.')}; see {where} --help"


def _json_to_stdout(arguments: list[str]) -> list[str]:
    """`eval`, `compare`, `dial` or `front … --json` without a file means standard output, as for the other commands."""
    if arguments[:1] not in (["eval"], ["compare"], ["dial"], ["front"]):
        return arguments
    following = [*arguments[1:], "--"]
    bare = [
        a == "--json" and ((b.startswith("-") and b != "-") or Path(b).is_dir())
        for a, b in zip(arguments, following, strict=True)
    ]
    return [part for a, b in zip(arguments, bare, strict=True) for part in ([a, "-"] if b else [a])]


def _too_large(error: Exception) -> bool:
    """Whether memory, Python's stack or a number's range was exceeded; torch has no type of its own for all of it."""
    said = str(error).lower()
    torch_says = ("can't allocate", "out of memory", "overflow", "invalid buffer size", "invalid size")
    return isinstance(error, MemoryError | RecursionError | OverflowError) or (
        isinstance(error, RuntimeError) and any(words in said for words in torch_says)
    )


def _print_anything() -> None:
    """Where the locale lacks a character (ℓ, γ), it is printed as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _joined() -> AbstractContextManager[None]:
    """The process group, where torchrun started several processes; torch is not imported for one."""
    if launched_processes() == 1:
        return nullcontext()
    with importing():
        from generalist.distributed.ranks import joined_ranks
    return joined_ranks()


ALONE = ("init", "tune", "compare", "front", "study", "report", "explain", "modules", "export", "demo")
"""Commands that write files and do not share their work among ranks."""


def _check_ranks(arguments: list[str]) -> None:
    if launched_processes() > 1 and arguments[:1] and arguments[0] in ALONE:
        raise UserError(
            f"generalist {arguments[0]} is for one process, torchrun started {launched_processes()};"
            " train, eval and dial share their work"
        )


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    warnings.showwarning = _warn  # type: ignore[assignment]
    _print_anything()
    enable_completion()
    try:
        _check_ranks(sys.argv[1:])
        with _joined():
            if not is_main_process():
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
            code = app(_json_to_stdout(sys.argv[1:]), prog_name="generalist", standalone_mode=False)
    except (UserError, UsageError) as error:
        complain(_advice(error) if isinstance(error, UserError) else _usage(error))
        code = 2
    except RunError as error:
        complain(str(error))
        code = 1
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:
        complain(str(error))
        code = 1
    except Exception as error:
        if _too_large(error):
            complain(f"too large for this machine: {str(error) or type(error).__name__}")
        elif launched_processes() == 1:
            raise
        else:
            traceback.print_exc()
        code = 1
    if launched_processes() > 1:  # gloo's threads may abort an orderly exit; all files are closed by now
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)
