"""Several processes train together, under dpgen, torchrun and Lightning's launchers; CPUs use gloo, GPUs use NCCL."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from kill import SETTINGS, _listed

from lightning_dpgen import load_release
from lightning_dpgen.models.labelled import LabelledNetwork
from lightning_dpgen.verification.verify import verify

HERE = Path(__file__).parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
TWO = ["trainer.accelerator=cpu", "trainer.devices=2"]


def _run(*command, **environment):
    """Run a program for at most five minutes; return its exit status and output."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=ENVIRONMENT | environment, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout, done.stderr


def _train(*settings):
    return subprocess.Popen(
        [sys.executable, "-m", "lightning_dpgen", "train", *settings],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def _sound(run: Path) -> None:
    """Check that the release verifies, and that its certificate counts every line of the ledger."""
    certificate = json.loads((run / "release" / "privacy.json").read_text())
    assert verify(run / "release").good and certificate["epsilon"] <= certificate["target_epsilon"]
    counted = {stage["name"]: stage["event"].get("count", 1) for stage in certificate["stages"]}
    assert counted == _listed(run / "private" / "ledger.jsonl")


@pytest.mark.slow
def test_the_program_starts_a_process_for_each_device(tmp_path):
    status, out, err = _run(
        "-m", "lightning_dpgen", "train", *SETTINGS, "model.steps=30", *TWO, f"run_dir={tmp_path / 'run'}"
    )
    assert status == 0 and out.count("done: epsilon") == 1, err[-2000:]
    _sound(tmp_path / "run")


@pytest.mark.slow
def test_ranks_start_from_public_weights_and_a_label_follows_their_training(tmp_path):
    """Rank 0 alone buys the label; all of them read the network that they start from, and compare parameters."""
    (tmp_path / "t.yaml").write_text(
        "label: old\ncolumns:\n  age: {type: integer, low: 0, high: 99}\n  old: {type: boolean}\n  town: {type: boolean}\n"
    )
    for name, seed in (("public", 0), ("private", 1)):
        ages = np.random.default_rng(seed).integers(0, 100, 2000)
        rows = (f"{age},{str(age > 60).lower()},{str(age % 2 > 0).lower()}\n" for age in ages)
        (tmp_path / f"{name}.csv").write_text("age,old,town\n" + "".join(rows))
    table = ["data=table", f"data.schema={tmp_path / 't.yaml'}", "data.n=2000", "model.steps=40", "split.iterations=2"]
    words = [*table, f"data.path={tmp_path / 'public.csv'}", "model.hidden=8", "model.latent=2", "privacy=off", "split.k=1"]
    status, _, err = _run("-m", "lightning_dpgen", "train", *words, f"run_dir={tmp_path / 'public'}")
    assert status == 0, err[-2000:]
    words = [*table, f"data.path={tmp_path / 'private.csv'}", "split.k=3", "model.label_share=0.3", *TWO]
    start = [f"model.init={tmp_path / 'public'}", "model.init_public=townsfolk"]
    status, out, err = _run("-m", "lightning_dpgen", "train", *words, *start, f"run_dir={tmp_path / 'run'}")
    assert status == 0 and out.count("declared to be public: townsfolk") == 1, err[-2000:]
    _sound(tmp_path / "run")
    release = load_release(tmp_path / "run/release")
    assert release.components == 3 and isinstance(release.mixture.network, LabelledNetwork)
    made = release.sample(2000, seed=0)
    assert ((made["age"] > 60) == made["old"]).mean() > 0.8


def _worker(run: Path, rank: int) -> int | None:
    """Find the process of a rank in Linux's list; None before it is there."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:
            continue
        if f"run_dir={run}".encode() in words and f"RANK={rank}".encode() in environment:
            return int(process.name)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_before_it_has_begun_is_named(tmp_path, rank):
    run = tmp_path / "run"
    process = _train(*SETTINGS, *TWO, f"run_dir={run}")
    while not (number := _worker(run, rank)):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    os.kill(number, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and f"rank {rank} of 2 was killed by signal 9; nothing was released" in err
    assert not (run / "private" / "ledger.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_stops_the_run_and_the_next_goes_on(tmp_path, rank):
    run = tmp_path / "run"
    settings = [*SETTINGS, *TWO, "model.steps=1500", f"run_dir={run}"]
    process = _train(*settings)
    while not (run / "private" / "checkpoint.ckpt").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    os.kill(_worker(run, rank), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75
    assert f"rank {rank} of 2 was killed by signal 9; nothing was released, and the ledger holds all that was drawn" in err
    again = re.search(r"To go on from where it stopped: dpgen (train .*)", err).group(1)
    assert f"run_dir={run}" in again and "trainer.devices=2" in again and not (run / "release").exists()
    status, _, err = _run("-m", "lightning_dpgen", *again.split())
    assert status == 0, err[-2000:]
    _sound(run)


@pytest.mark.slow
def test_a_signal_stops_all_ranks_with_a_checkpoint(tmp_path):
    run = tmp_path / "run"
    settings = [*SETTINGS, *TWO, "model.steps=1500", f"run_dir={run}"]
    process = _train(*settings)
    while not (run / "private" / "checkpoint.ckpt").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted; nothing was released" in err and "Traceback" not in err
    drawn = _listed(run / "private" / "ledger.jsonl")["training"]
    done = torch.load(run / "private" / "checkpoint.ckpt", weights_only=True)["lightning_dpgen"]["done"]["training"]
    assert done == drawn, "a clean stop loses no step"


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def _two_nodes(script, arguments):
    """Start two agents of torchrun with one process each, as on two machines."""
    agent = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    agent += [f"--master-port={_free_port()}"]
    return [
        subprocess.Popen(
            [sys.executable, *agent, f"--node-rank={node}", *script, *map(str, arguments)],
            env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for node in range(2)
    ]  # fmt: skip


@pytest.mark.slow
def test_the_program_on_two_nodes(tmp_path):
    run = tmp_path / "run"
    settings = ["train", *SETTINGS, "trainer.accelerator=cpu", "trainer.num_nodes=2", f"run_dir={run}"]
    nodes = _two_nodes(["-m", "lightning_dpgen"], settings)
    said = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "done: epsilon" in said[0][0] and said[1][0] == ""
    _sound(run)


@pytest.mark.slow
def test_slurm_is_asked_for_ranks(tmp_path):
    """The environment has its variables as srun sets them for two tasks."""
    run, processes = tmp_path / "run", []
    port = str(_free_port())
    for rank in range(2):
        slurm = {
            "SLURM_NTASKS": "2", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0",
            "SLURM_JOB_NAME": "dpgen", "SLURM_JOB_ID": "1", "SLURM_NODELIST": "127.0.0.1", "SLURM_NTASKS_PER_NODE": "2",
            "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        }  # fmt: skip
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "lightning_dpgen", "train", *SETTINGS, *TWO, f"run_dir={run}"],
                env=ENVIRONMENT | slurm, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    said = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    _sound(run)


LAUNCHERS = {
    "Lightning starts scripts": [],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
}


def _fit(folder, strategy="ddp", launcher=(), devices=2, **environment):
    return _run(*launcher, HERE / "devices.py", devices, strategy, folder, **environment)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_anybodys_module(tmp_path, launcher, precision):
    status, _, err = _fit(tmp_path, launcher=launcher, PRECISION=precision)
    assert status == 0, err[-2000:]
    _released(tmp_path, ranks=2)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
def test_anybodys_module_of_the_other_namespace(tmp_path, launcher):
    pytest.importorskip("lightning")
    status, _, err = _fit(tmp_path, launcher=launcher, LIGHTNING="lightning.pytorch")
    assert status == 0, err[-2000:]
    _released(tmp_path, ranks=2)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_anybodys_module_on_gpus(tmp_path, precision):
    devices = torch.cuda.device_count()
    status, _, err = _fit(tmp_path, devices=devices, PRECISION=precision, ACCELERATOR="gpu")
    assert status == 0, err[-2000:]
    _released(tmp_path, ranks=devices)


@pytest.mark.slow
def test_spawned_processes_get_no_account(tmp_path):
    status, _, err = _fit(tmp_path, "ddp_spawn")
    assert status == 1 and "an account is never saved or copied" in err and "strategy='ddp'" in err.splitlines()[-1]
    assert _listed(tmp_path / "ledger.jsonl") == {}


def _released(folder: Path, ranks: int) -> None:
    ends = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    assert all(end == ends[0] for end in ends) and ends[0]["accesses"] == 60
    assert _listed(folder / "ledger.jsonl") == Counter(training=60)
    assert verify(folder / "release").good


@pytest.mark.slow
def test_a_rank_with_another_plan_is_refused(tmp_path):
    status, _, err = _fit(tmp_path, launcher=LAUNCHERS["torchrun"], ODD="1")
    assert status == 1 and "rank 1 has another plan than rank 0" in err
    assert _listed(tmp_path / "ledger.jsonl") == {}


@pytest.mark.slow
def test_a_trainer_with_one_device_under_torchrun_is_refused(tmp_path):
    status, _, err = _fit(tmp_path, "auto", LAUNCHERS["torchrun"], devices=1)
    assert status == 1 and ("one device" in err or "expected" in err)
    assert not (tmp_path / "rank1.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", ["inf", "8"])
def test_bought_numbers_of_two_ranks_are_of_all_records(tmp_path, epsilon):
    status, _, err = _run(HERE / "bought_numbers.py", epsilon, tmp_path)
    assert status == 0, err[-2000:]
    ends = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert ends[0] == ends[1] and len(ends[0]["shown"]) == 4
    if epsilon == "inf":
        assert all(ends[0]["shown"][name] == pytest.approx(exact, abs=1e-5) for name, exact in ends[0]["exact"].items())
    else:
        assert _listed(tmp_path / "ledger.jsonl") == Counter(training=6, validation=2)
        assert verify(tmp_path / "release").good
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
