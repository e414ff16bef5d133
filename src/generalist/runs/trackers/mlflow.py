"""MLflow: a run in a database of the run folder, or in the store that $MLFLOW_TRACKING_URI names."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from generalist.core.extras import import_extra
from generalist.runs.folder import Run
from generalist.runs.trackers.ledger import Ledger

EXPERIMENT = "generalist"
MOST_PARAMS = 100  # that MLflow takes at once
LONGEST_PARAM = 500
_FORBIDDEN = re.compile(r"[^\w.\- :/]")  # in MLflow's names


class MLflow:
    """Tells an MLflow run through its client, which touches no global state of MLflow."""

    def __init__(self, client: Any, run_id: str, metric: Callable[..., Any]) -> None:
        self._client, self._run_id, self._metric = client, run_id, metric

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(_FORBIDDEN.sub("-", name), float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self, *, completed: bool) -> None:
        self._client.set_terminated(self._run_id, status="FINISHED" if completed else "KILLED")


def import_mlflow() -> Any:
    """MLflow without its usage reports, which are on unless switched off before it is imported."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for part in () if os.environ.get("MLFLOW_TRACKING_URI") else ("sqlalchemy", "alembic"):  # for the local database
        import_extra(part, extra="mlflow", needed_by="track: mlflow")
    return import_extra("mlflow", extra="mlflow", needed_by="track: mlflow")


def open_mlflow(run: Run, ledger: Ledger, *, say: Callable[[str], None]) -> MLflow:
    """The MLflow run that follows this one, the same after a resume."""
    mlflow = import_mlflow()
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        database = run.mlflow / "mlflow.db"
        database.parent.mkdir(exist_ok=True)
        uri = f"sqlite:///{database.absolute()}"
        if not database.exists():
            say(f"mlflow makes its database {database}: some seconds")
    client = mlflow.MlflowClient(tracking_uri=uri)
    if ledger.name is None:
        ledger.begin(_begin(client, run, mlflow.entities.Param))
    else:
        client.update_run(ledger.name, status="RUNNING")
    return MLflow(client, ledger.name or "", mlflow.entities.Metric)


def _begin(client: Any, run: Run, param: Callable[[str, str], Any]) -> str:
    """A new run with the recipe's fields as its parameters."""
    experiment = client.get_experiment_by_name(EXPERIMENT)
    identity = client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
    tags = {"mlflow.runName": run.folder.resolve().name, "recipe": run.recipe.name, "recipe_sha256": run.identity}
    run_id = str(client.create_run(identity, tags=tags).info.run_id)
    params = [param(name, value) for name, value in _fields(run.recipe.plain(), "")]
    for first in range(0, len(params), MOST_PARAMS):
        client.log_batch(run_id, params=params[first : first + MOST_PARAMS])
    return run_id


def _fields(plain: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """A recipe's fields by their path, as text."""
    for key, value in plain.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)[:LONGEST_PARAM]
