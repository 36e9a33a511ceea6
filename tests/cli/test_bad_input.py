"""Every mistake gets one clear line on standard error and an exit status, and touches nothing."""

import errno
import gzip
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.release import bounds

pytestmark = pytest.mark.filterwarnings("ignore")

_LINES = ["data.form=lines", "data.items=1..9", "data.n=300"]
MISTAKES = {
    "unknown data set": (["data=nosuch"], "nosuch"),
    "unknown override": (["privacy.epsilom=1"], "epsilom"),
    "unknown group": (["nosuch.thing=1"], "nosuch"),
    "not an override": (["epsilon"], "NAME=VALUE"),
    "an option": (["--epsilon"], "NAME=VALUE"),
    "a wrong type": (["privacy.epsilon=abc"], "privacy.epsilon"),
    "not a whole number": (["split.k=1.5"], "split.k"),
    "bad grammar": (["split.k=[1"], "split.k"),
    "text without quotes": (["data=series", "data.separator=;"], """as in 'data.separator=";"'$"""),
    "epsilon 0": (["privacy.epsilon=0"], "privacy.epsilon=0"),
    "epsilon below 0": (["privacy.epsilon=-1"], "privacy.epsilon=-1"),
    "epsilon nan": (["privacy.epsilon=nan"], "privacy.epsilon=nan"),
    "epsilon inf": (["privacy.epsilon=inf"], "privacy.epsilon=inf"),
    "epsilon huge": (["privacy.epsilon=100000"], "epsilon"),
    **{
        f"delta {own}": ([f"privacy.delta={own}"], f"privacy.delta={own}: expected a number from 1e-30, below 1, or null")
        for own in ("0", "1", "-0.5", "1e-31")
    },
    "a setting of no model that is named": (["model.components=3"], "without a model=NAME .* model=vae: name the model"),
    "any share moved": (["data=table", "data.max_moved=null"], "with 1 it never does"),
    "delta nan": (["privacy.delta=nan"], "privacy.delta=nan"),
    "delta 1/n": (["privacy.delta=0.001"], "1/n"),
    "k 0": (["split.k=0"], "split.k=0"),
    "odd features": (["split.features=7"], "split.features=7"),
    "unknown kernel": (["split.kernel=poly"], "split.kernel=poly: expected one of rbf, laplacian, identity"),
    "unknown start": (["split.start=records"], "split.start=records: expected mean, random, or a FILE.npy"),
    "no such centres": (["split.start=nowhere.npy"], "no such file; expected"),
    "no room": (["split.memory_gib=-1"], "split.memory_gib=-1"),
    "bad rate": (["model.rate=2"], "model.rate=2"),
    "no steps": (["model.steps=0"], "model.steps=0"),
    "fsdp": (["trainer.strategy=fsdp"], "trainer.strategy: is ddp .* keep a part of each parameter"),
    "accumulate": (["+trainer.accumulate_grad_batches=4"], "a lot is one access"),
    "bad bias": (["model.bias=foo"], "model.bias=foo"),
    "bad bound": (["clipping=fixed", "clipping.c=0"], "clipping.c=0"),
    "bad share": (["split.lloyd_share=nan"], "split.lloyd_share=nan"),
    "too large shares": (["split.lloyd_share=0.9"], "split.means_share=.*: the split uses 1.31 of the budget"),
    "epsilon null is not off": (["privacy.epsilon=null"], "or privacy=off"),
    "off with an epsilon": (["privacy=off", "privacy.epsilon=2"], "takes no epsilon"),
    "no noise, half said": (["privacy.noise=off"], r"privacy\.noise=off: privacy is chosen as a whole, as in privacy=off"),
    "a source, half said": (["data.source=table"], r"data\.source=table: data is chosen as a whole, as in data=table"),
    "a share of nothing": (["privacy=off", "privacy.fidelity_share=0.1"], r"expected null \(privacy=off draws no noise"),
    "a value for a group": (["debug=1"], r"debug=1: expected settings below this name: debug\.private_seed$"),
    "bounds of a bound": (
        ["clipping=quantile", "clipping.least=5"],
        r"clipping\.c=1\.0: expected a number from clipping\.least=5\.0 to clipping\.most",
    ),
    "unknown noise": (["privacy.noise=loud"], "privacy.noise=loud"),
    "secure noise from a seed": (["privacy.noise=secure", "debug.private_seed=3"], "takes no seed"),
    "empty unit": (["privacy.unit="], "privacy.unit"),
    "a setting of another rule": (
        ["clipping=fixed", "clipping.bins=3"],
        "no setting 'clipping.bins' of clipping=fixed",
    ),
    "an unknown rule": (["clipping.rule=mean"], "clipping.rule=mean"),
    "no smoothing": (["clipping.smooth=1"], "clipping.smooth=1"),
    "persons of one record each": (
        ["clipping.per_person=true"],
        r"clipping\.per_person=true: every person has one record here; expected data\.person",
    ),
    "next to no epsilon": (["privacy.epsilon=1e-320"], "privacy.epsilon=1e-320"),
    "fewer records than none": (["data.n=-3"], "data.n=-3"),
    "an infinite bound": (["clipping.c_max=inf"], "clipping.c_max=inf"),
    "a seed below 0": (["seed=-1"], "seed=-1"),
    "a seed beyond 64 bits": (["seed=99999999999999999999"], "seed=9999"),
    "a noise seed below 0": (["debug.private_seed=-1"], "debug.private_seed=-1"),
    "no name": (["=5"], "NAME=VALUE"),
    "a group set to nothing": (["data=null"], "data=null"),
    "two of a group": (["data=[digits,mnist]"], "expected one name"),
    "lots without a record": (["model.rate=1e-300"], "model.rate=1e-300"),
    "delta beyond computing": (["privacy.delta=1e-300"], "privacy.delta=1e-300"),
    "more devices than cores": (["trainer.accelerator=cpu", "trainer.devices=9999"], "expected at most as many processes"),
    "no device": (["trainer.devices=0"], r"trainer\.devices=0: expected a whole number from 1"),
    "nodes that were not started": (["trainer.num_nodes=2"], r"trainer\.num_nodes=2: start this command on each node"),
    "groups that devices cannot share": (
        ["model.divergence=kl", "model.groups=5", "trainer.devices=2"],
        r"model\.groups=5: 2 devices share them",
    ),
    "slots of a mixture": (["trainer.slots=true", "split.k=2"], r"trainer\.slots=true: a mixture of split\.k=2"),
    "slots by number": (["trainer.slots=64"], r"trainer\.slots=64"),
    "half precision": (["trainer.precision=16-mixed"], r"trainer\.precision=16-mixed: expected one of"),
    "half a component": (["model=measured", "model.components=1.5"], r"model\.components=1\.5: expected a whole"),
    "no number": (["model.lr=fast"], r"model\.lr=fast: expected a number"),
    "an added setting": (["+nosuch=1"], "no setting 'nosuch'"),
    "data not declared": (["data=images"], "data.path: must be given"),
    "bad rows": (["rows=-1"], "rows=-1"),
    "missing path": (["data=images", "data.n=5000", "data.height=2", "data.width=2"], "data.path"),
    "no file": (
        ["data=images", "data.path=no.npz", "data.n=5000", "data.height=2", "data.width=2"],
        r"no\.npz",
    ),
    "no folder": (["data=mnist"], "DPGEN_DATA"),
    "a network beyond memory": (["model.hidden=1000000000"], "model.hidden=1000000000"),
    "a number neither declared nor bought": (["data.n=null"], "data.n_share"),
    "a number declared and bought": (["data.n_share=0.1"], "declare the number of records, or buy it"),
    "a share beyond half": (["data.n=null", "data.n_share=2"], r"data\.n_share=2: expected a number above 0, below 0\.5"),
    "a bought number with a mistake": (["data.n=null", "data.n_share=0.1", "model.steps=0"], "model.steps=0"),
    "three of three": (["model.noise=1", "model.steps=5"], "give two of them"),
    "noise below 0": (["model.noise=-1"], "model.noise=-1"),
    "noise without noise": (["privacy=off", "model.noise=1"], "draws no noise"),
    "checkpoints never": (["trainer.checkpoint_every=0"], "trainer.checkpoint_every=0"),
    "a huge bound": (["clipping=fixed", "clipping.c=1e300"], r"clipping\.c=1e300"),
    "a tiny bound": (["clipping.c_max=1e-300"], "clipping.c_max=1e-300"),
    "a huge weight": (["split.label_weight=1e300"], "split.label_weight"),
    "rows beyond any use": (["rows=99999999999"], "rows=99999999999"),
    "a huge picture": (["data=images", "data.path=x", "data.n=5000", "data.height=99999", "data.width=9"], "data.height"),
    "a rate of learning": (["model.lr=1e300"], "model.lr"),
    **{
        f"a schema named {value}": (
            ["data=table", "data.path=t.csv", "data.n=300", f"data.schema={value}"],
            rf"data\.schema=/.*/{value}: no such file",
        )
        for value in ("12", "2024_11", "1e3", "inf", "nan", "-1")
    },
    **{
        f"a schema named {value}": (
            ["data=table", "data.path=t.csv", "data.n=300", f"data.schema={value}"],
            r"data\.schema=.*: expected text",
        )
        for value in ("[1,2]", "{a:1}", "true")
    },
    "an empty path": (["data=baskets", "data.path=", "data.items=1..9", "data.max_items=3", "data.n=9"], r"data\.path="),
    **{
        f"{value} items of nine": (
            ["data=baskets", f"data.path={__file__}", *_LINES, f"data.max_items={value}"],
            rf"data\.max_items={value}: expected a whole number from 1 to {most}",
        )
        for value, most in (("10", "9, all items"), ("99999999999999999999999", "100,000"))
    },
    "too many items of a private list": (
        [
            "data=baskets",
            "data.path=b.dat",
            "data.items=private",
            "data.discovery_share=0.1",
            "data.outside=clamp",
            "data.n=300",
            "data.max_items=99999999999999999999999",
        ],
        r"data\.max_items=9+: expected a whole number from 1 to 100,000",
    ),
    "a number of classes of baskets": (
        ["data=baskets", "data.path=b.dat", "data.items=1..9", "data.n=300", "data.max_items=3", "data.classes=2"],
        r"data\.classes=2: expected a list",
    ),
    "bad accelerator": (["trainer.accelerator=foo"], "trainer.accelerator=foo"),
}


