"""In a notebook an error for a person is one line; one of another library, or a fault, keeps its frames."""

import numpy as np
import pandas as pd
import pytest

from lightning_dpgen import fit
from lightning_dpgen.runs.notebook import short_in_notebooks

FRAME = pd.DataFrame({"a": [1, 2] * 200})
SCHEMA = {"columns": {"a": {"type": "integer", "low": 0, "high": 9}}}
WRONG = {
    "a value": (SCHEMA, {"epsilon": -1.0}),
    "a setting": (SCHEMA, {"epsilon": 1.0, "overrides": ["model.lrr=3"]}),
    "a budget": (SCHEMA, {"epsilon": 1e-5}),
    "a schema": ({"columns": {"a": {"type": "integr"}}}, {"epsilon": 1.0}),
    "records": ({"columns": {"b": {"type": "integer", "low": 0, "high": 9}}}, {"epsilon": 1.0}),
}


@pytest.mark.parametrize(("schema", "given"), WRONG.values(), ids=WRONG.keys())
def test_a_mistake_is_one_line(tmp_path, monkeypatch, schema, given):
    """IPython asks an error for its lines by this name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception) as raised:
        fit(FRAME, schema, n=400, **given)
    (line,) = raised.value._render_traceback_()
    assert line == f"{type(raised.value).__name__}: {raised.value}" and "\n" not in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "fail", [lambda: np.zeros(2) + np.zeros(3), lambda: 1 / 0, lambda: [][1]], ids=["numpy's", "a fault", "an index"]
)
def test_any_other_error_keeps_its_frames(fail):
    with pytest.raises(Exception) as raised:
        short_in_notebooks(fail)()
    assert not hasattr(raised.value, "_render_traceback_")
