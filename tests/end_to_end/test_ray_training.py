"""Workers of a local Ray cluster train one network: the bits of DDP, quiet logs, and a worker that may be killed."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from kill import SETTINGS, _listed
from test_devices import ENVIRONMENT, TWO, _run, _sound

pytestmark = pytest.mark.slow
RAY = ["compute=ray", "compute.address=local", "compute.cores=2"]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Return the folder in which Ray keeps what it writes; its sockets want a short path."""
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENT, "RAY_TMPDIR", folder)
        yield Path(folder)


def test_two_workers_make_the_release_of_two_processes_and_tell_ray_nothing(tmp_path, logs):
    settings = [*SETTINGS, "model.steps=30", "debug.private_seed=3", *TWO]
    for name, where in (("ray", RAY), ("ddp", [])):
        status, out, err = _run("-m", "lightning_dpgen", "train", *settings, *where, f"run_dir={tmp_path / name}")
        assert status == 0 and "Traceback" not in err, err[-2000:]
        assert out.count("records take part") == 1 and out.count("done, but NOT A PRIVATE RELEASE") == 1
    made = [(tmp_path / name / "release" / "model.safetensors").read_bytes() for name in ("ray", "ddp")]
    assert made[0] == made[1]
    written = b"".join(path.read_bytes() for path in logs.rglob("*") if path.is_file() and not path.is_symlink())
    assert b"RayTrainWorker" in written, "Ray has logs"
    assert b"take part" not in written and b"noise multiplier" not in written


def _workers() -> list[int]:
    """Return the processes of Ray Train's workers that this test has started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = ((process / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if words.startswith(b"ray::") and b"RayTrainWorker" in words and ENVIRONMENT["RAY_TMPDIR"].encode() in environment:
            found.append(int(process.name))
    return found


def test_a_killed_worker_stops_the_run_and_the_next_goes_on(tmp_path, logs):
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "lightning_dpgen",
        "train",
        *SETTINGS,
        *TWO,
        *RAY,
        "model.steps=1500",
        f"run_dir={run}",
    ]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (run / "private" / "checkpoint.ckpt").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    os.kill(_workers()[0], signal.SIGKILL)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 75 and "Traceback" not in err, err[-2000:]
    assert re.search(r"rank [01] of 2 was lost with its Ray worker; nothing was released, and the ledger holds", err)
    assert not (run / "release").exists() and _listed(run / "private" / "ledger.jsonl")["training"] > 0
    again = re.search(r"To go on from where it stopped: dpgen (train .*)", err).group(1)
    status, out, err = _run("-m", "lightning_dpgen", *again.split())
    assert status == 0 and out.count("done: epsilon") == 1, err[-2000:]
    _sound(run)
