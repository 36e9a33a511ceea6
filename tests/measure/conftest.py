"""Short fits, for tests that do not ask how good a fit is."""

import functools

import pytest

from lightning_dpgen.measure import basket_mixture, products


@pytest.fixture
def short_fits(monkeypatch):
    for module, name in ((products, "fit_products"), (basket_mixture, "fit_baskets")):
        monkeypatch.setattr(module, name, functools.partial(getattr(module, name), steps=30))
