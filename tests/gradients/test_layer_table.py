"""The page of layers is in step with the code, names every layer of torch.nn that holds parameters, and none is wrong."""

import inspect
import re
from pathlib import Path

import opacus
import pytest
import torch
from gradients.layer_table import ROWS, ours, table
from torch import nn

from lightning_dpgen.gradients.engines import ENGINES

PAGE = Path(__file__).parents[2] / "docs/reference/layers.md"


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_the_page_is_what_is_found():
    """Else: python tests/gradients/layer_table.py > docs/reference/layers.md"""
    page = PAGE.read_text(encoding="utf-8")
    found = table()
    assert not re.findall(r"^\| [^|]* \| wrong.*", found, re.MULTILINE)
    versions = f"(torch {torch.__version__.split('+')[0]}, Opacus {opacus.__version__})"
    if versions in " ".join(page.split()):
        assert page == found


def test_the_other_engine_takes_the_same():
    taken = {
        name: [not ours(row, engine).startswith(("refused", "wrong")) for engine in ENGINES] for name, row in ROWS.items()
    }
    assert not [name for name, (ghost, func) in taken.items() if ghost != func]


def test_every_layer_that_holds_parameters_is_on_the_page():
    known = {name.split(",")[0] for name in ROWS}
    held = {name for name, kind in vars(nn).items() if inspect.isclass(kind) and _holds_parameters(kind)}
    others = {name for name in held if name.startswith("Lazy")} | {"RNNBase", "RNNCellBase"}
    assert len(held) > 20 and not held - known - others


def _holds_parameters(kind: type) -> bool:
    makes = [getattr(vars(base).get("__init__"), "__code__", None) for base in kind.__mro__ if base is not nn.Module]
    return any(code is not None and "Parameter" in code.co_names for code in makes)