def one_line(err: str) -> bool:
    lines = [line for line in err.splitlines() if not line.startswith("dpgen: warning:")]
    return len(lines) == 1 and lines[0].startswith("dpgen: ") and "Traceback" not in err


@pytest.mark.parametrize(("overrides", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes(dpgen, tmp_path, monkeypatch, overrides, words):
    monkeypatch.delenv("DPGEN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    status, _, err = dpgen("train", f"run_dir={tmp_path / 'run'}", *overrides)
    assert status == 2 and one_line(err) and re.search(words, err), err
    assert not list(tmp_path.iterdir())


def test_a_gpu_without_bfloat16_is_one_line(dpgen, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    status, _, err = dpgen(
        "train", "trainer.precision=bf16-mixed", "trainer.accelerator=gpu", f"run_dir={tmp_path / 'run'}"
    )
    assert status == 2 and one_line(err) and "Tesla T4 computes nothing in bfloat16" in err
    assert not (tmp_path / "run").exists()


def test_budget_too_small_says_what_fits(dpgen, tmp_path):
    status, _, err = dpgen("train", "privacy.epsilon=0.0005", f"run_dir={tmp_path / 'run'}")
    assert status == 3 and one_line(err) and "would do" in err
    assert not (tmp_path / "run").exists()
    enough = re.search(r"epsilon=([\d.]+) would do", err)[1]
    assert dpgen("budget", f"privacy.epsilon={enough}")[0] == 0


def test_a_large_delta_warns(dpgen):
    status, _, err = dpgen("budget", "privacy.delta=1e-4")
    assert status == 0 and err.startswith("dpgen: warning: privacy.delta=0.0001")


def test_a_run_dir_is_never_overwritten(dpgen, trained, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    status, _, err = dpgen("train", f"run_dir={trained}")
    assert status == 2 and one_line(err) and "finished release" in err
    (tmp_path / "file").write_text("x")
    status, _, err = dpgen("train", f"run_dir={tmp_path / 'file'}")
    assert status == 2 and one_line(err) and "is a file" in err
    assert before == {path: path.stat().st_mtime_ns for path in trained.rglob("*")}


PICTURES, LABELS = np.zeros((30, 2, 2)), {"labels": np.zeros(30, int)}
BAD_ARRAYS = {
    "nan": ({"images": np.full((30, 2, 2), np.nan), **LABELS}, "NaN"),
    "infinite": ({"images": np.full((30, 2, 2), np.inf), **LABELS}, "NaN, or values outside"),
    "shape": ({"images": np.zeros((30, 5, 2, 5)), **LABELS}, "shape"),
    "range": ({"images": PICTURES + 300, **LABELS}, "outside 0 to data.high=255, as declared"),
    "text": ({"images": np.full((30, 2, 2), "a")}, "expected numbers"),
    "name": ({"pictures": PICTURES}, "named images"),
    "no labels": ({"images": PICTURES}, "no labels"),
    "label range": ({"images": PICTURES, "labels": np.full(30, 5)}, "the label 5"),
    "label shape": ({"images": PICTURES, "labels": np.zeros(3, int)}, "labels"),
    "objects": ({"images": np.array([None] * 30)}, "plain arrays"),
    "an unknown range": ({"images": PICTURES, **LABELS}, "data.high"),
}


@pytest.mark.parametrize(("arrays", "words"), BAD_ARRAYS.values(), ids=BAD_ARRAYS.keys())
def test_bad_records_cost_nothing(dpgen, tmp_path, arrays, words):
    np.savez(tmp_path / "f.npz", **arrays)
    declared = ["data.n=5000", "data.height=2", "data.width=2", "data.classes=2"]
    declared += ["data.high=255"] if words != "data.high" else []
    status, _, err = dpgen(
        "train", "data=images", f"data.path={tmp_path / 'f.npz'}", *declared, f"run_dir={tmp_path / 'run'}"
    )
    assert status == 2 and one_line(err) and words in err, err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [b"junk", b"", b"PK" + bytes(60)], ids=["junk", "empty", "broken"])
def test_a_file_that_is_no_npz(dpgen, tmp_path, content):
    (tmp_path / "f.npz").write_bytes(content)
    declared = ["data.n=5000", "data.height=2", "data.width=2", f"run_dir={tmp_path / 'run'}"]
    status, _, err = dpgen("train", "data=images", f"data.path={tmp_path / 'f.npz'}", *declared)
    assert status == 2 and one_line(err) and "not .npz of plain arrays" in err
    np.save(tmp_path / "f.npy", np.array(5))
    status, _, err = dpgen("train", "data=images", f"data.path={tmp_path / 'f.npy'}", *declared)
    assert status == 2 and one_line(err) and "images have shape ()" in err


def test_a_full_disk_is_one_line(dpgen, tmp_path, monkeypatch):
    from lightning_dpgen.privacy import ledger

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device", "ledger.jsonl")

    monkeypatch.setattr(ledger.os, "fsync", full)
    status, _, err = dpgen("train", f"run_dir={tmp_path / 'run'}")
    assert status == 2 and one_line(err) and "No space left" in err
    assert not (tmp_path / "run" / "release").exists()


BROKEN = gzip.compress(bytes(500))[:12] + b"\xff" * 20


SHORT = gzip.compress(b"\x00\x00\x08\x03\x00")


@pytest.mark.parametrize("content", [b"junk", gzip.compress(b"junk"), gzip.compress(bytes(4)), b"", BROKEN, SHORT],
                         ids=["no gzip", "no idx", "no data", "empty", "broken", "short"])  # fmt: skip
def test_broken_files(dpgen, tmp_path, monkeypatch, content):
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3", "train-labels-idx1"):
        (tmp_path / "mnist" / f"{name}-ubyte.gz").write_bytes(content)
    monkeypatch.setenv("DPGEN_DATA", str(tmp_path))
    status, _, err = dpgen("train", "data=mnist", "privacy.delta=1e-6", f"run_dir={tmp_path / 'run'}")
    assert status == 2 and one_line(err) and "train-images" in err


def test_words_that_are_no_command(dpgen):
    status, _, err = dpgen("trian")
    assert status == 2 and one_line(err) and "train" in err
    assert dpgen("--help")[0] == 0 and dpgen("--version")[1].startswith("dpgen ")
    for command in ("train", "budget", "sample", "verify", "evaluate"):
        status, out, _ = dpgen(command, "--help")
        assert status == 0 and f"usage: dpgen {command}" in out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_that_cannot_be_written(dpgen, tmp_path):
    tmp_path.chmod(0o500)
    status, _, err = dpgen("train", f"run_dir={tmp_path / 'run'}")
    assert status == 2 and one_line(err)


def test_it_also_runs_as_a_module(tmp_path):
    done = subprocess.run([sys.executable, "-m", "lightning_dpgen", "nosuch"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and one_line(done.stderr)


def test_a_budget_of_many_runs_is_asked_for_one_by_one(dpgen):
    status, _, err = dpgen("budget", "-m", "seed=0,1")
    assert status == 2 and one_line(err) and "-m: works only with dpgen train" in err


def test_what_no_release_could_hold_is_refused_before_anything_is_spent(dpgen, tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "MOST_NUMBERS", 1000)
    status, _, err = dpgen("train", "split.k=1", "model.steps=1", f"run_dir={tmp_path / 'run'}")
    assert status == 2 and "model=vae: a model of" in err and "expected at most 1,000" in err
    assert not Ledger.read(tmp_path / "run/private/ledger.jsonl").accesses
    monkeypatch.setattr(bounds, "MOST_BYTES_IN_ALL", 1000)
    status, _, err = dpgen("project", "data=blobs", "project.radius=1", f"run_dir={tmp_path / 'projected'}")
    assert status == 2 and "data.n: rows=" in err and not (tmp_path / "projected").exists()
