"""Benchmarks flush denormal numbers to zero in the whole process; other tests in it need them back."""

import pytest
import torch


@pytest.fixture(autouse=True)
def denormals():
    yield
    torch.set_flush_denormal(False)
