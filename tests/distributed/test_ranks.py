"""Several processes: the same models as from one, whatever the number, and whoever dies.

`make ranks` starts all of them by torchrun. `make test` does so where a process dies, and forks the others: each is a
process with an environment as torchrun gives it, but need not import torch once more.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import generalist
from generalist.training.scaling import Job, Machines, epoch
from long_tests import ALL, LONG
from run_cases import different_models, forked_command, stopped_after, wait_for

HERE = Path(__file__).parent
SOURCE = Path(generalist.__file__).parents[1]  # so that the processes run the code that is tested
TINY = ["data.limit=132", "training.batch_size=33", "validation.images=20", "validation.steps=2", "training.epochs=6",
        "mixing.every_epochs=1", "validation.every_epochs=3", "mixing.decay=0.9", "select=last"]  # fmt: skip
PLAIN = ["model.name=plain_network:plain"]  # without BatchNorm a split batch gives the same gradient
SMALL = ["model.width=4"]
IDLE_TOO = ["mixing.train_idle=true"]  # every learner live all the time: one phase, a rank each
ROUNDING = {"rtol": 2e-4, "atol": 2e-5}


def recipe_of(name, *more):
    attacked = ("linf", "l2")
    return name, [*TINY, *(f"learners.{learner}.objective.steps=2" for learner in attacked), *more]


D, T = "digits-generalist-d-norms", "digits-generalist-t"


def inner(name, sets, out, *more):
    options = [part for override in sets for part in ("--set", override)]
    return ["train", name, *options, "--out", str(out), "--quiet", *more]


def launched(count, module, arguments, *torchrun):
    if count == 1:
        return [sys.executable, "-m", module, *arguments]
    launch = ["--nproc-per-node", str(count), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    return [sys.executable, "-m", "torch.distributed.run", *launch, *torchrun, "-m", module, *arguments]


def command(count, name, sets, out, *more, torchrun=(), module="generalist"):
    return launched(count, module, inner(name, sets, out, *more), *torchrun)


def environment(**more):
    found = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE}{os.pathsep}{SOURCE}", **more}
    return {key: value for key, value in found.items() if not key.startswith(("COV", "PYTEST_"))}


def rank_environment(rank, count, port):
    """What torchrun tells a process of one machine."""
    return {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


class Forked:
    """The command line in so many copies of this process, which find each other as those of torchrun do."""

    def __init__(self, count, arguments, log):
        self.log, self.store = log, dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        ranks = [rank_environment(rank, count, self.store.port) for rank in range(count)]
        self.alive = {forked_command(arguments, log, **(rank if count > 1 else {})) for rank in ranks}

    def poll(self):
        """None while all of them run."""
        for child in self.alive:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                self.alive.remove(child)
                return os.waitstatus_to_exitcode(status)
        return None

    def wait(self):
        """Until all have ended well; the first that does not ends the others."""
        try:
            while self.alive:
                code = self.poll()
                assert not code, self.log.read_text()[-3000:]
                time.sleep(0.01)
        finally:
            self.kill()
            self.store = None  # a failed test's traceback would keep its server alive, and the next fork would hang

    def kill(self):
        for child in self.alive:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        self.alive = set()

    def communicate(self):
        """As a process does: what was written to standard output and error."""
        return "", self.log.read_text()


def run(count, name, sets, out, *more):
    if ALL:
        done = subprocess.run(
            command(count, name, sets, out, *more),
            capture_output=True, text=True, timeout=240, env=environment(), check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
    else:
        Forked(count, inner(name, sets, out, *more), out.with_suffix(".log")).wait()
    return out


def models(run):
    return {path.stem: load_file(path) for path in sorted((Path(run) / "models").glob("*.safetensors"))}


def same(first, second):
    assert models(first).keys() == models(second).keys()
    return not different_models(first, second, models(first))


def close(first, second):
    a, b = models(first), models(second)
    assert a.keys() == b.keys()
    for name, tensors in a.items():
        for key, tensor in tensors.items():
            torch.testing.assert_close(tensor, b[name][key], **ROUNDING, msg=lambda m, n=name, k=key: f"{n} {k}: {m}")


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Runs of one process, each made once."""
    made = {}

    def get(name, *more):
        if (name, more) not in made:
            name, sets = recipe_of(name, *more)
            made[name, more] = run(1, name, sets, tmp_path_factory.mktemp("serial") / "run")
        return made[name, more]

    return get


