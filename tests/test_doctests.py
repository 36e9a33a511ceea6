"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import linecache
import pkgutil
from pathlib import Path

import pytest

import lightning_dpgen

ROOT = Path(lightning_dpgen.__file__).parents[1]
MODULES = [info.name for info in pkgutil.walk_packages(lightning_dpgen.__path__, "lightning_dpgen.") if not info.ispkg]


def _has_examples(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return ">>>" in path.with_suffix(".py").read_text(encoding="utf-8")


def test_every_module_can_be_imported():
    for name in MODULES:
        importlib.import_module(name)


@pytest.mark.parametrize("name", filter(_has_examples, MODULES))
def test_examples(name, monkeypatch):
    # For each example, a debugger that is never used would look at every file that was read on the way.
    monkeypatch.setattr(linecache, "checkcache", lambda path=None: None)
    module = importlib.import_module(name)
    names = {key: getattr(module, key) for key in dir(module)}
    for extra in ("gaussian", "Access", "np", "torch"):
        names.setdefault(extra, _known(extra))
    result = doctest.testmod(module, extraglobs=names, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def _known(name: str):
    import numpy as np
    import torch

    from lightning_dpgen.privacy.access import Access
    from lightning_dpgen.privacy.mechanisms import gaussian

    return {"gaussian": gaussian, "Access": Access, "np": np, "torch": torch}[name]
