"""One thread, so that tests which run beside others do not wait for each other."""

import pytest
import torch

torch.set_num_threads(1)
pytest.register_assert_rewrite("contracts.laws")


@pytest.fixture
def account_of():
    """Makes an account for one stage ``training`` with the given noise multipliers (0: not private)."""
    from contracts import laws

    return laws.account_of
