"""Simulated sets are trained on with privacy like any records, and a comparison reads the draw that was learned from."""

import numpy as np
import pytest

from lightning_dpgen.cli.real_records import other_draw, real_source
from lightning_dpgen.common.strict_json import read_json
from lightning_dpgen.data.public_sets import NAMES, NO_PEOPLE, load_public_set, public_set
from lightning_dpgen.data.schema import kind_of

pytestmark = pytest.mark.filterwarnings("ignore")
# One of them takes two seconds, and all a quarter of a minute.
SIMULATED = [
    pytest.param(name, marks=[pytest.mark.slow] * (name != "pinwheel"))
    for name in NAMES
    if public_set(name).draw is not None
]
STEP = ["data.n=300", "data.draw=3", "model=vae", "model.steps=1", "rows=20"]


def _units(records):
    return records.toarray() if hasattr(records, "toarray") else np.asarray(records)


@pytest.mark.parametrize("name", SIMULATED)
def test_the_records_of_a_training_are_read_again_by_their_name(dpgen, tmp_path, name):
    status, out, err = dpgen("train", f"data={name}", *STEP, f"run_dir={tmp_path / 'run'}")
    assert status == 0, err
    certificate = read_json(tmp_path / "run/release/privacy.json")
    declared = certificate["declared"]
    assert certificate["private"] and (declared["data"], declared["n"], declared["draw"]) == (name, 300, 3)
    assert "CONSISTENT" in dpgen("verify", tmp_path / "run/release")[1]
    assert f"300 records, {NO_PEOPLE}, take part" in out
    for page in ("README.md", "report.html"):
        assert f"Made from {NO_PEOPLE}" in (tmp_path / "run/release" / page).read_text(encoding="utf-8")
    kind = kind_of(public_set(name).schema).name
    for words, draw, n in (([], 3, 300), (["data.draw=4"], 4, 300), (["data.n=50"], 3, 50)):
        source = real_source([f"data={name}", *words], certificate, kind)
        warned = other_draw(source.spec, certificate)
        assert (warned is None) == (not words) and (warned is None or warned.startswith(f"{words[0]}: the certificate has"))
        for held_out in (False, True):
            read = source.records(source.declare(), held_out=held_out)[0].encoded
            expected = load_public_set(name, held_out=held_out, n=n, draw=draw).encoded
            assert np.array_equal(_units(read.units), _units(expected.units)) and np.array_equal(read.codes, expected.codes)
