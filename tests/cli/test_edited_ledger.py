"""A run whose ledger was edited and chained again goes on, or says in one line why it does not."""

import copy
import json
import random
import shutil

import pytest

from lightning_dpgen.privacy import chain
from lightning_dpgen.runs.run_folder import RunFolder

pytestmark = pytest.mark.filterwarnings("ignore")

WRONG = (None, True, -1, 2, "x", [], {}, {"x": [1]}, [["a"]])
RUNS = {
    "measured": ["data.classes=0", "model.cells=2", "data.n=1700"],
    "counted": ["data.classes=0", "model.cells=2", "data.n=null", "data.n_share=0.1"],
}


def _places(value, before=()):
    if before:
        yield before
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _places(value[key], (*before, key))


@pytest.mark.parametrize(
    "settings",
    [pytest.param(words, id=name, marks=() if name == "counted" else pytest.mark.slow) for name, words in RUNS.items()],
)
def test_whatever_a_line_says(dpgen, tmp_path, interrupted_when_kept, settings):
    words = ["train", "model=measured", "rows=9", *settings]
    with interrupted_when_kept(1):
        assert dpgen(*words, f"run_dir={tmp_path / 'whole'}")[0] == 130
    whole = tmp_path / "whole/private/ledger.jsonl"
    lines = [{k: v for k, v in json.loads(line).items() if k != "check"} for line in whole.read_text().splitlines()]
    places = [(number, place) for number, line in enumerate(lines) for place in _places(line)]
    # Everything else is read by the values high up in the tree.
    few = [at for at in places if len(at[1]) <= 2]
    random_, refused = random.Random(7), 0
    for number, place in [*random_.sample(few, min(len(few), 16)), *random_.sample(places, 6)]:
        edited, wrong = copy.deepcopy(lines), random_.choice(WRONG)
        parent = edited[number]
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = wrong
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "run")
        heads, text = chain.seal_lines("", edited)
        ledger = RunFolder(tmp_path / "run").ledger
        ledger.write_bytes(text)
        chain.heads_file(ledger).write_text(f"{heads[-1]}\n")
        status, _, err = dpgen(*words, f"run_dir={tmp_path / 'run'}")
        refused += status != 0
        said = err.strip().splitlines()
        assert status in (0, 2, 3) and (status == 0 or said[-1].startswith("dpgen: ")), (number, place, wrong, err)
    assert refused > 5


def test_a_plan_of_other_stages_is_refused(dpgen, tmp_path, interrupted_when_kept):
    words = ["train", "model=measured", "rows=9", *RUNS["measured"], f"run_dir={tmp_path / 'run'}"]
    with interrupted_when_kept(1):
        assert dpgen(*words)[0] == 130
    ledger = RunFolder(tmp_path / "run").ledger
    lines = [{k: v for k, v in json.loads(line).items() if k != "check"} for line in ledger.read_text().splitlines()]
    lines[0]["plan"]["stages"][-1]["stage"] = "another"
    heads, text = chain.seal_lines("", lines)
    ledger.write_bytes(text)
    chain.heads_file(ledger).write_text(f"{heads[-1]}\n")
    status, _, err = dpgen(*words)
    assert status == 2 and "holds a plan of the stages" in err and len(err.splitlines()) == 1
