"""The number of records whose gradients fit into memory, from two lots of made-up records."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Lots whose memory is compared, and the part of what is free that a lot may take: allocators waste some of it, and so do
# others on the machine.
_SMALL, _LARGE, _PART = 2, 6, 0.5


def records_that_fit(compute: Callable[[int], Any], device: torch.device) -> int:
    """Return the number of records for which a computation takes half of the memory that is free, at least 1.

    Args:
        compute: is called with a number of records, of which it makes as many up.
        device: where it computes.

    Example:
        >>> records_that_fit(lambda n: torch.zeros(n, 10**9).exp() if n < 2 else torch.zeros(n, 10**5).exp(),
        ...                  torch.device("cpu")) > 100
        True
    """
    # The first call may make tables that stay.
    compute(_SMALL)
    small, large = (_peak(compute, n) for n in (_SMALL, _LARGE))
    each = max((large - small) / (_LARGE - _SMALL), 1.0)
    return max(1, int((_PART * free_memory(device) - (small - _SMALL * each)) / each))


def _peak(compute: Callable[[int], Any], n: int) -> int:
    with _Bytes() as mode:
        compute(n)
    return mode.peak


class _Bytes(TorchDispatchMode):
    """A mode that counts the bytes of the tensors that are made in it and still held.

    Attributes:
        peak: the largest number of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._held = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and x.layout == torch.strided:
                self._add(x.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self._held += size
        self.peak = max(self.peak, self._held)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self._held -= size


def free_memory(device: torch.device) -> int:
    """Return the bytes of memory that are free on a device; in a container, those that its limit leaves."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    except OSError:  # no Linux
        found = None
    whole = 1024 * int(found[1]) if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min([whole, *_within_limits(Path("/"))])


# The files of a control group that say its limit and what it has taken, and the line of `memory.stat` for files that can be
# let go of; by the controller that a line of `/proc/self/cgroup` names: none in version 2.
_CONTROLLERS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def _within_limits(root: Path) -> Iterator[int]:
    """Yield the bytes that are left to each control group of this process that has a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name in {*controllers.split(",")} & {*_CONTROLLERS}:
            top, limit, usage, files = _CONTROLLERS[name]
            # A container sees its own group at the top, whatever its path is outside.
            for group in (Path(path), *Path(path).parents):
                own = root / top / group.relative_to("/")
                # A limit may be the word max.
                with suppress(OSError, ValueError):
                    most, taken = (int((own / part).read_text(encoding="ascii")) for part in (limit, usage))
                    found = re.search(rf"^{files} (\d+)$", (own / "memory.stat").read_text(encoding="ascii"), re.MULTILINE)
                    yield max(most - taken + (int(found[1]) if found else 0), 0)
