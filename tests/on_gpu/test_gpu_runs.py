"""Short trainings by the program on a GPU: every model on every kind of records ends with a release that verifies."""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from on_gpu.gpu_mark import cases_on_gpu, needs_gpu

from lightning_dpgen import load_release
from lightning_dpgen.cli.main import main
from lightning_dpgen.runs.run_folder import RunFolder

pytestmark = [needs_gpu, pytest.mark.filterwarnings("ignore")]

ON_GPU = ["trainer.accelerator=gpu", "trainer.devices=1"]
SHORT = ["model.steps=6", "model.rate=0.05", "split.iterations=2", "split.features=16", "split.k=3", "rows=30"]
DELTA = ["privacy.delta=1e-4"]
N = 600


def _pictures(folder):
    return ["data=digits"]


def _table(folder):
    rows = np.random.default_rng(0)
    (folder / "t.yaml").write_text(
        "label: old\ncolumns:\n  age: {type: integer, low: 0, high: 99}\n  pay: {type: number, low: 0, high: 9, encoding: "
        "scaled}\n  town: {type: category, values: [Rome, Ur, Oslo]}\n  old: {type: boolean}\n"
    )
    lines = [
        f"{age},{rows.random() * 9:.2f},{rows.choice(['Rome', 'Ur', 'Oslo'])},{str(age > 60).lower()}\n"
        for age in rows.integers(0, 100, N)
    ]
    (folder / "t.csv").write_text("age,pay,town,old\n" + "".join(lines))
    return ["data=table", f"data.path={folder / 't.csv'}", f"data.schema={folder / 't.yaml'}", f"data.n={N}", *DELTA]


def _baskets(folder):
    rows = np.random.default_rng(1)
    lines = [" ".join(map(str, rows.choice(np.arange(1, 31), rows.integers(1, 7), replace=False))) for _ in range(N)]
    (folder / "b.dat").write_text("\n".join(lines) + "\n")
    return ["data=baskets", f"data.path={folder / 'b.dat'}", "data.items=1..30", "data.max_items=6", f"data.n={N}", *DELTA]


def _series(folder):
    rows = np.random.default_rng(2)
    lines = [",".join([rows.choice(["warm", "cold"]), *(f"{x:.2f}" for x in 5 * rows.random(8))]) for _ in range(N)]
    (folder / "s.csv").write_text("label," + ",".join(f"h{i}" for i in range(8)) + "\n" + "\n".join(lines) + "\n")
    return [
        "data=series", f"data.path={folder / 's.csv'}", "data.length=8", "data.low=0", "data.high=5",
        "data.classes=[warm,cold]", f"data.n={N}", *DELTA,
    ]  # fmt: skip


def _histories(folder):
    rows = np.random.default_rng(3)
    (folder / "h.yaml").write_text(
        "visits:\n  file: h.csv\n  person: patient\n  order: day\n  max_rows: 4\n  start: {type: integer, low: 0, high: "
        "99}\n  gap: {high: 99}\n  columns: {ward: {type: category, values: [a, b, c]}}\n"
    )
    lines = [f"{who},{rows.integers(100)},{rows.choice(list('abc'))}\n" for who in range(N) for _ in range(1 + who % 3)]
    (folder / "h.csv").write_text("patient,day,ward\n" + "".join(lines))
    return ["data=histories", f"data.path={folder / 'h.yaml'}", f"data.n={N}", *DELTA]


