"""The model card: front matter that hubs read, the measured figures, and what they do not tell."""

from dataclasses import replace
from typing import Any

import yaml

from compare_cases import record
from generalist.report.card import CardFacts, front_matter, model_card

SPEC = {"name": "resnet18", "classes": 2, "channels": 3, "size": 32, "width": 16, "mean": [0.5] * 3, "std": [0.2] * 3}
RECIPE: dict[str, Any] = {"name": "cifar10-at", "seed": 3, "training": {"epochs": 7}, "learners": {"linf": {}}}
FACTS = CardFacts(
    title="mine", model="global", spec=SPEC, load='model = torch.export.load("model.pt2").module()', data="cifar10",
    classes=("cat", "dog"), weights_sha256="f" * 64, parameters=1234, recipe=RECIPE,
    selection={"selected_by": "validation", "epoch": 5},
    summary={"seconds": 75.0, "cpu_seconds": 70.0, "peak_memory_mib": 2048, "cost_in_at": 1.364},
    records=[record(80.0, 30.0, 40.0, suite="pgd20"), record(80.0, 20.0, 35.0)], versions={"torch": "2"},
)  # fmt: skip


def parts(facts: CardFacts) -> tuple[dict[str, Any], dict[str, str]]:
    """The front matter, and the text of each section by its heading."""
    _, front, body = model_card(facts).split("---\n", 2)
    sections = {head: text for head, _, text in (part.partition("\n") for part in body.split("\n## "))}
    return yaml.safe_load(front), sections


def test_hubs_find_the_task_the_data_and_the_figures() -> None:
    front, _ = parts(FACTS)
    assert (front["pipeline_tag"], front["datasets"]) == ("image-classification", ["cifar10"])
    (index,) = front["model-index"]
    (result,) = index["results"]
    assert index["name"] == "mine"
    assert result["dataset"] == {"type": "cifar10", "name": "cifar10", "split": "test"}
    figures = {metric["name"]: metric["value"] for metric in result["metrics"]}
    assert figures["natural accuracy"] == 80.0
    assert figures["robust accuracy, AA, linf:8/255"] == 20.0
    assert figures["robust accuracy, PGD20, true union"] == 30.0


def test_the_measured_table_the_strongest_suite_first() -> None:
    _, sections = parts(FACTS)
    lines = sections["Measured"].splitlines()
    assert next(line for line in lines if line.startswith("Suite")).startswith("Suite `autoattack`: 100 images of")
    assert "| no attack | 80.00 |" in lines
    assert "| l2:128/255 | 35.00 |" in lines
    assert "| mean over norms | 27.50 |" in lines


def test_intervals_dates_and_red_flags_are_shown() -> None:
    one = record(80.0, 30.0, suite="pgd20", threats=("linf:8/255",)) | {
        "interval_95": {"natural": [71.1, 86.7], "accuracy": {"linf:8/255": {"PGD20": [21.9, 39.6]}}},
        "date": "2026-02-03T04:05:06", "wall_seconds": 61.0, "data": "cifar10", "split": "test",
        "red_flags": [{"name": "zero", "message": "gradients are zero"}],
    }  # fmt: skip
    _, sections = parts(replace(FACTS, records=[one]))
    assert "100 images of cifar10, test split, seed 0, 2026-02-03." in sections["Measured"]
    assert "| linf:8/255 | 30.00 [21.9–39.6] |" in sections["Measured"]
    assert sections["Red flags"].strip() == "- gradients are zero"
    assert "attacks of suite `pgd20`: 1m01s" in sections["Cost"]
    assert "AutoAttack was not run" in sections["Limits"]


def test_limits_say_what_chose_the_checkpoint() -> None:
    _, sections = parts(FACTS)
    assert "chosen on the validation split, epoch 5" in sections["How it was made"]
    assert "test split" not in sections["Limits"]
    assert "AutoAttack was not run" not in sections["Limits"]
    assert "larger radii than linf:8/255, l2:128/255" in sections["Limits"]
    assert "None was raised" in sections["Red flags"]
    _, sections = parts(replace(FACTS, selection={"selected_by": "test", "epoch": 5}))
    assert "chosen on the test split: the figures above are too high" in sections["Limits"]
    _, sections = parts(replace(FACTS, selection={}, summary={"selected_by": "last"}))
    assert "no checkpoint was selected: it is the last one" in sections["How it was made"]


def test_cost_and_how_to_use_it() -> None:
    _, sections = parts(replace(FACTS, dial={"mixture": "0.5 linf + 0.5 natural"}))
    assert "training: 1m15s, 1m10s of CPU time" in sections["Cost"]
    assert "1.36 × those of a PGD-10" in sections["Cost"]
    assert "2,048 MiB" in sections["Cost"]
    assert 'torch.export.load("model.pt2").module()' in sections["Use"]
    assert "[N, 3, 32, 32] with values in [0, 1] and returns logits [N, 2]" in sections["Use"]
    assert "in their order: cat, dog." in sections["Use"]
    assert "a mixture of finished models, chosen afterwards: 0.5 linf + 0.5 natural" in sections["How it was made"]


def test_a_model_of_which_nothing_is_known_says_so() -> None:
    bare = CardFacts(title="mine", model="mine", spec={**SPEC, "mean": None, "width": None}, load="x")
    front, sections = parts(bare)
    assert "model-index" not in front
    assert "datasets" not in front
    assert sections["Measured"].strip().startswith("Nothing: this model has not been evaluated")
    assert "Not looked for" in sections["Red flags"]
    assert "does not say which split" in sections["How it was made"]
    assert sections["Cost"].strip() == "Not recorded."
    assert "it needs no normalisation" in sections["Use"]
    assert "datasets" not in front_matter(replace(bare, data="folder"))
