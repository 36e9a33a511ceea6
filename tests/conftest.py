"""One thread, so that tests which run beside others do not wait for each other."""

import pytest
import torch

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage

torch.set_num_threads(1)


@pytest.fixture
def account_of():
    """Makes an account for one stage ``training`` with the given noise multipliers (0: not private)."""

    def make(multipliers, *, count=1, rate=1.0, ledger=None):
        stage = Stage(Access("training", multipliers, rate), count, share=1.0)
        return Account(Plan((stage,), target_epsilon=1.0, delta=1e-5), ledger, PrivateStream(seed=0))

    return make
