"""Each function of torch's own test database, called with the records of a lot: no other record changes one's result.

The database gives arguments for some 700 functions. A tensor among them becomes a lot in two ways: as it is, so that a
record has one dimension fewer than the function asks for, and three times beside itself. Each function runs in a child,
since a few follow numbers to any place in memory. A record's place in the lot changes nothing, either. 5 to 10 minutes.
"""

import itertools
import os
import pickle
import signal
import warnings

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_dpgen.gradients.isolation import Isolation

pytestmark = pytest.mark.slow

# Samples of each function, at most.
SAMPLES = 40
# Products round a row in ways that depend on the number of rows.
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4, "equal_nan": True}


def _others(rows: Tensor, i: int):
    """Give lots with the same i-th record and other records beside it."""
    for change in (lambda x: ~x if x.dtype == torch.bool else x + 1, lambda x: x.flip(0), lambda x: x * 0):
        changed = change(rows)
        changed[i] = rows[i]
        yield changed


def _placed(sample, place):
    """Give a tensor of a sample, and the sample's arguments with another one in its place."""
    if place == "input":
        return sample.input, lambda x: ((x, *sample.args), sample.kwargs)
    if isinstance(place, int):
        return sample.args[place], lambda x: (
            (sample.input, *sample.args[:place], x, *sample.args[place + 1 :]),
            sample.kwargs,
        )
    return sample.kwargs[place], lambda x: ((sample.input, *sample.args), sample.kwargs | {place: x})


def _lots(x: Tensor):
    if x.dim() and 2 <= x.shape[0] <= 12 and x.numel():
        yield x.clone()
    if 0 < x.numel() < 500:
        yield torch.stack([x, ~x if x.dtype == torch.bool else x + 1, x])


def _isolated(function, rows: Tensor, seed: int = 0):
    torch.manual_seed(seed)
    return [x for x in tree_leaves(Isolation(len(rows)).run(function, rows)) if isinstance(x, Tensor)]


def _alike(found: list[Tensor], other: list[Tensor], i: int, j: int | None = None) -> bool:
    """Compare the results of the i-th record with those of the j-th in another lot; its own place by default."""
    wide, j = torch.complex128, i if j is None else j
    return all(
        x[i].shape == y[j].shape and torch.allclose(x[i].to(wide), y[j].to(wide), **TOLERANCE)
        for x, y in zip(found, other, strict=True)
        if x.numel() or y.numel()
    )


def _faults(operator) -> tuple[int, list[str]]:
    """Count the calls that are accepted, and name those in which a record's result follows from others."""
    accepted, faults = 0, []
    for dtype in {torch.float32, torch.int64} & operator.supported_dtypes("cpu"):
        for sample in itertools.islice(operator.sample_inputs("cpu", dtype, requires_grad=False), SAMPLES):
            places = ["input", *range(len(sample.args)), *sample.kwargs]
            for place in places:
                x, arguments = _placed(sample, place)
                if not isinstance(x, Tensor) or x.layout != torch.strided:
                    continue

                def function(row, arguments=arguments):
                    args, kwargs = arguments(row)
                    return operator(*args, **kwargs)

                for rows in _lots(x):
                    try:
                        found = _isolated(function, rows.clone())
                    except Exception:
                        continue
                    accepted += 1
                    for i in (0, len(rows) - 1):
                        for other in _others(rows, i):
                            try:
                                beside = _isolated(function, other)
                            except Exception:
                                continue
                            if not _alike(found, beside, i):
                                faults.append(f"{operator.full_name}: {place}, {tuple(rows.shape)}, {sample.kwargs}")
                    try:
                        turned, again = _isolated(function, rows.flip(0)), _isolated(function, rows.clone(), seed=1)
                    except Exception:
                        continue
                    # Random numbers are private in a run, and go by position.
                    drawn = not all(_alike(found, again, i) for i in range(len(rows)))
                    if not drawn and not all(_alike(found, turned, i, -1 - i) for i in range(len(rows))):
                        faults.append(f"{operator.full_name}: {place}, {tuple(rows.shape)}, by its place in the lot")
    return accepted, faults


def _in_a_child(operator) -> tuple[int, list[str]]:
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(120)
        warnings.simplefilter("ignore")
        with os.fdopen(writing, "wb") as file:
            pickle.dump(_faults(operator), file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        told = file.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(told) if told and not status else (0, [f"{operator.full_name}: ended with status {status}"])


def test_no_record_changes_the_result_of_another():
    # The import takes seconds.
    from torch.testing._internal.common_methods_invocations import op_db

    results = [_in_a_child(operator) for operator in op_db]
    assert sum(accepted for accepted, _ in results) > 15_000
    assert [fault for _, faults in results for fault in faults] == []
