"""The mark of tests that need a GPU; they are skipped without one."""

import pytest
import torch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
