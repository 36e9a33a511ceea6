"""Too little memory: one line says what to lower, and how to go on with what was paid for."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from lightning_dpgen.cli import sample
from lightning_dpgen.runs import measure as measured_run
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


@pytest.mark.parametrize("ask", ERRORS.values(), ids=ERRORS)
def test_a_run_without_memory_is_one_line(dpgen, tmp_path, monkeypatch, ask):
    words = ["train", "model=measured", "data.classes=0", "split.k=2", "rows=9", f"run_dir={tmp_path / 'run'}"]
    with monkeypatch.context() as patch:
        patch.setattr(Source, "records", lambda *_, **__: ask())
        status, _, err = dpgen(*words)
    assert status == 2 and "out of memory: lower" in err.splitlines()[-1] and "go on" not in err
    with monkeypatch.context() as patch:
        patch.setattr(measured_run, "label_components", lambda *_, **__: ask())
        status, _, err = dpgen(*words)
    last = err.splitlines()[-1]
    assert status == 2 and "out of memory: lower" in last and "To go on from where it stopped: dpgen train" in last
    assert "Traceback" not in err and dpgen(*words)[0] == 0


def test_other_commands_say_it_too(dpgen, release, tmp_path, monkeypatch):
    monkeypatch.setattr(sample, "write_table", lambda *_, **__: np.empty(1 << 59))
    status, _, err = dpgen("sample", release, "-n", 5, "-o", tmp_path / "a.csv")
    assert status == 2 and err.startswith("dpgen: out of memory: lower") and len(err.splitlines()) == 1
