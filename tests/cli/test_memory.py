"""Too little memory: one line says what to lower, and how to go on with what was paid for."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from marks import only

from lightning_dpgen.cli import sample
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.gradients.micro_batches import _within_limits
from lightning_dpgen.measure.cells import Cells
from lightning_dpgen.measure.tables import TableRecipe
from lightning_dpgen.privacy.chain import hold
from lightning_dpgen.runs import memory
from lightning_dpgen.runs import run as begun
from lightning_dpgen.runs.memory import is_out_of_memory
from lightning_dpgen.specs.source import Source


def _caught(ask):
    try:
        ask()
    except Exception as error:
        return error
    raise AssertionError("so much memory there is not")


# Errors of each library itself, for far more than an address space holds.
ERRORS = {
    "numpy": lambda: np.empty(1 << 59),
    "torch": lambda: torch.empty(1 << 59),
    "arrow": lambda: pa.allocate_buffer((1 << 62) + 7),
    "python": lambda: bytearray(1 << 62),
    "a GPU": lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
    "a GPU's library": lambda: (_ for _ in ()).throw(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")),
}


@pytest.mark.parametrize("ask", ERRORS.values(), ids=ERRORS)
def test_each_library_is_understood(ask):
    assert is_out_of_memory(_caught(ask))


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("memory")])
def test_another_error_is_none_of_memory(error):
    assert not is_out_of_memory(error)


@pytest.mark.parametrize("ask", only(ERRORS, "arrow"))
def test_a_run_without_memory_is_one_line(dpgen, tmp_path, monkeypatch, ask):
    words = ["train", "model=measured", "data.classes=0", "model.cells=2", "rows=9", f"run_dir={tmp_path / 'run'}"]
    with monkeypatch.context() as patch:
        patch.setattr(Source, "records", lambda *_, **__: ask())
        status, _, err = dpgen(*words)
    assert status == 2 and "out of memory: lower" in err.splitlines()[-1] and "go on" not in err
    with monkeypatch.context() as patch:
        patch.setattr(Cells, "of_samples", lambda *_, **__: ask())
        status, _, err = dpgen(*words)
    last = err.splitlines()[-1]
    assert (
        status == 2
        and "out of memory: lower split.memory_gib, the one" in last
        and "To go on from where it stopped: dpgen train" in last
    )
    assert "Traceback" not in err and dpgen(*words)[0] == 0


QUICK = ["train", "data.classes=0", "split.k=2", "model.steps=4", "rows=9"]


def _out_of_memory(*_, **__):
    raise MemoryError


def test_a_run_that_has_drawn_nothing_is_begun_anew(dpgen, tmp_path, monkeypatch):
    """Settings may be lowered, as the advice says."""
    ledger, words = tmp_path / "run" / "private" / "ledger.jsonl", [*QUICK, f"run_dir={tmp_path / 'run'}"]
    with monkeypatch.context() as patch:
        patch.setattr(begun, "learn", _out_of_memory)
        status, _, err = dpgen(*words)
        before = ledger.read_bytes()
        assert status == 2 and "Nothing was spent" in err and "To go on" not in err
        # A run that holds the ledger may be about to draw.
        with hold(ledger):
            status, _, err = dpgen(*words, "model.hidden=8")
        assert status == 2 and "another run is writing this ledger" in err and ledger.read_bytes() == before
    status, _, err = dpgen(*words, "model.hidden=8")
    assert status == 0 and before not in ledger.read_bytes(), err


def test_a_ledger_with_an_access_is_never_removed(dpgen, tmp_path, monkeypatch):
    ledger, words = tmp_path / "run" / "private" / "ledger.jsonl", [*QUICK, f"run_dir={tmp_path / 'run'}"]
    with monkeypatch.context() as patch:
        patch.setattr(begun, "write_release", _out_of_memory)
        assert dpgen(*words)[0] == 2
    before = ledger.read_bytes()
    status, _, err = dpgen(*words, "model.hidden=8")
    assert status == 2 and "unfinished run with other settings" in err and ledger.read_bytes().startswith(before)
    # Without what was lost of it, the ledger looks like one that was never used.
    ledger.write_bytes(before[: before.index(b"\n") + 1])
    status, _, err = dpgen(*words)
    assert status == 2 and "lines are missing" in err


def test_other_commands_say_it_too(dpgen, release, tmp_path, monkeypatch):
    monkeypatch.setattr(sample, "write_table", lambda *_, **__: np.empty(1 << 59))
    status, _, err = dpgen("sample", release, "-n", 5, "-o", tmp_path / "a.csv")
    assert status == 2 and err.startswith("dpgen: out of memory: lower") and len(err.splitlines()) == 1


def test_a_fit_that_would_not_fit_is_refused_before_it_is_paid_for(dpgen, tmp_path, monkeypatch):
    """Its bytes follow from public sizes, so no record is read to know them."""
    (tmp_path / "t.csv").write_text("a,b\n" + "x,y\ny,y\n" * 20)
    (tmp_path / "t.schema.yaml").write_text(
        "columns: {a: {type: category, values: [x, y]}, b: {type: category, values: [x, y]}}"
    )
    monkeypatch.chdir(tmp_path)
    words = [
        "train",
        "data=table",
        "data.path=t.csv",
        "data.schema=t.schema.yaml",
        "data.n=40",
        "model=measured",
        "rows=9",
        "run_dir=run",
    ]
    with monkeypatch.context() as patch:
        patch.setattr(memory, "free_memory", lambda _: 1 << 20)
        status, _, err = dpgen(*words)
    assert status == 2 and len(err.splitlines()) == 1 and not (tmp_path / "run").exists()
    needed = "the fit to what is measured takes about 0.2 GiB of memory"
    assert err.startswith(f"dpgen: model=measured: {needed}, and 0.0 GiB are free: ")
    assert dpgen(*words)[0] == 0
    status, out, _ = dpgen("budget", *words[1:-2])
    assert status == 0 and out.splitlines()[-1] == needed


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container_is_one_of_memory(tmp_path, version):
    """Whichever group of those around a process leaves least; files that are kept in memory can be let go of."""
    names, limit, usage, files, top = {
        1: ("cpu,memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "sys/fs/cgroup/memory"),
        2: ("", "memory.max", "memory.current", "inactive_file", "sys/fs/cgroup"),
    }[version]
    assert list(_within_limits(tmp_path)) == []
    for group, most, taken in (("", "max" if version == 2 else 2**60, 0), ("a", 5000, 4000), ("a/b", 4000, 1000)):
        folder = tmp_path / top / group
        folder.mkdir(parents=True)
        for name, value in ((limit, most), (usage, taken), ("memory.stat", f"{files} 300\nother 1")):
            (folder / name).write_text(f"{value}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    # A container sees its own group at the top, and none of the path that it has outside.
    for path, left in (("/a/b", [3300, 1300]), ("/a", [1300]), ("/gone", []), ("/", [])):
        (tmp_path / "proc/self/cgroup").write_text(f"7:cpuset:/x\n3:{names}:{path}\n")
        assert [free for free in _within_limits(tmp_path) if free < 2**50] == left


def test_more_choices_take_more_memory():
    """Tables of two columns grow with their cells, and a fit with its components."""
    schemas = []
    for width, size in ((5, 10), (5, 40), (50, 40)):
        columns = [f"c{i}: {{type: integer, low: 1, high: {size}, bins: {size}}}" for i in range(width)]
        schemas.append(parse_schema(f"columns: {{{', '.join(columns)}}}"))
    needed = [TableRecipe(schema, k, 1000).fit_bytes for schema in schemas for k in (1, 30)]
    assert needed == sorted(set(needed)) and needed[0] < 2**28 < needed[-1] < 2**31
