"""A process in which Triton interprets: it reads so when it is imported, which other tests may have done here."""

import concurrent.futures
import functools
import importlib
import multiprocessing
import os

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def process():
    """Return the process, which the first test starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        pool.submit(int).result()
    return pool


def _call(module, name, case):
    getattr(importlib.import_module(module), name)(**case)


def interpreted(test):
    """Run a test where Triton interprets."""

    @functools.wraps(test)
    def elsewhere(**case):
        process().submit(_call, test.__module__, test.__name__, case).result(timeout=300)

    return test if INTERPRETED else elsewhere


@pytest.fixture(scope="module", autouse=True)
def ended_process():
    """End the process after the tests of a module."""
    yield
    if process.cache_info().currsize:
        process().shutdown()
        process.cache_clear()
