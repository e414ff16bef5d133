"""A model card: Markdown with the front matter that hubs read, filled with what was measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from generalist.core.names import MEAN, SUITE_NAMES, UNION
from generalist.report.console import duration

TAGS = ("adversarial-robustness", "generalist")
MOST_CLASSES = 20
OWN_IMAGES = ("folder", "npz")
"""Names of data that name a format, not a dataset."""


@dataclass(frozen=True)
class CardFacts:
    """What a card is made of, in plain types.

    `load` is the code that loads the exported file. `records` are the evaluations of this model, `summary` is the run's
    (empty for a model without one), `selection` what the model's own card says of how it was chosen, `dial` what it is
    mixed of, `recipe` the plain recipe.
    """

    title: str
    model: str
    spec: Mapping[str, Any]
    load: str
    data: str = ""
    classes: Sequence[str] = ()
    weights_sha256: str = ""
    parameters: int = 0
    selection: Mapping[str, Any] = field(default_factory=dict)
    records: Sequence[Mapping[str, Any]] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    dial: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def model_card(facts: CardFacts) -> str:
    """The whole card."""
    front = yaml.safe_dump(front_matter(facts), sort_keys=False, allow_unicode=True, width=10**6)
    sections = {
        "": _intro(facts),
        "Use": ["```python", facts.load, "```", "", _images(facts)],
        "Measured": list(_measured(facts)),
        "Red flags": list(_flags(facts)),
        "Limits": [f"- {line}" for line in _limits(facts)],
        "How it was made": [f"- {line}" for line in _made(facts)],
        "Cost": [f"- {line}" for line in _cost(facts)] or ["Not recorded."],
    }
    lines = ["---", front.strip(), "---", "", f"# {facts.title}"]
    for heading, text in sections.items():
        lines += ["", *([f"## {heading}", ""] if heading else []), *text]
    return "\n".join(lines) + "\n"


def front_matter(facts: CardFacts) -> dict[str, Any]:
    """What hubs list and search models by: the task, tags, data, and the measured figures."""
    matter: dict[str, Any] = {"pipeline_tag": "image-classification", "library_name": "pytorch", "tags": list(TAGS)}
    if facts.data and facts.data not in OWN_IMAGES:
        matter["datasets"] = [facts.data]
    if not facts.records:
        return matter
    matter["metrics"] = ["accuracy"]
    metrics = [{"type": "accuracy", "name": "natural accuracy", "value": facts.records[0]["natural"]}]
    for record in _strongest_first(facts.records):
        for threat, columns in record["accuracy"].items():
            metrics += [
                {"type": "accuracy", "name": f"robust accuracy, {column}, {threat}", "value": value}
                for column, value in columns.items()
            ]
    name = facts.data or "unnamed"
    result = {
        "task": {"type": "image-classification"},
        "dataset": {"type": name, "name": name, "split": str(facts.records[0].get("split", "test"))},
        "metrics": metrics,
    }
    return matter | {"model-index": [{"name": facts.title, "results": [result]}]}


def _intro(facts: CardFacts) -> list[str]:
    spec, recipe = facts.spec, facts.recipe
    width = f" of width {spec['width']}" if spec.get("width") else ""
    what = f"{spec['name']}{width}, {facts.parameters:,} parameters, {spec['classes']} classes"
    trained = f" trained on {facts.data}" if facts.data else ""
    method = f" by the recipe {recipe['name']}" if recipe else ""
    return [f"An image classifier ({what}){trained}{method}."]


def _images(facts: CardFacts) -> str:
    spec = facts.spec
    shape = f"[N, {spec['channels']}, {spec['size']}, {spec['size']}]"
    inside = "its normalisation is inside the model" if spec.get("mean") is not None else "it needs no normalisation"
    named = list(facts.classes)
    listed = f" The classes, in their order: {', '.join(named)}." if 0 < len(named) <= MOST_CLASSES else ""
    return f"It takes images {shape} with values in [0, 1] and returns logits [N, {spec['classes']}]; {inside}.{listed}"


def _measured(facts: CardFacts) -> Iterator[str]:
    if not facts.records:
        yield "Nothing: this model has not been evaluated, or the record is not with it."
        return
    yield "Accuracy in %, in brackets the 95 % interval (Wilson) over the choice of images."
    for record in _strongest_first(facts.records):
        columns = list(dict.fromkeys(column for row in record["accuracy"].values() for column in row))
        bounds = record.get("interval_95", {})
        on = f"{record['images']} images of {record.get('data', '?')}, {record.get('split', 'test')} split"
        yield ""
        day = f", {record['date'][:10]}" if record.get("date") else ""
        yield f"Suite `{record['suite']}`: {on}, seed {record['seed']}{day}."
        yield ""
        yield f"| | {' | '.join(columns)} |"
        yield "|---" * (len(columns) + 1) + "|"
        natural = _figure(record["natural"], bounds.get("natural"))
        yield f"| no attack | {' | '.join([natural, *[''] * (len(columns) - 1)])} |"
        for row, values in record["accuracy"].items():
            within = bounds.get("accuracy", {}).get(row, {})
            cells = [_figure(values[column], within.get(column)) if column in values else "" for column in columns]
            yield f"| {row} | {' | '.join(cells)} |"


def _flags(facts: CardFacts) -> Iterator[str]:
    found = dict.fromkeys(flag["message"] for record in facts.records for flag in record.get("red_flags", []))
    yield from (f"- {message}" for message in found)
    if not found:
        yield "None was raised by these evaluations." if facts.records else "Not looked for: nothing was evaluated."


def _limits(facts: CardFacts) -> Iterator[str]:
    if facts.records:
        radii = list(dict.fromkeys(row for r in facts.records for row in r["accuracy"] if row not in (MEAN, UNION)))
        yield (
            "Robust accuracy is what these attacks did not break. It is an upper bound, not a certificate, and it says"
            f" nothing of other norms and larger radii than {', '.join(radii)} (norm:ε, pixels in [0, 1])."
        )
        if "AA" not in {column for r in facts.records for row in r["accuracy"].values() for column in row}:
            yield "AutoAttack was not run. The attacks above are weaker, so the figures are likely too high."
        if MEAN in {row for record in facts.records for row in record["accuracy"]}:
            yield f"`{MEAN}` is the average of the norms; `{UNION}` counts images that withstand all of them."
    if _chosen_by(facts) == "test":
        yield "The checkpoint was chosen on the test split: the figures above are too high by what that choice gained."
    yield (
        f"It was trained once, with one seed, on {facts.data or 'data that its file does not name'} alone. Images of"
        " another origin and natural corruptions are not covered by the figures above."
    )


def _made(facts: CardFacts) -> Iterator[str]:
    recipe, selection = facts.recipe, facts.selection
    if recipe:
        yield f"recipe `{recipe['name']}`, seed {recipe['seed']}, {recipe['training']['epochs']} epochs"
        yield f"learners: {', '.join(recipe['learners'])}; this is the model `{facts.model}`"
    if facts.dial:
        yield f"a mixture of finished models, chosen afterwards: {facts.dial['mixture']}"
    chosen = _chosen_by(facts)
    at = f", epoch {selection['epoch']}" if selection.get("epoch") is not None else ""
    if chosen == "last":
        yield f"no checkpoint was selected: it is the last one{at}"
    elif chosen:
        yield f"the checkpoint was chosen on the {chosen} split{at}"
    else:
        yield "its file does not say which split chose the checkpoint"
    if facts.weights_sha256:
        yield f"SHA-256 of the weights: `{facts.weights_sha256}`"
    if facts.versions:
        yield "exported by " + ", ".join(f"{name} {version}" for name, version in facts.versions.items())


def _cost(facts: CardFacts) -> Iterator[str]:
    summary = facts.summary
    if "seconds" in summary:
        cpu = f", {duration(summary['cpu_seconds'])} of CPU time" if "cpu_seconds" in summary else ""
        yield f"training: {duration(summary['seconds'])}{cpu}"
    if "cost_in_at" in summary:
        yield f"passes: {summary['cost_in_at']:.2f} × those of a PGD-10 adversarial training of the same length"
    if "peak_memory_mib" in summary:
        yield f"peak memory: {summary['peak_memory_mib']:,} MiB"
    for record in _strongest_first(facts.records):
        if record.get("wall_seconds") is not None:
            yield f"attacks of suite `{record['suite']}`: {duration(record['wall_seconds'])}"


def _chosen_by(facts: CardFacts) -> str:
    return str(facts.selection.get("selected_by") or facts.summary.get("selected_by") or "")


def _strongest_first(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    known = {name: place for place, name in enumerate(SUITE_NAMES)}
    return sorted(records, key=lambda record: known.get(record["suite"], -1), reverse=True)


def _figure(value: float, bounds: Sequence[float] | None) -> str:
    return f"{value:.2f}" if bounds is None else f"{value:.2f} [{bounds[0]:.1f}–{bounds[1]:.1f}]"
