"""Two ranks share the images of a curve and find the same distances."""

import json

from test_ranks import Forked

import generalist
from curve_cases import small_budgets

SMALL = {
    "training.epochs": 2, "data.limit": 120, "model.width": 4, "validation.images": 10, "validation.steps": 2,
    "validation.threats": ["linf:1/20"],
}  # fmt: skip


def test_two_ranks_find_the_distances_of_one(tmp_path):
    run = generalist.train("digits-at", out=tmp_path / "at", overrides=SMALL)
    records = []
    with small_budgets():
        for count in (1, 2):
            out = tmp_path / f"{count}.json"
            arguments = ["eval", str(run.folder), "--suite", "curve", "--n", "12", "--json", str(out), "--quiet"]
            job = Forked(count, arguments, tmp_path / f"{count}.log")
            job.wait()
            (record,) = json.loads(out.read_text()).values()
            records.append(record)
            kept = sorted((run.folder / "evaluations").rglob("curve-*.jsonl"))
            assert len(kept) == count
            for file in kept:
                assert sum(len(json.loads(line)["found"]) for line in file.open()) == 12 // count
                file.unlink()
    one, two = records
    assert one["threats"] == two["threats"]
    assert one["natural"] == two["natural"]
    assert two["images"] == 12
