"""`generalist demo`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from generalist.cli.options import written
from generalist.core.errors import UserError

TRAINED = ("nt", "at", "at-l2", "generalist-t")
"""The methods whose last state is taken, without selection."""


def demo_commands(folder: Path) -> list[list[str]]:
    """The arguments of every `generalist …` of the demo, in their order."""
    runs = [str(folder / name) for name in (*TRAINED, "late-t")]
    *others, late = runs
    dialled, beside = str(folder / "late-t-dial"), [part for run in others for part in ("--beside", run)]
    wish = ["--beyond", "1.25", "--linf-at-least", "65", "--maximise", "l2"]
    return [
        *(["train", f"digits-{name}", "--set", "select=last", "--out", str(folder / name)] for name in TRAINED),
        ["train", "digits-generalist-late-t", "--out", late],
        ["dial", late, *wish, "--export", dialled, *beside],
        ["eval", *runs, "--global"],
        ["compare", *runs, dialled],
        ["report", *runs, dialled, "--out", str(folder / "report.html")],
    ]


def demo_command(
    out: Annotated[Path, typer.Option(metavar="DIR", callback=written, help="Where the runs go.")] = Path("runs/demo"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands; run nothing.")] = False,
) -> None:
    """Train NT, AT, AT in ℓ2 and two Generalists on digits, dial one, attack all, compare them, write a report."""
    if not dry_run and out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; remove it or give another folder", command="--out DIR")
    import subprocess

    for arguments in demo_commands(out):
        print(shlex.join(["generalist", *arguments]), flush=True)
        if not dry_run:
            done = subprocess.run([sys.executable, "-m", "generalist", *arguments], check=False)
            if done.returncode:
                raise typer.Exit(done.returncode)
    if not dry_run:
        print(f"report: {out / 'report.html'}\nfigures: {out / 'late-t'}/figures/dial.png and {out}/*/figures/*.png")
