"""Tables of results."""

from typing import Any

from rich.console import Console
from rich.table import Table

from generalist.report.tables import accuracy_table, run_table


def record(natural: float, **robust: float) -> dict[str, Any]:
    threats = {f"{norm}:1/5": value for norm, value in robust.items()}
    return {"natural": natural, "robust": threats, "attack": "PGD20"}


def cells(table: Table) -> dict[str, list[str]]:
    """The columns as they were added, with their markup."""
    return {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}


def test_the_best_of_each_column_is_marked() -> None:
    found = cells(accuracy_table({"at": record(80, linf=45), "t": record(89, linf=44)}))
    assert found["natural"] == ["80.00", "[bold green]89.00[/]"]
    assert found["PGD20 linf:1/5"] == ["[bold green]45.00[/]", "44.00"]


def test_a_single_row_has_no_best() -> None:
    assert cells(accuracy_table({"at": record(80, linf=45)}))["natural"] == ["80.00"]


def test_what_was_not_measured_is_a_dash_and_what_nobody_measured_is_left_out() -> None:
    union = {"mean_over_norms": 40.0, "true_union": 30.0}
    found = cells(accuracy_table({"a": record(80, linf=45), "b": {**record(70, l2=50), **union}}))
    assert found["PGD20 linf:1/5"] == ["[bold green]45.00[/]", "–"]
    assert found["true union"] == ["–", "[bold green]30.00[/]"]
    assert "mean over norms" not in cells(accuracy_table({"a": record(80, linf=45)}))


def test_names_with_brackets_are_printed_as_they_are() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(accuracy_table({"runs/[red]x": record(80)}, title="[green]"))
    printed = console.export_text()
    assert "runs/[red]x" in printed
    assert "[green]" in printed


def test_a_run_selected_on_the_test_set_says_so() -> None:
    kept = {**record(80, linf=45), "epoch": 3}
    summary = {"recipe": "mine", "seconds": 61, "selected": {"global": kept, "l2": None}}
    honest = run_table({**summary, "selected_by": "validation"}, steps=20)
    assert cells(honest)["model"] == ["global (epoch 3)"]
    assert "validation split" in str(honest.title)
    assert "1m01s" in str(honest.title)
    assert "test set!" in str(run_table({**summary, "selected_by": "test"}, steps=20).title)
