"""Settings of all tests: one thread each, so that tests that run side by side do not wait for each other."""

import collections
import functools
import gc
import importlib.metadata
import itertools
import os
import random
import sys

# Torch reads them when it is imported, as do the programs that tests start.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# A slow machine would show stages in the middle of what a program says; tests of them turn it on.
os.environ["TQDM_DISABLE"] = "1"

import pytest
from hypothesis import HealthCheck, settings

# Each worker, and each program that a test starts, would compile the package anew.
sys.dont_write_bytecode = False
# Nothing that collection makes is garbage, and looking for some takes a quarter of its time.
gc.disable()

# Each trainer would look through all that is installed for callbacks.
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)

# Nothing of the package is imported here: the process that only hands tests to the workers needs none of it.
pytest.register_assert_rewrite("contracts")

# A busy machine is no failure.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


# Folders whose subject is no part of the package: their tests are run where they change, and before a release.
_EXTRA = ("benchmarks", "experiments")


def pytest_itemcollected(item):
    if item.path.parent.name in _EXTRA:
        item.add_marker(pytest.mark.slow)


def pytest_collection_finish(session):
    """Leave what is imported out of each collection of garbage, and make these few."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Leave out what a file of tests has left, too: tests that collect garbage are many, and caches grow."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Print the seconds of each folder of tests, as the workers took them: CONTRIBUTING.md says what each may take."""
    seconds = collections.Counter()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            folder = report.nodeid.partition("::")[0].removeprefix("tests/").rpartition("/")[0]
            seconds[folder.partition("/")[0] or "tests"] += report.duration
    if not seconds:
        return
    folders = ", ".join(f"{folder} {taken:.0f}" for folder, taken in seconds.most_common())
    terminalreporter.write_line(f"seconds by folder: {folders}; together {sum(seconds.values()):.0f}")


@pytest.fixture(scope="session", autouse=True)
def _quick_syncs():
    """Let files of tests wait for no disk; a file that is closed is still refused, and programs that are started sync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: os.fstat(file) and None)
        yield


@pytest.fixture(scope="session", params=["standard", "secure"])
def stream_of(request):
    """Return a maker of repeatable streams of both kinds; a secure one takes no seed, so it is given fixed keys."""
    from lightning_dpgen.privacy.noise.stream import PrivateStream

    def make(seed):
        if request.param == "standard":
            return PrivateStream(seed=seed)
        stream = PrivateStream(secure=True)
        stream._bits._entropy = random.Random(seed).randbytes
        return stream

    return make


@pytest.fixture
def account_of():
    """Return a maker of accounts for one stage ``training`` with the given noise multipliers (0: not private)."""
    from contracts.laws.accounts import account_of

    return account_of


@pytest.fixture
def fits_of(monkeypatch):
    """Return a function that gives fits to noisy sums so many steps."""
    from lightning_dpgen.measure import basket_mixture, series, tables

    def shorten(steps):
        monkeypatch.setattr(series, "_STEPS", steps)
        for module, name in ((tables, "fit_forest"), (basket_mixture, "fit_baskets")):
            monkeypatch.setattr(module, name, functools.partial(getattr(module, name), steps=steps))

    return shorten


@pytest.fixture
def short_fits(fits_of, monkeypatch):
    """Shorten fits for tests that do not ask how good they are."""
    from lightning_dpgen.measure import basket_mixture, labels, moments

    fits_of(30)
    monkeypatch.setattr(basket_mixture, "_FITS", 1)
    monkeypatch.setattr(labels, "_MADE", 500)
    monkeypatch.setattr(moments, "_DRAWS", 2000)
