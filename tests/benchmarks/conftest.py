"""Benchmarks flush denormal numbers to zero, for the whole process: other tests of it want them back."""

import pytest
import torch


@pytest.fixture(autouse=True)
def denormals():
    yield
    torch.set_flush_denormal(False)
