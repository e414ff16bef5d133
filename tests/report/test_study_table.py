"""The tables of studies: means, deviations, differences, what is missing, what the paper says."""

import csv
import io

from generalist.report.comparison import Column
from generalist.report.study_figures import Panel, draw_study
from generalist.report.study_table import ResultRow, Spread, StudyTable, csv_text, latex_text, markdown_text

NATURAL, LINF = Column("natural"), Column("AA linf:8/255", "linf:8/255", "AA")
TABLE = StudyTable(
    name="c-study",
    description="how often",
    reference="Fig. 5",
    about="% right of 100 test images of digits, suite quick",
    seeds=(0, 1),
    columns=(NATURAL, LINF),
    rows=(
        ResultRow("c = 1", "T", {"c": "1"}, {"natural": {0: 80.0, 1: 82.0}, LINF.name: {0: 40.0, 1: 42.0}},
                  {"natural": 84.32}),
        ResultRow("c_2", "T", {"c": "2"}, {"natural": {0: 70.0, 1: 71.0}}, changes={"natural": Spread(-10.5, 0.71)},
                  missing={1: "waiting"}),
        ResultRow("c = 3", "D", {"c": "3"}, missing={0: "failed: it diverged", 1: "waiting"}),
    ),
    baseline="c = 1",
    paper="Generalist++, table I",
    notes=("failed: c = 3, seed 0: it diverged",),
)  # fmt: skip


def test_plain_text_has_means_marks_papers_and_reasons() -> None:
    lines = str(TABLE).splitlines()
    assert lines[0] == "c-study: how often"
    assert "81.00 ± 1.41* (84.32)" in lines[2]
    assert "70.50 ± 0.71+" in lines[3]
    assert "failed" in lines[4]
    assert "seeds 0, 1, mean ± standard deviation over the seeds" in lines[5]
    assert "in parentheses: Generalist++, table I" in lines[7]
    assert "failed: c = 3, seed 0: it diverged" in lines[8]
    assert "difference from c = 1, paired; ± standard deviation over the seeds" in lines[10]
    assert "-10.50 ± 0.71" in lines[12]
    assert not TABLE.finished


def test_markdown_and_latex_escape_names_and_mark_the_best() -> None:
    text = markdown_text(TABLE)
    assert "| T | c = 1 | **81.00 ± 1.41** (84.32) | 41.00 ± 1.41 |" in text
    assert "c\\_2" in text
    assert "(Fig. 5)" in text
    latex = latex_text(TABLE)
    assert r"\textbf{81.00 $\pm$ 1.41} (84.32)" in latex
    assert r"T & c\_2 & \underline{70.50 $\pm$ 0.71} & waiting \\" in latex
    assert latex.count(r"\midrule") == 3  # below the heads, and between the groups
    assert latex.count(r"\begin{tabular}") == 2


def test_csv_has_a_row_for_each_figure() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(TABLE))))
    assert len(rows) == 6
    assert rows[0]["mean"] == "81.0"
    assert rows[0]["paper"] == "84.32"
    assert rows[0]["seed 1"] == "82.0"
    assert rows[2]["difference"] == "-10.5"
    assert rows[5]["missing"] == "seed 0: failed: it diverged; seed 1: waiting"


def test_every_kind_of_figure_is_drawn_with_what_is_there() -> None:
    classes = {"natural": (90.0, None), "linf:8/255": (10.0, 20.0)}
    rows = tuple(
        ResultRow(row.label, row.group, row.values, row.figures, row.paper, row.changes, row.missing, classes)
        for row in TABLE.rows
    )
    table = StudyTable(
        "s", "d", "", "", (0, 1), (NATURAL, LINF), rows, class_names=("cat", "dog"), paper="I"
    )  # fmt: skip
    panels = {
        "lines": Panel(y=(NATURAL, LINF), x="c"),
        "bars": Panel(y=(NATURAL, LINF)),
        "scatter": Panel(y=(LINF,), x=NATURAL),
        "classes": Panel(y=(LINF,), group="T"),
    }
    for kind, panel in panels.items():
        drawn = draw_study(table, kind=kind, panels=[panel])
        assert drawn[".png"][:4] == b"\x89PNG"
        assert b"</svg>" in drawn[".svg"]
    words = ResultRow("x", "", {"c": "many"}, {"natural": {0: 1.0}})
    named = StudyTable("s", "d", "", "", (0,), (NATURAL,), (words,))
    assert draw_study(named, kind="lines", panels=[Panel(y=(NATURAL,), x="c")])[".svg"]
