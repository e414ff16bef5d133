"""MLflow and W&B follow a run where they are asked to: everything once, nothing beyond this machine."""

import importlib
import json
import os
import shutil
import socket
import string
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import generalist
from generalist.core.errors import RunError, UserError
from generalist.recipes.catalogue import load_recipe
from generalist.recipes.schema import Recipe
from generalist.runs import trackers
from generalist.runs.folder import Run
from generalist.runs.trackers.ledger import Ledger, ToldOnce
from run_cases import stopped_after

SMALL = {
    "training.epochs": 3, "training.batch_size": 40, "data.limit": 120, "model.width": 2,
    "validation.images": 10, "validation.steps": 1, "validation.every_epochs": 1,
}  # fmt: skip


def recipe(*names: str) -> Recipe:
    return load_recipe("digits-generalist-t", {**SMALL, "mixing.start": 0, "track": list(names)})


@pytest.fixture
def contacted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The addresses beyond this machine that this process tries to reach."""
    found: list[Any] = []
    connect = socket.socket.connect

    def watched(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
            found.append(address)
            raise OSError("no network in tests")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_DISABLE_TELEMETRY", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return found


NATURAL = "validation/models/global/natural"


def journal_points(run: Run) -> list[tuple[int, float]]:
    """What the run itself kept under that name."""
    return [(row["step"], row["models"]["global"]["natural"]) for row in run.metrics if row["kind"] == "validation"]


def test_mlflow_has_the_run_once_however_often_it_was_stopped(tmp_path: Path, contacted: list[Any]) -> None:
    mlflow = pytest.importorskip("mlflow")
    out = tmp_path / "run"
    stopped_after(recipe("mlflow"), out, 5)
    database = out / "mlflow" / "mlflow.db"
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{database}")
    (found,) = client.search_runs([client.get_experiment_by_name("generalist").experiment_id])
    assert found.info.status == "KILLED"
    shutil.rmtree(out / "checkpoints")  # it begins again, with nothing new to tell at first
    run = generalist.train(recipe("mlflow"), out=out, resume=True)
    (found,) = client.search_runs([found.info.experiment_id])
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    history = client.get_metric_history(found.info.run_id, NATURAL)
    assert [(point.step, point.value) for point in history] == journal_points(run)
    assert len(history) == 3
    assert "epoch/drift/distance/linf-natural" in found.data.metrics
    assert found.data.params["training.batch_size"] == "40"
    assert found.data.params["learners.linf.objective.threat"] == "linf:3/20"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert contacted == []


class Server:
    """What is used of MLflow's client, kept in memory."""

    def __init__(self) -> None:
        self.metrics: list[SimpleNamespace] = []
        self.params: dict[str, str] = {}
        self.statuses: list[str] = []
        self.experiments: list[str] = []

    def __call__(self, *, tracking_uri: str) -> "Server":
        assert tracking_uri == "http://server"
        return self

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(experiment_id="7") if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return "7"

    def create_run(self, experiment: str, *, tags: dict[str, str]) -> SimpleNamespace:
        assert (experiment, tags["mlflow.runName"]) == ("7", "run")
        self.statuses.append("RUNNING")
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def log_batch(self, run: str, *, metrics: Sequence[Any] = (), params: Sequence[Any] = ()) -> None:
        assert run == "r1"
        assert len(params) <= 100
        self.metrics += metrics
        self.params |= {param.key: param.value for param in params}

    def update_run(self, run: str, *, status: str) -> None:
        self.statuses.append(status)

    set_terminated = update_run


def test_a_server_of_mlflow_is_used_where_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    metric = lambda key, value, at, step: SimpleNamespace(key=key, value=value, step=step)  # noqa: E731
    entities = SimpleNamespace(Metric=metric, Param=lambda key, value: SimpleNamespace(key=key, value=value))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=server, entities=entities))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    stopped_after(recipe("mlflow"), tmp_path / "run", 5)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    run = generalist.train(recipe("mlflow"), out=tmp_path / "run", resume=True)
    assert server.statuses == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]
    points = [(metric.step, metric.value) for metric in server.metrics if metric.key == NATURAL]
    assert points == journal_points(run)
    assert len({(metric.key, metric.step) for metric in server.metrics}) == len(server.metrics)
    assert all(set(metric.key) <= set(string.ascii_letters + string.digits + "_-. :/") for metric in server.metrics)
    assert server.params["training.epochs"] == "3"
    assert not (run.mlflow / "mlflow.db").exists()


def logged_messages(content: bytes, *, header: int = 7, block: int = 32768) -> Iterator[bytes]:
    """The messages of a file in LevelDB's log format, which W&B's offline files have after a header of their own."""
    place, message = header, b""
    while place + 7 <= len(content):
        if block - place % block < 7:  # too little is left of this block
            place += block - place % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        message += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield message
            message = b""