RUNS = {
    "pictures, vae": (_pictures, ["model.hidden=8"]),
    "pictures, vae, secure noise": (_pictures, ["model.hidden=8", "privacy.noise=secure"]),
    "pictures, vae, bf16": (_pictures, ["model.hidden=8", "trainer.precision=bf16-mixed"]),
    "pictures, vae, 64 bits": (_pictures, ["model.hidden=8", "trainer.precision=64-true"]),
    "pictures, trunk": (_pictures, ["model.hidden=8", "model.layers=2", "model.trunk=True"]),
    "pictures, average": (_pictures, ["model.hidden=8", "model.averaging=0.9"]),
    "pictures, convolutions": (_pictures, ["model.network=conv"]),
    "pictures, deep convolutions": (_pictures, ["model.network=deep_conv", "model.filters=4"]),
    "pictures, groups": (_pictures, ["model.hidden=8", "model.divergence=kl", "model.groups=4"]),
    "pictures, groups of convolutions": (_pictures, ["model.network=conv", "model.divergence=tc", "model.bias=zero"]),
    "pictures, embedding": (_pictures, ["model.hidden=8", "model.divergence=mmd", "model.features=8"]),
    "pictures, mixture prior": (
        _pictures, ["model.hidden=8", "model.latent=2", "model.prior=mixture", "model.prior_centres=[[1,0],[-1,0]]"],
    ),
    "pictures, gaussian": (_pictures, ["model.hidden=8", "model.likelihood=gaussian"]),
    "pictures, rbm": (_pictures, ["model=rbm", "model.hidden=8", "model.chains=4"]),
    "pictures, wgan": (_pictures, ["model=wgan", "model.hidden=8"]),
    "pictures, wgan with bounded weights": (_pictures, ["model=wgan", "model.hidden=8", "model.loss=wgan_clip"]),
    "pictures, wgan of convolutions": (_pictures, ["model=wgan", "model.network=conv", "clipping=dpnorm"]),
    "table, vae": (_table, ["model.hidden=8"]),
    "table, rbm": (_table, ["model=rbm", "model.hidden=8", "model.chains=4", "clipping=quantile"]),
    "table, wgan and its label": (_table, ["model=wgan", "model.hidden=8", "model.label_share=0.2"]),
    "baskets, vae": (_baskets, ["model.hidden=8"]),
    "baskets, wgan": (_baskets, ["model=wgan", "model.hidden=8"]),
    "series, vae": (_series, ["model.hidden=8"]),
    "series, vae of waves": (_series, ["model.network=waves", "model.hidden=8"]),
    "series, vae, censored": (_series, ["model.likelihood=censored", "model.hidden=8"]),
    "series, wgan, recurrent": (_series, ["model=wgan", "model.network=lstm", "model.hidden=8"]),
    "series, wgan, recurrent and convolutions": (
        _series, ["model=wgan", "model.network=lstm", "model.hidden=8", "model.critic=conv"],
    ),
    "histories, autoregressive": (_histories, ["model=autoregressive", "model.hidden=4", "split.k=1"]),
    "no privacy": (_pictures, ["model.hidden=8", "privacy=off"]),
}  # fmt: skip


@pytest.mark.parametrize("records, settings", cases_on_gpu(RUNS).values(), ids=cases_on_gpu(RUNS).keys())
def test_a_training_is_released_and_verifies(tmp_path, records, settings):
    run = tmp_path / "run"
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert main(["train", *records(tmp_path), *SHORT, *ON_GPU, *settings, f"run_dir={run}"]) == 0
    # The program has no other reason to allocate memory there.
    assert torch.cuda.max_memory_allocated() > before, "it was trained on the processor"
    assert main(["verify", str(run / "release")]) == (2 if "privacy=off" in settings else 0)
    one, two = (load_release(run / "release") for _ in range(2))
    assert all(p.device.type == "cpu" for p in one.mixture.network.parameters())
    first, again = one.sample_encoded(20, seed=1), two.sample_encoded(20, seed=1)
    for name in ("units", "codes"):
        own, other = (x.toarray() if hasattr(x, "toarray") else x for x in (getattr(first, name), getattr(again, name)))
        assert np.array_equal(own, other)


def test_a_run_that_is_killed_goes_on(tmp_path):
    """It is killed once, after the first lines of its training; the certificate then counts every line."""
    run, ledger = tmp_path / "run", RunFolder(tmp_path / "run").private / "ledger.jsonl"
    settings = [
        "model.steps=400", "model.hidden=8", "split.iterations=2", "split.features=16", "rows=100",
        "trainer.checkpoint_every=5", *ON_GPU,
    ]  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-m", "lightning_dpgen", "train", *settings, f"run_dir={run}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    patience = random.Random(3).uniform(0.1, 0.5)
    while process.poll() is None and not (ledger.exists() and ledger.read_text().count('"training"') > 30):
        time.sleep(0.005)
    time.sleep(patience)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not (run / "release").exists()
    seen = ledger.read_bytes()
    assert main(["train", *settings, f"run_dir={run}"]) == 0
    assert ledger.read_bytes().startswith(seen) and main(["verify", str(run / "release")]) == 0
    certificate = json.loads((run / "release" / "privacy.json").read_text())
    counted = {stage["name"]: stage["event"].get("count", 1) for stage in certificate["stages"]}
    assert counted["training"] >= 400


def test_a_debugging_seed_gives_the_same_mixture_again(tmp_path):
    found = []
    for name in ("one", "two"):
        words = [*SHORT, *ON_GPU, "model.hidden=8", "debug.private_seed=7", f"run_dir={tmp_path / name}"]
        assert main(["train", *words]) == 0
        network = load_release(tmp_path / name / "release").mixture.network
        found.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
