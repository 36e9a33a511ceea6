"""Tables and settings at the edge of what makes sense: they work, or get one line and nothing is spent; also by `fit`."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from marks import but

from lightning_dpgen import fit
from lightning_dpgen.privacy import BudgetTooSmall

pytestmark = pytest.mark.filterwarnings("ignore")

SEX = {"type": "category", "values": ["F", "M"]}
ONE = {"type": "category", "values": ["x"]}
SCALED = {"type": "number", "encoding": "scaled"}
PRIVATE = {**SCALED, "low": "private", "high": "private"}
RANDOM = np.random.default_rng(0)
N = 300
FRAME = {
    "sex": RANDOM.choice(["F", "M"], N),
    "one": np.full(N, "x"),
    "year": np.full(N, 7),
    "code": RANDOM.integers(0, 10_000, N).astype(str),
    "share": RANDOM.random(N),
    "flat": np.full(N, 0.5),
    "nil": np.zeros(N),
    "far": np.full(N, 1e30),
}
FOUND = ["data.discovery_share=0.1", "data.outside=clamp"]

# The columns beside `sex`, the label if it is another one, settings, and the line; None where it works.
TABLES = {
    "a label of one class": ({"one": ONE}, "one", [], r"label: 'one' has 1 value: expected a column of 2 to 1,000 choices"),
    "a column of one value": ({"one": ONE}, "sex", [], None),
    "a number of one value": ({"year": {"type": "integer", "low": 7, "high": 7}}, "sex", [], None),
    "ten thousand categories": (
        {"code": {"type": "category", "values": [str(i) for i in range(10_000)]}},
        "sex",
        [],
        None,
    ),
    "lstm": ({}, "sex", ["model.network=lstm"], r"model\.network=lstm: is for series, and (data=table|frame) has none"),
    "a bound of 0": ({}, "sex", ["clipping=fixed", "clipping.c=0"], r"clipping\.c=0: expected a number from"),
    "a largest bound of 0": ({}, "sex", ["clipping=dpnorm", "clipping.c_max=0"], r"clipping\.c_max=0: expected a number"),
    "weights of 0": (
        {},
        "sex",
        ["model.loss=wgan_clip", "model.weight_bound=0"],
        r"model\.weight_bound=0: expected a number above 0",
    ),
    "steps between two of the generators": (
        {},
        "sex",
        ["model.critic_steps=3", "model.steps=5"],
        r"model\.steps=5: expected a multiple of model\.critic_steps=3",
    ),
    "a scaled column without bounds": ({"share": SCALED}, "sex", [], r"column 'share': low: is missing: expected a bound"),
    "a scaled column without a high": ({"share": {**SCALED, "low": 0}}, "sex", [], r"column 'share': high: .*expected"),
    "a scaled column of one number": (
        {"share": {**SCALED, "low": 1, "high": 1}},
        "sex",
        [],
        r"column 'share': encoding: .*too close",
    ),
    "bounds to be found, with nothing to pay them": ({"share": PRIVATE}, "sex", [], r"data\.discovery_share"),
    "bounds to be found": ({"share": PRIVATE}, "sex", FOUND, None),
    **{f"bounds to be found of {name}": ({name: PRIVATE}, "sex", FOUND, None) for name in ("flat", "nil", "far")},
    "bounds to be found of one whole number": ({"year": {**PRIVATE, "type": "integer"}}, "sex", FOUND, None),
    "random weights of public data": ({}, "sex", ["model.init_public=census"], r"model\.init_public=census: applies only"),
    "a start that is not there": (
        {},
        "sex",
        ["model.init=nowhere", "model.init_public=census"],
        r"model\.init=.*nowhere: .* is not a folder: expected a release",
    ),
    "a start without a declaration": ({}, "sex", ["model.init=nowhere"], r"model\.init=.*nowhere: training starts only"),
}  # fmt: skip
QUICK = ["model=wgan", "model.steps=2", "model.hidden=4", "model.made=2", "model.rate=0.1", "split.k=1", "rows=5"]


def _described(columns, label):
    return {"label": label, "columns": {"sex": SEX, **columns}}


def _words(settings):
    given = {word.partition("=")[0] for word in settings}
    return [*(word for word in QUICK if word.partition("=")[0] not in given), *settings]


@pytest.mark.parametrize(("columns", "label", "settings", "line"), but(TABLES, "ten thousand categories"))
def test_odd_tables_by_the_program(dpgen, tmp_path, monkeypatch, columns, label, settings, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.json").write_text(json.dumps(_described(columns, label)))
    pd.DataFrame({name: FRAME[name] for name in ("sex", *columns)}).to_csv("t.csv", index=False)
    words = ["data=table", "data.path=t.csv", "data.schema=t.json", f"data.n={N}", "privacy.epsilon=3", *_words(settings)]
    status, _, err = dpgen("train", *words, "run_dir=run")
    if line is None:
        assert status == 0, err
        assert dpgen("verify", "run")[0] == 0
    else:
        assert status == 2 and re.search(line, err) and len(err.splitlines()) == 1, err
        assert not (tmp_path / "run").exists()


REFUSED = {name: case for name, case in TABLES.items() if case[3] is not None}


@pytest.mark.parametrize(("columns", "label", "settings", "line"), REFUSED.values(), ids=REFUSED.keys())
def test_odd_tables_by_fit(tmp_path, columns, label, settings, line):
    frame = pd.DataFrame({name: FRAME[name] for name in ("sex", *columns)})
    with pytest.raises((ValueError, BudgetTooSmall)) as told:
        fit(frame, _described(columns, label), epsilon=3.0, n=N, run_dir=tmp_path / "run", overrides=_words(settings))
    said = re.sub(r"data\\\.", "", line)
    assert re.search(said, str(told.value)) and len(str(told.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()
