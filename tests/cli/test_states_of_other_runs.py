"""A state saved by another run is never used: its numbers were paid for there, and may belong to other records."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records
from lightning_dpgen.plugins.accountant import LEDGER
from lightning_dpgen.plugins.split import PrivateSplitDataModule
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.runs import context, discover, project
from lightning_dpgen.runs import measure as measured_run
from lightning_dpgen.runs import select as selection
from lightning_dpgen.runs import train as trained_run
from lightning_dpgen.runs.context import Context
from lightning_dpgen.runs.interrupts import Interrupts
from lightning_dpgen.runs.run_folder import RunFolder
from lightning_dpgen.specs.usage_error import UsageError

SPLIT, SCHEMA = SplitSettings(k=2, iterations=1, features=4, dimensions=None), ImageSchema(1, 2, levels=4)


def _split(account, folder):
    records = Records(SCHEMA, Encoded(np.zeros((6, 2), np.uint8), np.zeros((6, 0), np.uint8)))
    return PrivateSplitDataModule(records, SPLIT, account, n=6, keep=folder.split).load()


def _projected(account, folder):
    projection = SimpleNamespace(scale=lambda plan: 1.0)
    settings = SimpleNamespace(projection=projection, best=SimpleNamespace(matrix="gaussian"))
    return project._draw(settings, None, account, folder, Interrupts())


def _run(account, folder):
    return Context(SimpleNamespace(spec=SimpleNamespace(protects_persons=False)), account, folder, Interrupts())


# For each file: its fields beside the head of the ledger, and the function that goes on from it.
READERS = {
    "split.pt": ({"state": {}}, _split),
    "measured.pt": (
        {"made": {}},
        lambda account, folder: measured_run._load_measured(
            _run(account, folder), SimpleNamespace(fits=lambda state: True)
        ),
    ),
    "bought.pt": ({"n": 7, "parts": {}}, discover.load_discovery),
    "fidelity.pt": ({"figure": {"error": 0.1}}, context.fidelity),
    "selection.pt": (
        {"kept": {}},
        lambda account, folder: selection._Trials._load(SimpleNamespace(_account=account, _folder=folder)),
    ),
    "projected.pt": ({"done": {}, "rows": torch.zeros(2, 2), "count": None}, _projected),
    "checkpoint.ckpt": (
        {"state_dict": {}},
        lambda account, folder: trained_run.restore(_run(account, folder), SimpleNamespace(load=dict), None),
    ),
}


def _interrupted(root):
    """Return the folder and the resumed account of a run that was interrupted after its first access."""
    folder = RunFolder(root)
    folder.private.mkdir(parents=True)
    stages = [Stage(spec.access(3.0), spec.count, 0.2) for spec in SPLIT.specs(6)]
    stages.append(Stage(Access("training", {"gradient": 3.0}), 3, 0.2))
    account = Account(Plan(tuple(stages), 8.0, 1e-5), folder.ledger)
    with account.open(stages[0].name) as access:
        for name in access.access.multipliers:
            access.consume(name)
    account.ledger.close()
    return folder, Account.resume(folder.ledger)


@pytest.fixture
def runs(tmp_path):
    made = [_interrupted(tmp_path / name) for name in ("own", "other")]
    yield made
    for _, account in made:
        account.ledger.close()


def _taken(name, account, folder, head, monkeypatch):
    """Return the values with which a run goes on, from a state that was saved where the ledger had that head."""
    fields, read = READERS[name]
    heads = {LEDGER: {"head": head, "done": {}}} if name == "checkpoint.ckpt" else {"head": head}
    durable.save(folder.private / name, heads | fields)
    return read(account, folder)


@pytest.mark.parametrize("name", READERS)
def test_a_state_is_taken_up_by_its_own_run_alone(runs, monkeypatch, name):
    (folder, account), (_, other) = runs
    before = account.ledger.accesses
    try:
        assert _taken(name, account, folder, other.ledger.head, monkeypatch) is None
        assert name == "fidelity.pt", "one that is only told may be left out"
    except LedgerError as error:
        assert "refers to lines that the ledger does not hold" in str(error) and name in str(error)
    except UsageError as error:
        assert name == "bought.pt" and "interrupted in its first pass" in str(error)
    assert account.ledger.accesses == before
    assert _taken(name, account, folder, account.ledger.head, monkeypatch) is not None


def test_no_state_is_left_out_above():
    folder = RunFolder(Path("run"))
    files = [getattr(folder, name) for name, found in vars(RunFolder).items() if isinstance(found, property)]
    states = {file.name for file in files if isinstance(file, Path) and file.suffix in (".pt", ".ckpt")}
    assert states == READERS.keys()
