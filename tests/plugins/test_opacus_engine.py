"""A loop written for Opacus under an account: its optimizer, its sampler and its ledger, and no way round them."""

import math

import numpy as np
import pytest
import torch
from contracts.laws.steps import network_of_two_layers
from opacus import GradSampleModule, PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import ChainDataset, DataLoader, Dataset, TensorDataset, WeightedRandomSampler

from lightning_dpgen import Account, AccountEngine, PoissonLots, PrivateOptimizer
from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson

# Opacus hooks modules that PyTorch warns about (full backward hooks on a layer whose inputs are records).
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ROWS = 3 * torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
RATE, STEPS = 0.25, 10


def _account(noise=1.0, *, steps=STEPS, rate=RATE, seed=5, ledger=None, max_rows=1):
    stage = Stage(Access("training", {"gradient": noise}, Poisson(rate)), steps, 1.0)
    stream = PrivateStream() if seed is None else PrivateStream(seed=seed)
    return Account(Plan((stage,), 1e3, 1e-5, max_rows=max_rows), ledger, stream)


def _made(account, data=ROWS, *, loader=None, **more):
    """Return module, optimizer and loader of a small network."""
    network = network_of_two_layers()
    loader = loader or DataLoader(TensorDataset(data), batch_size=7, shuffle=True)
    inner = torch.optim.SGD(network.parameters(), lr=0.1)
    more = {"max_grad_norm": 1.0, "expected_batch_size": 10.0} | more
    return AccountEngine(account).make_private(module=network, optimizer=inner, data_loader=loader, **more)


def _step(network, optimizer, rows):
    optimizer.zero_grad()
    (5 * network(rows)).mean().backward()
    optimizer.step()


def _flat(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def _by_hand(account, bound=1.0):
    """Take the same steps, with lots of `PoissonLots` and the ghost engine."""
    network, lots = network_of_two_layers(), PoissonLots(ROWS, account)
    optimizer = PrivateOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.1), account=account, clipping=Fixed(bound), expected_batch_size=10.0
    )
    optimizer.rehearse()
    term = PerRecord(lambda lot, _: 5 * network(lot.records)[:, 0])
    for _ in range(STEPS):
        lot = lots.draw()
        # The term draws nothing, and the private stream has to stay where it is.
        optimizer.set_gradients(term_gradients(network, term, lot, PrivateStream(seed=0), noise=torch.empty(len(lot), 0)))
        optimizer.step()
    return _flat(network)


