"""The mark of tests that need a GPU; they are skipped without one."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: run tests/on_gpu, tests/gradients and tests/optim where there is one"
)

# Where a test runs that does not need a GPU.
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def cases_on_gpu(cases: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cases of a test that needs a GPU: none without one, since to skip hundreds takes seconds."""
    return dict(cases) if torch.cuda.is_available() else {}