def offline_records(run: Run) -> list[dict[str, Any]]:
    """What the offline files of W&B hold, in their order."""
    messages = importlib.import_module("wandb.proto.wandb_internal_pb2")
    rows = []
    for path in sorted(run.wandb.glob("offline-run-*/run-*.wandb")):
        for packed in logged_messages(path.read_bytes()):
            record = messages.Record()
            record.ParseFromString(packed)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def test_wandb_has_the_run_once_in_files_of_one_id(tmp_path: Path, contacted: list[Any]) -> None:
    pytest.importorskip("wandb")
    out = tmp_path / "run"
    stopped_after(recipe("wandb"), out, 5)
    shutil.rmtree(out / "checkpoints")
    run = generalist.train(recipe("wandb"), out=out, resume=True)
    files = sorted(path.name for path in run.wandb.glob("offline-run-*"))
    assert len(files) == 2
    assert len({name.rpartition("-")[2] for name in files}) == 1
    points = [(row["step"], row[NATURAL]) for row in offline_records(run) if NATURAL in row]
    assert points == journal_points(run)
    assert len(points) == 3
    assert contacted == []


class Tool:
    def __init__(self, *, fails: bool = False) -> None:
        self.heard: list[tuple[int, dict[str, float]]] = []
        self.closed: list[bool] = []
        self.fails = fails

    def log(self, values: Any, *, step: int) -> None:
        if self.fails:
            raise ConnectionError("the server is gone")
        self.heard.append((step, dict(values)))

    def close(self, *, completed: bool) -> None:
        if self.fails:
            raise ConnectionError("the server is gone")
        self.closed.append(completed)


def test_a_ledger_lets_everything_through_once(tmp_path: Path) -> None:
    first, again = Tool(), Tool()
    told = ToldOnce("tool", first, ledger := Ledger.beside(tmp_path))
    ledger.begin("its-name")
    told.log({"epoch/loss": 1.0}, step=4)
    told.log({"validation/natural": 50.0}, step=4)
    told.log({"epoch/loss": 0.5}, step=8)  # killed before the validation of step 8
    resumed = Ledger.beside(tmp_path)
    assert resumed.name == "its-name"
    told = ToldOnce("tool", again, resumed)
    for step in (4, 8, 12):
        told.log({"epoch/loss": 1.0}, step=step)
        told.log({"validation/natural": 60.0}, step=step)
    told.close(completed=True)
    assert [(step, list(values)) for step, values in again.heard] == [
        (8, ["validation/natural"]), (12, ["epoch/loss"]), (12, ["validation/natural"]),
    ]  # fmt: skip
    assert again.closed == [True]


@pytest.mark.parametrize("text", ["{", '{"name": "x", "told": {}}', "[]"])
def test_a_damaged_ledger_is_begun_anew_with_a_warning(tmp_path: Path, text: str) -> None:
    (tmp_path / "told.json").write_text(text)
    with pytest.warns(UserWarning, match=r"told.json is damaged"):
        assert Ledger.beside(tmp_path).name is None


def test_a_tool_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    told = ToldOnce("tool", Tool(fails=True), Ledger.beside(tmp_path))
    with pytest.warns(UserWarning, match=r"tool failed \(the server is gone\); the run goes on without it"):
        told.log({"epoch/loss": 1.0}, step=1)
    told.log({"epoch/loss": 1.0}, step=2)
    told.close(completed=True)
    with pytest.warns(UserWarning, match="tool failed"):
        ToldOnce("tool", Tool(fails=True), Ledger.beside(tmp_path)).close(completed=True)


def test_a_full_disk_is_not_the_tools_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = ToldOnce("tool", Tool(), Ledger(tmp_path / "file" / "told.json"))
    with pytest.raises(RunError, match="could not write"):
        told.log({"epoch/loss": 1.0}, step=1)


@pytest.mark.parametrize("name", ["mlflow", "wandb", "tensorboard"])
def test_what_is_not_installed_is_missed_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (name, "torch.utils.tensorboard") if name == "tensorboard" else (name,):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"track: {name} needs .*pip install 'robust-generalist\[{name}\]'"):
        generalist.train(recipe(name), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tensorboard_that_nobody_asked_for_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run = generalist.train("digits-nt", out=tmp_path / "run", overrides=SMALL)
    assert run.finished
    assert not run.tensorboard.exists()


def test_a_tool_that_cannot_be_opened_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise ConnectionError("no such server\nand more")

    monkeypatch.setattr(trackers, "open_wandb", refuse)
    monkeypatch.setattr(trackers, "check_trackers", lambda names: None)
    with pytest.raises(RunError, match=r"^wandb cannot follow this run: no such server; mend that .* and resume$"):
        generalist.train(recipe("wandb"), out=tmp_path / "run")


def test_trackers_are_named_in_the_recipe_and_decide_no_result(tmp_path: Path) -> None:
    assert load_recipe("digits-nt", {"track": "mlflow"}).track == ("mlflow",)
    assert load_recipe("digits-nt", {"track": ["wandb", "wandb"]}).track == ("wandb",)
    for wrong, told in (("mlfow", "did you mean 'mlflow'"), (["x"], "known: mlflow, tensorboard, wandb"), (3, "got 3")):
        with pytest.raises(UserError, match=told):
            load_recipe("digits-nt", {"track": wrong})
    run = generalist.train("digits-nt", out=tmp_path / "run", overrides=SMALL)
    assert run.recipe.track == ()
    assert not run.mlflow.exists()
    assert not run.wandb.exists()
    resumed = generalist.train(load_recipe("digits-nt", {**SMALL, "track": ["wandb"]}), out=run.folder, resume=True)
    assert resumed.identity == run.identity
