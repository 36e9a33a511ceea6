"""Public records at which the private split starts, from a file."""

from __future__ import annotations

import numpy as np
import torch

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.specs.usage_error import UsageError

ENDING = ".npy"


def read_centres(path: str, k: int, width: int) -> torch.Tensor:
    """Return (k, width) float32 public records.

    Raises:
        UsageError: if there is no such file, or it holds something else.
    """
    expected = f"expected ({k}, {width:,}) numbers from 0 to 1, a public record for each of split.k clusters"
    file = place_of(path)
    if not file.is_file():
        raise UsageError(f"split.start={path}: there is no such file; {expected}")
    try:
        centres = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise UsageError(f"split.start={path}: is not a numpy array; {expected}") from None
    if not isinstance(centres, np.ndarray) or centres.dtype.kind not in "buif":
        raise UsageError(f"split.start={path}: does not hold numbers; {expected}")
    if centres.shape != (k, width):
        raise UsageError(f"split.start={path}: has shape {centres.shape}; {expected}")
    # NaN fails too.
    if not ((centres >= 0) & (centres <= 1)).all():
        raise UsageError(f"split.start={path}: holds NaN, or numbers below 0 or above 1; {expected}")
    return torch.from_numpy(centres.astype(np.float32))