@pytest.mark.parametrize(("name", "count"), [(D, 2), pytest.param(T, 3, marks=LONG)])
def test_a_rank_for_each_learner_gives_the_same_bits(name, count, serial, tmp_path):
    """With BatchNorm, and every learner live from the start."""
    more = (*SMALL, *IDLE_TOO)
    assert same(serial(name, *more), run(count, *recipe_of(name, *more), tmp_path / "run"))


ALL_COUNTS = [(D, 2), (D, 3), (D, 4), (D, 6), (T, 3), (T, 4), (T, 6)]


@pytest.mark.parametrize(("name", "count"), [(T, 2), *(pytest.param(*pair, marks=LONG) for pair in ALL_COUNTS)])
def test_split_batches_and_changing_phases_agree_to_rounding(name, count, serial, tmp_path):
    """Batches of 33 are uneven; linf is alone at first and shares with the others later. Without BatchNorm."""
    parallel = run(count, *recipe_of(name, *PLAIN), tmp_path / "run")
    close(serial(name, *PLAIN), parallel)
    rows = [json.loads(line) for line in (parallel / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train"] for row in rows if row["kind"] == "epoch"]
    wanted = [
        json.loads(line)["train"]
        for line in (serial(name, *PLAIN) / "metrics.jsonl").read_text().splitlines()
        if '"epoch"' in line and json.loads(line)["kind"] == "epoch"
    ]
    assert [list(row) for row in losses] == [list(row) for row in wanted]
    assert losses[-1]["linf"]["loss"] == pytest.approx(wanted[-1]["linf"]["loss"], rel=1e-3)


@pytest.mark.parametrize("count", [3, pytest.param(4, marks=LONG)])
def test_shared_batchnorm_sees_the_whole_batch(count, serial, tmp_path):
    """By default: split batches of a network with BatchNorm, which are uneven, and still the model of one process."""
    more = (*SMALL, *IDLE_TOO, "training.epochs=2", "validation.every_epochs=1")
    close(serial(D, *more), run(count, *recipe_of(D, *more), tmp_path / "run"))


AGAIN = ["training.epochs=8", "mixing.start=0", "learners.linf.gamma=rest",
         "learners.natural.gamma={at: [0, 0.25, 0.26, 0.74, 0.75, 1], values: [0.5, 0.5, 0, 0, 0.5, 0.5]}"]  # fmt: skip
INSIDE = ["training.epochs=4", "mixing.start=0", "mixing.redistribute=every_step", "learners.linf.gamma=rest",
          "learners.natural.gamma={at: [0, 0.6, 0.625, 0.65, 0.8, 1], values: [0, 0, 0.8, 0, 0, 0.5]}"]  # fmt: skip


@LONG
@pytest.mark.parametrize("plan", [AGAIN, INSIDE], ids=["live again", "live inside an epoch"])
def test_a_learner_that_was_idle_in_between_has_its_share(plan, tmp_path):
    """Its share of θ_g went on fading while it was idle, on another rank than the one that trains it again."""
    sets = [*TINY, "learners.linf.objective.steps=2", *PLAIN, *plan]
    name = "digits-generalist-d-natural"
    close(run(1, name, sets, tmp_path / "serial"), run(2, name, sets, tmp_path / "parallel"))


WINDOWS = [
    "learners.linf.gamma=rest", "learners.natural.starts=1/3", "learners.natural.weight_averaging=true",
    "learners.natural.gamma={at: [1/3, 1], values: [0, 0.4]}", "learners.l2.ends=2/3",
    "learners.l2.gamma={depth: [0.1, 0.3]}",
]  # fmt: skip
PARTIAL = [*SMALL, *IDLE_TOO, *WINDOWS, "learners.natural.trains=[fc]", "learners.l2.trains=[conv1, bn1]"]
PARTIAL_PLAIN = [*PLAIN, *IDLE_TOO, *WINDOWS, "learners.natural.trains=['3']", "learners.l2.trains=['1']"]


def bytes_sent(run):
    """By purpose, of the whole run."""
    rows = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return [row["bytes_sent"] for row in rows if row["kind"] == "epoch"][-1]


def test_partial_learners_that_start_and_end_give_the_same_bits_on_two_ranks(serial, tmp_path):
    """linf stays with the first rank; the other has l2, then both, then natural. What ended is shown by the first."""
    parallel = run(2, *recipe_of(T, *PARTIAL), tmp_path / "run")
    assert set(models(parallel)) == {"global", "linf", "natural", "l2"}
    assert same(serial(T, *PARTIAL), parallel)
    sent = bytes_sent(parallel)
    size = 4 * sum(tensor.numel() for tensor in models(parallel)["global"].values())
    checkpoints, handed = 5, 2  # before the journal's last line; when l2 has ended, it and natural change places
    assert 0 < sent["checkpoint"] < 0.2 * size * checkpoints
    assert 0 < sent["placement"] < 0.2 * size * handed
    assert "gradients" not in sent


def test_partial_learners_saved_by_one_process_go_on_with_two(serial, tmp_path):
    name, sets = recipe_of(T, *PARTIAL)
    stopped_after(generalist.load_recipe(name, sets), tmp_path / "run", 11)
    assert same(serial(T, *PARTIAL), run(2, name, sets, tmp_path / "run", "--resume"))


@LONG
@pytest.mark.parametrize("count", [2, 3, 4])
def test_partial_learners_of_split_batches_agree_to_rounding(count, serial, tmp_path):
    close(serial(T, *PARTIAL_PLAIN), run(count, *recipe_of(T, *PARTIAL_PLAIN), tmp_path / "plain"))
    close(serial(T, *PARTIAL), run(count, *recipe_of(T, *PARTIAL), tmp_path / "shared-batchnorm"))


@LONG
@pytest.mark.parametrize("count", [2, 3])
def test_the_late_recipe_on_several_ranks_agrees_to_rounding(count, tmp_path):
    """The ranks share first linf's batches, then those of a learner that trains the last modules."""
    sets = [*TINY, *SMALL, "learners.linf.objective.steps=2"]
    name = "digits-generalist-late-d"
    close(run(1, name, sets, tmp_path / "serial"), run(count, name, sets, tmp_path / "parallel"))


@LONG
def test_partial_learners_saved_with_two_go_on_with_any_number(serial, tmp_path):
    name, sets = recipe_of(T, *PARTIAL)
    process = subprocess.Popen(
        command(2, name, sets, tmp_path / "run"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True,
    )  # fmt: skip
    wait_for(tmp_path / "run" / "checkpoints" / "*00000012.json", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    for count in (1, 2, 3):
        copy = tmp_path / f"with-{count}"
        subprocess.run(["cp", "-r", str(tmp_path / "run"), str(copy)], check=True)
        resumed = run(count, name, sets, copy, "--resume")
        assert count == 3 or same(serial(T, *PARTIAL), resumed)
        close(serial(T, *PARTIAL), resumed)


def test_saved_with_three_resumed_with_any_number(serial, tmp_path):
    name, sets = recipe_of(T, *PLAIN)
    checkpoint = tmp_path / "run" / "checkpoints" / "*00000012.json"
    if ALL:
        process = subprocess.Popen(
            command(3, name, sets, tmp_path / "run"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True,
        )  # fmt: skip
        wait_for(checkpoint, process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    else:
        forks = Forked(3, inner(name, sets, tmp_path / "run"), tmp_path / "log")
        try:
            wait_for(checkpoint, forks)
        finally:
            forks.kill()
    for count in (1, 2, 6) if ALL else (2,):
        copy = tmp_path / f"with-{count}"
        subprocess.run(["cp", "-r", str(tmp_path / "run"), str(copy)], check=True)
        close(serial(T, *PLAIN), run(count, name, sets, copy, "--resume"))


def children(process):
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


OCCASIONS = {"step": 20, "checkpoint": 8, "redistribution": 2}  # there are as many at least before the run ends


DEATHS = [(what, seed) for what in OCCASIONS for seed in range(10)]


@pytest.mark.parametrize(
    ("what", "seed"),
    [pytest.param(*death, marks=() if death == ("checkpoint", 0) else LONG) for death in DEATHS],
)
def test_a_rank_that_is_killed_is_started_again_and_nothing_is_lost(what, seed, serial, tmp_path):
    chosen = random.Random(f"{what} {seed}")
    dies = f"{chosen.randrange(2)} {what} {chosen.randint(1, OCCASIONS[what])}"
    name, sets = recipe_of(D, *SMALL, *IDLE_TOO)
    done = subprocess.run(
        command(2, name, sets, tmp_path / "run", torchrun=["--max-restarts", "1"], module="dying_rank"),
        capture_output=True, text=True, timeout=240, env=environment(DIES=dies), check=False,
    )  # fmt: skip
    assert done.returncode == 0, (dies, done.stderr[-3000:])
    assert "killed here" in done.stderr, dies
    assert same(serial(D, *SMALL, *IDLE_TOO), tmp_path / "run"), dies


@LONG
def test_two_nodes_start_again_together(serial, tmp_path):
    """Two agents, as on two machines: one counts a failure of its own, the other may only see that it must restart."""
    name, sets = recipe_of(D, *SMALL, *IDLE_TOO)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2", "--rdzv-endpoint", f"localhost:{port}"]
    nodes = [
        subprocess.Popen(
            command(2, name, sets, tmp_path / "run", torchrun=options, module="dying_rank"),
            stderr=subprocess.PIPE, text=True, env=environment(DIES="1 step 9"),
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [node.communicate(timeout=240)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "killed here" in "".join(said)
    assert same(serial(D, *SMALL, *IDLE_TOO), tmp_path / "run")


@LONG
def test_a_rank_that_hangs_is_named(tmp_path):
    name, sets = recipe_of(D, *SMALL, *IDLE_TOO, "training.epochs=400")
    process = subprocess.Popen(
        command(2, name, sets, tmp_path / "run"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(GENERALIST_TIMEOUT="4"), start_new_session=True,
    )  # fmt: skip
    try:
        wait_for(tmp_path / "run" / "checkpoints" / "*.json", process)
        hung = max(children(process))
        os.kill(hung, signal.SIGSTOP)
        _, said = process.communicate(timeout=120)  # torchrun kills those that do not stop
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0
    assert "did not answer within 4 s" in said
    assert "rank" in said.lower()


@LONG
def test_bytes_are_a_hundredth_of_mixing_at_every_step(serial, tmp_path):
    """CIFAR-10's proportions: checkpoints each epoch of 390 steps, validation and redistribution every 5."""
    out = run(3, *recipe_of(T, *PLAIN, *IDLE_TOO), tmp_path / "run")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    sent = [row["bytes_sent"] for row in rows if row["kind"] == "epoch"][-1]
    size = 4 * sum(p.numel() for p in generalist.load(out).parameters())
    epochs, ranks = 6, 3
    checkpoints, redistributions, validations = epochs - 1, epochs - 1 - 3, 2
    each = {
        "checkpoint": sent["checkpoint"] / checkpoints,
        "mixing": sent["mixing"] / (redistributions + validations),
        "evaluation": sent["evaluation"] / validations,
    }
    ours = each["checkpoint"] + (each["mixing"] + each["evaluation"]) / 5
    every_step = 390 * 2 * (ranks - 1) * size
    assert every_step > 100 * ours, (each, size)
    job = Job(passes=dict.fromkeys("abc", 11.0), parameters=size // 4, flops=1, batch_size=33, steps=390)
    predicted = epoch(job, Machines(ranks=ranks, flops=1, bits=1)).sent
    assert 0.8 * predicted < ours < 1.02 * predicted  # a learner that was just reset has no momentum to send


def test_evaluation_is_shared_and_its_verdicts_are_the_same(serial, tmp_path):
    run_folder = serial(D, *SMALL, *IDLE_TOO)
    suite = tmp_path / "suite.yaml"
    suite.write_text("name: short\nattacks: [{attack: apgd-ce, steps: 8}, {attack: square, queries: 30}]\n")
    records = []
    for count in (1, 3):
        copy = tmp_path / f"by-{count}"
        subprocess.run(["cp", "-r", str(run_folder), str(copy)], check=True)
        arguments = ["eval", str(copy), "--suite", str(suite), "--images", "60", "--global", "--quiet"]
        arguments += ["--json", str(tmp_path / f"{count}.json"), "--save-adv", str(tmp_path / f"{count}.npz")]
        # APGD leaves one image at each of these radii. With more of them, the passes of Square would depend on how many
        # share a batch: the fewer they are, the more queries it makes ahead, some in vain.
        arguments += ["--threat", "linf:1/5", "--threat", "l2:3/4"]
        if ALL:
            done = subprocess.run(
                launched(count, "generalist", arguments), capture_output=True, text=True, timeout=240,
                env=environment(), check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-3000:]
        else:
            Forked(count, arguments, copy.with_suffix(".log")).wait()
        (record,) = json.loads((tmp_path / f"{count}.json").read_text()).values()
        records.append(record)
    for field in ("accuracy", "per_image", "examples", "natural", "red_flags"):
        assert records[0][field] == records[1][field]
    passes = [{t: {s: c["forward"] for s, c in row.items()} for t, row in r["costs"].items()} for r in records]
    assert passes[0] == passes[1]