@pytest.mark.parametrize("bound", [1.0, 10.8, 1e6])
@pytest.mark.parametrize("size", [None, 3], ids=["whole", "in parts"])
@pytest.mark.parametrize("loss_reduction", ["mean", "sum"])
def test_a_loop_of_opacus_is_the_loop_of_the_account(size, loss_reduction, bound):
    """The same private stream: the same lots, bounds, noise and steps, however gradients are computed.

    Bounds are such that all gradients are longer, some, or none: a length that is wrong shows where it is not cut.
    """
    account = _account(noise=0.3 / bound)
    network, optimizer, loader = _made(account, loss_reduction=loss_reduction, max_grad_norm=bound)
    kinds = GradSampleModule, PrivateOptimizer, DPDataLoader
    assert all(isinstance(made, kind) for made, kind in zip((network, optimizer, loader), kinds, strict=True))
    assert loader.sample_rate == RATE and len(loader) == 4
    reduce = torch.mean if loss_reduction == "mean" else torch.sum
    taken = 0
    for _ in range(5):  # passes of four batches each, where the plan has steps for two and a half
        if size is None:
            batches = loader
        else:
            batches = BatchMemoryManager(data_loader=loader, max_physical_batch_size=size, optimizer=optimizer).__enter__()
        for (rows,) in batches:
            optimizer.zero_grad()
            reduce(5 * network(rows)).backward()
            optimizer.step()
            taken += 1
    assert taken == STEPS if size is None else taken > STEPS
    account.verify_complete()
    torch.testing.assert_close(_flat(network), _by_hand(_account(noise=0.3 / bound), bound), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss_reduction", ["mean", "sum"])
def test_a_record_more_leaves_the_gradients_of_all_others_as_they_were(loss_reduction):
    """And each is that of its record alone, whatever the lot."""
    network, _, _ = _made(_account(), loss_reduction=loss_reduction)

    def each(rows):
        network.zero_grad()
        getattr(5 * network(rows), loss_reduction)().backward()
        return torch.cat([p.grad_sample.flatten(1) for p in network.parameters()], dim=1)

    alone = torch.cat([each(row[None]) for row in ROWS[:6]])
    for size in (2, 5, 6):
        torch.testing.assert_close(each(ROWS[:size]), alone[:size], rtol=1e-5, atol=1e-6)


def test_the_optimizer_is_kept_and_its_rules_count():
    account = _account()
    network = network_of_two_layers()
    ours = PrivateOptimizer(
        torch.optim.Adam(network.parameters()), account=account, clipping=Fixed(0.5), expected_batch_size=10.0
    )
    made = AccountEngine(account).make_private(module=network, optimizer=ours, data_loader=DataLoader(TensorDataset(ROWS)))
    assert made[1] is ours
    for (rows,) in made[2]:
        _step(made[0], ours, rows)
    assert ours.last_bound == 0.5 and account.ledger.count("training") == 4


def test_lots_are_the_accounts_and_nobody_elses():
    """The seed of torch changes nothing; the size of all lots together is within 5.5 standard deviations."""
    batches = []
    for public in (0, 1):
        torch.manual_seed(public)
        account = _account(steps=400)
        _, optimizer, loader = _made(account, torch.arange(40.0)[:, None].expand(40, 3))
        found = []
        while len(found) < 400:
            for (rows,) in loader:
                found.append(rows[:, 0].tolist())
                optimizer._between_steps.next.expected = None  # as after a step
        batches.append(found)
    assert batches[0] == batches[1]
    total, deviation = sum(map(len, batches[0])), math.sqrt(400 * 40 * RATE * (1 - RATE))
    assert abs(total - 400 * 40 * RATE) < 5.5 * deviation and len({len(lot) for lot in batches[0]}) > 5
    assert all(lot == sorted(set(lot)) for lot in batches[0])


class Fields(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return {"x": ROWS[i], "of": (torch.tensor(i), ROWS[i, 0])}


def test_a_lot_of_no_record_is_a_batch_of_its_form_and_takes_a_step():
    """Also where it is the first: nothing is learned from the records about the form."""
    account = _account(rate=0.02, steps=30)
    network, optimizer, loader = _made(account, loader=DataLoader(Fields(), batch_size=2))
    sizes = []
    for batch in loader:
        assert batch["x"].shape[1:] == (3,) and batch["of"][0].dtype == torch.int64 and len(batch["of"]) == 2
        sizes.append(len(batch["x"]))
        _step(network, optimizer, batch["x"])
    assert sizes[0] == 0 and len(sizes) == 30 == account.ledger.count("training")


def test_records_of_a_person_are_drawn_together():
    account, persons = _account(max_rows=4), np.repeat(np.arange(10), 4)
    with pytest.raises(ValueError, match="give the person of each record"):
        _made(account)
    _, optimizer, loader = _made(account, torch.arange(40.0)[:, None].expand(40, 3), persons=persons)
    for (rows,) in loader:
        optimizer._between_steps.next.expected = None
        assert (np.bincount(rows[:, 0].long() // 4, minlength=10) % 4 == 0).all()


def test_workers_fetch_ahead_and_each_batch_has_its_draw():
    ends = []
    for workers in (0, 2):
        account = _account(noise=0.3)
        loader = DataLoader(TensorDataset(ROWS), num_workers=workers)
        network, optimizer, loader = _made(account, loader=loader)
        for _ in range(3):
            for (rows,) in loader:
                _step(network, optimizer, rows)
        account.verify_complete()
        ends.append(_flat(network))
    # The stream keeps noise for a few steps, so drawing lots ahead changes none of it.
    assert torch.equal(*ends)


# Batches that must not be believed


def test_a_batch_that_is_left_without_a_step_ends_the_pass():
    account = _account()
    network, optimizer, loader = _made(account)
    batches = iter(loader)
    next(batches)
    with pytest.raises(RuntimeError, match=r"left without a step(.|\n)*nothing was charged"):
        next(batches)
    assert not account.ledger.accesses
    for (rows,) in loader:
        _step(network, optimizer, rows)
        break
    for (rows,) in loader:
        _step(network, optimizer, rows)
    assert account.ledger.count("training") == 5


@pytest.mark.parametrize("how", ["twice", "another loader", "two batches", "half a batch"])
def test_what_was_not_drawn_for_this_step_is_refused(how):
    account = _account()
    network, optimizer, loader = _made(account)
    (rows,) = next(iter(loader))
    charged = 0
    if how == "twice":
        _step(network, optimizer, rows)
        charged = 1
    elif how == "another loader":
        (rows,) = next(iter(DataLoader(TensorDataset(ROWS), batch_size=len(rows) + 3, shuffle=True)))
    elif how == "two batches":
        rows = torch.cat([rows, next(iter(loader))[0]])
    else:
        rows = rows[: len(rows) // 2]
    with pytest.raises((LedgerError, RuntimeError), match="Nothing was charged"):
        _step(network, optimizer, rows)
    assert account.ledger.count("training") == charged


def test_two_loaders_in_turn_are_two_passes():
    """The batch of one that is not the last drawn is refused by its size, and a step is never taken with two draws."""
    account = _account(steps=50)
    network, optimizer, first = _made(account)
    second = AccountEngine(account).make_private(
        module=network, optimizer=optimizer, data_loader=DataLoader(TensorDataset(ROWS))
    )[2]
    for (rows,) in first:
        _step(network, optimizer, rows)
    for (rows,) in second:
        _step(network, optimizer, rows)
    assert account.ledger.count("training") == 8
    refused = 0
    for (early,), (late,) in zip(first, second, strict=True):
        if len(early) != len(late):
            with pytest.raises(RuntimeError, match="Nothing was charged"):
                _step(network, optimizer, early)
            refused += 1
    assert refused and account.ledger.count("training") == 8


def test_stock_make_private_does_not_get_the_optimizer():
    """It would take the torch optimizer out of it, and train with noise of its own beside an empty ledger."""
    account, network = _account(), network_of_two_layers()
    inner = torch.optim.SGD(network.parameters(), lr=0.1)
    ours = PrivateOptimizer(inner, account=account, clipping=Fixed(1.0), expected_batch_size=10.0)
    before = _flat(network)
    with pytest.raises(AttributeError, match=r"AccountEngine\(account\).make_private"):
        PrivacyEngine().make_private(
            module=network, optimizer=ours, data_loader=DataLoader(TensorDataset(ROWS)),
            noise_multiplier=1.0, max_grad_norm=1.0,
        )  # fmt: skip
    assert torch.equal(before, _flat(network)) and not account.ledger.accesses


def _stock(network):
    inner = torch.optim.SGD(network.parameters(), lr=0.1)
    return DPOptimizer(inner, noise_multiplier=0.1, max_grad_norm=1.0, expected_batch_size=4)


REFUSED = {
    "noise_multiplier": {"noise_multiplier": 0.5},
    "max_grad_norm": {"max_grad_norm": None},
    "expected_batch_size": {"expected_batch_size": None},
    "noise_generator": {"noise_generator": torch.Generator()},
    "poisson_sampling": {"poisson_sampling": False},
    "clipping": {"clipping": "per_layer"},
    "rand_on_empty": {"rand_on_empty": True},
    "grad_sample_mode": {"grad_sample_mode": "ghost_fsdp"},
    "criterion": {"criterion": nn.MSELoss()},
    "batch_first=False: expected True": {"grad_sample_mode": "ghost", "batch_first": False},
    "wrap_model=False: expected True": {"grad_sample_mode": "ghost", "wrap_model": False},
    "target_unclipped_quantile": {"target_unclipped_quantile": 0.5},
    "is in no ledger": {"optimizer": _stock},
    "another account or stage": {
        "optimizer": lambda network: PrivateOptimizer(
            torch.optim.SGD(network.parameters(), lr=0.1), account=_account(), clipping=Fixed(1.0), expected_batch_size=4.0
        )
    },
    "not of the module": {"optimizer": lambda network: torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)},
    "sampler of its own": {"data_loader": DataLoader(TensorDataset(ROWS), sampler=WeightedRandomSampler([1.0] * 40, 9))},
    "by a sampler": {"data_loader": DataLoader(TensorDataset(ROWS), batch_sampler=[[0, 1], [1, 2]])},
    "the plan says 0.25": {"data_loader": DPDataLoader(TensorDataset(ROWS), sample_rate=0.1)},
    "data_loader.dataset is a TensorDataset without items": {"data_loader": DataLoader(TensorDataset(ROWS[:0]))},
    "data_loader is a TensorDataset: expected a DataLoader": {"data_loader": TensorDataset(ROWS)},
    "data_loader.dataset is an IterableDataset .Chain": {"data_loader": DataLoader(ChainDataset([]))},
    "collate_fn makes no batch of an item .TypeError": {"data_loader": DataLoader([object()] * 3)},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_contradicts_the_plan_is_refused_and_changes_nothing(words):
    account, network, given = _account(), network_of_two_layers(), dict(REFUSED[words])
    given["optimizer"] = given.pop("optimizer", lambda net: torch.optim.SGD(net.parameters(), lr=0.1))(network)
    given = {"data_loader": DataLoader(TensorDataset(ROWS)), "max_grad_norm": 1.0, "expected_batch_size": 10.0} | given
    with pytest.raises(ValueError, match=words):
        AccountEngine(account).make_private(module=network, **given)
    assert not account.ledger.accesses and not any(m._forward_hooks for m in network.modules())
    # The arguments that stay agree, and the network can still be made private.
    again = torch.optim.SGD(network.parameters(), lr=0.1)
    AccountEngine(account).make_private(
        module=network, optimizer=again, data_loader=DataLoader(TensorDataset(ROWS)), noise_multiplier=1.0,
        max_grad_norm=1.0, expected_batch_size=10.0,
    )  # fmt: skip


def test_an_epsilon_of_ones_own_is_refused():
    with pytest.raises(ValueError, match="make_plan"):
        AccountEngine(_account()).make_private_with_epsilon(target_epsilon=1.0)
    with pytest.raises(ValueError, match="stage='tuning': the plan has the stages"):
        AccountEngine(_account(), stage="tuning")


# Epsilon


def test_epsilon_is_that_of_the_plan_also_where_the_loop_stops_early():
    account = _account(seed=None)
    engine, (network, optimizer, loader) = AccountEngine(account), _made(account)
    planned = account.plan.epsilon
    assert engine.get_epsilon(1e-5) == planned and len(engine.accountant) == 0
    for (rows,) in loader:
        _step(network, optimizer, rows)
        break
    assert engine.get_epsilon(1e-5) == planned == engine.accountant.get_epsilon(delta=1e-5)
    assert engine.get_epsilon(1e-7) > planned
    assert engine.accountant.history == [(1.0, RATE, 1)] and len(engine.accountant) == 1
    for other in (_account(noise=0.0, seed=None), _account()):
        assert AccountEngine(other).get_epsilon(1e-5) == math.inf


def test_a_run_goes_on_from_a_checkpoint_of_opacus(tmp_path):
    """With the ledger that it belongs to, and with no other."""
    path = tmp_path / "ledger.jsonl"
    account = _account(seed=None, ledger=path)
    engine, (network, optimizer, loader) = AccountEngine(account), _made(account)
    for (rows,) in loader:
        _step(network, optimizer, rows)
    engine.save_checkpoint(path=tmp_path / "kept.pt", module=network, optimizer=optimizer)
    kept = _flat(network)
    account.ledger.close()
    account = Account.resume(path)
    engine, (network, optimizer, loader) = AccountEngine(account), _made(account)
    assert not torch.equal(_flat(network), kept)
    engine.load_checkpoint(path=tmp_path / "kept.pt", module=network, optimizer=optimizer)
    assert torch.equal(_flat(network), kept)
    for _ in range(3):
        for (rows,) in loader:
            _step(network, optimizer, rows)
    assert not account.remaining("training")
    other = AccountEngine(_account())
    with pytest.raises(LedgerError, match="not of the run"):
        other.load_checkpoint(path=tmp_path / "kept.pt", module=GradSampleModule(network_of_two_layers()))
