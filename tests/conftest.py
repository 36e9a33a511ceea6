"""One thread, so that tests which run beside others do not wait for each other."""

import functools
import os
import random

# Before torch is imported, and for the programs that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import HealthCheck, settings

from lightning_dpgen.measure import basket_mixture, products
from lightning_dpgen.privacy.noise import PrivateStream

torch.set_num_threads(1)
pytest.register_assert_rewrite("contracts")

# A busy machine is no failure.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(scope="session", params=["standard", "secure"])
def stream_of(request):
    """Makes repeatable streams of both kinds; a secure one takes no seed, so a test puts fixed keys into it."""

    def make(seed):
        if request.param == "standard":
            return PrivateStream(seed=seed)
        stream = PrivateStream(secure=True)
        stream._bits._entropy = random.Random(seed).randbytes
        return stream

    return make


@pytest.fixture
def account_of():
    """Makes an account for one stage ``training`` with the given noise multipliers (0: not private)."""
    from contracts import laws

    return laws.account_of


@pytest.fixture
def short_fits(monkeypatch):
    """For tests that do not ask how good a fit is."""
    for module, name in ((products, "fit_products"), (basket_mixture, "fit_baskets")):
        monkeypatch.setattr(module, name, functools.partial(getattr(module, name), steps=30))
