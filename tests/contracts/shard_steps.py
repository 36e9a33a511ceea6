"""Steps that ranks make together with parameters divided by `fully_shard`, beside those of one process with whole ones.

    python tests/contracts/shard_steps.py RANK SIZE FOLDER

does all of it in one of SIZE processes, which find each other through a file in FOLDER; each writes what it found there.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.multiprocessing.reductions import StorageWeakRef

from lightning_dpgen.gradients import shards as gathered_module
from lightning_dpgen.gradients.clipping import DPNorm, Fixed, PerLayer, PerPerson
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.micro_batches import MicroBatches
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.gradients.shards import gathered, own_part
from lightning_dpgen.gradients.terms import DataFree, PerRecord
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import NoiseMissing
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.sampling.lots import PoissonLots

N, WORDS, STEPS, DRAWS, MULTIPLIER = 24, 11, 3, 150, 0.7
RECORDS = torch.randint(0, WORDS, (N, 5), generator=torch.Generator().manual_seed(0))
# Noise that no result shows.
FAINT = 1e-9


class Network(nn.Module):
    """Layers of several kinds, of sizes that two and three ranks divide unevenly; one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(WORDS, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.first, self.second = nn.Parameter(torch.randn(8, 2) / 9), nn.Parameter(torch.randn(2, 8) / 9)
        self.line, self.steps = nn.Conv1d(8, 3, 2), nn.GRU(8, 4, batch_first=True)
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))

    def forward(self, x):
        x = self.block(self.words(x))
        x = self.frozen(x) + x @ self.first @ self.second
        return self.line(x.transpose(1, 2)).mean(dim=2) + self.last(self.steps(x)[0][:, -1])

    def sharded(self, mesh):
        for layer in (self.block, self.frozen, [self.words, self.line]):
            fully_shard(layer, mesh=mesh)
        return fully_shard(self, mesh=mesh)


def account_of(ranks, multipliers, steps, *, seed=None, max_rows=1):
    plan = Plan((Stage(Access("training", multipliers, Poisson(1.0)), steps, 1.0),), 1.0, 1e-5, max_rows=max_rows)
    account = Account(plan, stream=PrivateStream(seed=seed))
    account.join(ranks)
    return account


def trained(network, ranks, rule, *, multiplier=FAINT, parts=1, records=RECORDS, persons=None):
    """Make steps with the records of all ranks, and return the whole parameters."""
    names = dict.fromkeys(["gradient", *rule.noise_shares], multiplier)
    account = account_of(ranks, names, STEPS, max_rows=1 if persons is None else 2)
    parameters = [p for p in network.parameters() if p.requires_grad]
    # Adam would show what rounding leaves of a gradient of zero, unless there is noise beside it.
    inner = torch.optim.Adam(parameters, lr=0.05) if multiplier == MULTIPLIER else torch.optim.SGD(parameters, lr=0.3)
    optimizer = PrivateOptimizer(inner, account=account, clipping=rule, expected_batch_size=float(N))
    lots, term = (
        PoissonLots(records, account, persons=persons),
        PerRecord(lambda lot, noise: network(lot.records).square().sum(dim=1)),
    )
    for _ in range(STEPS):
        lot = lots.draw()

        def make(lot=lot):
            return (term_gradients(network, term, part, account.stream) for part in lot.divide(parts))

        optimizer.set_gradients(MicroBatches(make, lot.draw) if parts > 1 else next(make()))
        optimizer.step()
    return [gathered(p) for p in network.parameters()]


CASES = {
    "fixed": (Fixed(0.5), {}),
    "layers": (PerLayer(Fixed(0.2)), {}),
    "norms": (DPNorm(c_max=8.0, bins=16), {}),
    "persons": (PerPerson(Fixed(0.5)), {"persons": np.arange(N) // 2}),
    "parts": (Fixed(0.5), {"parts": 3}),
    "twin": (Fixed(0.5), {"multiplier": 0.0}),
    "empty part": (Fixed(0.5), {"records": RECORDS[:1]}),
}


def largest_difference(ranks, mesh, rule, options) -> float:
    found = trained(Network().sharded(mesh), ranks, rule, **options)
    alone = trained(Network(), Ranks(), rule, **options) if ranks.leads else found
    return max(float((a - b).abs().max()) for a, b in zip(found, alone, strict=True))


def same_noise(ranks, mesh) -> dict[str, float]:
    """Return the differences of clipped sums and of parameters, if one process draws the numbers that the ranks drew."""
    drawn: list[torch.Tensor] = []
    sums: list[torch.Tensor] = []
    own = PrivateStream.add_normal_

    def record(self, out, deviation):
        before = out.clone()
        own(self, out, deviation)
        if deviation == DEVIATION:
            sums.append(before)
            drawn.append(out - before)
        return out

    DEVIATION = MULTIPLIER * 0.5 / N
    network = Network().sharded(mesh)
    trainable = [p for p in network.parameters() if p.requires_grad]
    with _instead(PrivateStream, "add_normal_", record):
        found = trained(network, ranks, Fixed(0.5), multiplier=MULTIPLIER)
    # Shards in the order of parameters, as one process has them.
    whole = [[_joined(ranks, step, trainable) for step in steps] for steps in (sums, drawn)]
    if not ranks.leads:
        return {}
    exact: list[torch.Tensor] = []

    def replay(self, out, deviation):
        if deviation == DEVIATION:
            exact.append(out.clone())
            out.add_(whole[1][len(exact) - 1])
        return out

    with _instead(PrivateStream, "add_normal_", replay):
        alone = trained(Network(), Ranks(), Fixed(0.5), multiplier=MULTIPLIER)
    return {
        "sums": max(float((a - b).abs().max()) for a, b in zip(whole[0], exact, strict=True)),
        "parameters": max(float((a - b).abs().max()) for a, b in zip(found, alone, strict=True)),
        "noise": float(whole[1][0].std() / DEVIATION),
    }


def _joined(ranks, flat, parameters) -> torch.Tensor:
    sizes = [own_part(p).shape for p in parameters]
    mine = [piece.view(size) for piece, size in zip(flat.split([s.numel() for s in sizes]), sizes, strict=True)]
    every = [None] * ranks.size
    torch.distributed.all_gather_object(every, mine)
    return torch.cat([torch.cat(pieces).flatten() for pieces in zip(*every, strict=True)])


def noise(ranks, mesh, draws=DRAWS) -> list[np.ndarray]:
    """Return the noise of many steps on each parameter's shard, in planned deviations, and rehearse."""
    network = fully_shard(nn.Sequential(nn.Linear(7, 9), nn.Linear(9, 1)), mesh=mesh)
    parameters = list(network.parameters())
    account = account_of(ranks, {"gradient": MULTIPLIER}, draws, seed=4)
    optimizer = PrivateOptimizer(
        torch.optim.SGD(parameters, lr=0.0), account=account, clipping=Fixed(0.5), expected_batch_size=20.0
    )
    optimizer.rehearse()
    lots, found = PoissonLots(torch.zeros(N, 1), account), []
    for _ in range(draws):
        lot = lots.draw()
        optimizer.set_gradients(materialised({p: torch.zeros(len(lot), *p.shape) for p in parameters}, lot.draw))
        optimizer.step()
        found.append([own_part(p.grad).flatten().clone() for p in parameters])
    return [torch.stack(steps).numpy() / (MULTIPLIER * 0.5 / 20.0) for steps in zip(*found, strict=True)]


def _on_rank_1(ranks, instead):
    own = PrivateStream.add_normal_
    return _instead(PrivateStream, "add_normal_", instead if ranks.rank == 1 else own)


def left_out(ranks):
    return _on_rank_1(ranks, lambda self, out, deviation: out)


def doubled(ranks):
    own = PrivateStream.add_normal_
    return _on_rank_1(ranks, lambda self, out, deviation: own(self, own(self, out, deviation), deviation))


def alike(ranks):
    """Give both ranks the same numbers, in the order in which they draw."""
    numbers = np.random.default_rng(0)

    def add(self, out, deviation):
        return out.add_(torch.from_numpy(numbers.standard_normal(out.numel())).to(out), alpha=deviation)

    return _instead(PrivateStream, "add_normal_", add)


def first_parameter_alone(ranks):
    own = PrivateStream.add_normal_
    return _instead(PrivateStream, "add_normal_", lambda self, out, deviation: own(self, out[:35], deviation))


BROKEN = {"left out": left_out, "doubled": doubled, "alike": alike, "first parameter alone": first_parameter_alone}


@contextlib.contextmanager
def _instead(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _refused(make) -> str:
    try:
        make()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return ""


def _stepped(network, ranks, *, term=None, engine="ghost", data_free=()) -> None:
    account = account_of(ranks, {"gradient": 1.0}, 1)
    parameters = [p for p in network.parameters() if p.requires_grad]
    try:
        optimizer = PrivateOptimizer(
            torch.optim.SGD(parameters, lr=0.1), account=account, clipping=Fixed(1.0), expected_batch_size=float(N)
        )
        term = term or PerRecord(lambda lot, noise: network(lot.records).square().sum(dim=1))
        lot = PoissonLots(torch.ones(N, 4), account).draw()
        gradients = term_gradients(network, term, lot, account.stream, engine=engine)
        optimizer.set_gradients(gradients, data_free=data_free)
        optimizer.step()
    except (ValueError, RuntimeError):
        assert not account.accesses, "a refusal is charged"
        raise


def refusals(ranks, mesh) -> dict[str, str]:
    """Return what is said where sharding is not covered; nothing may be charged."""
    size = ranks.size
    plane = init_device_mesh("cpu", (size, 1), mesh_dim_names=("replicas", "shards"))

    def net(**options):
        return fully_shard(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)), **({"mesh": mesh} | options))

    def partly():
        network = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
        fully_shard(network[0], mesh=mesh)
        return network

    class Away(OffloadPolicy):
        pass

    whole = net()
    free = DataFree(lambda: sum(p.square().sum() for p in whole.parameters()))
    closed = PerRecord(None, forms=lambda lot, noise: ({}, lambda: noise))
    return {
        "plane": _refused(lambda: _stepped(net(mesh=plane), ranks)),
        "columns": _refused(lambda: _stepped(net(shard_placement_fn=lambda p: Shard(p.dim() - 1)), ranks)),
        "partly": _refused(lambda: _stepped(partly(), ranks)),
        "offload": _refused(lambda: _stepped(net(offload_policy=Away()), ranks)),
        "precision": _refused(lambda: _stepped(net(mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)), ranks)),
        "func": _refused(lambda: _stepped(net(), ranks, engine="func")),
        "free": _refused(lambda: _stepped(whole, ranks, data_free=[free])),
        "closed": _refused(lambda: _stepped(net(), ranks, term=closed)),
        "alone": _refused(lambda: _stepped(net(), Ranks())),
        "none": _refused(lambda: _stepped(net(), ranks)),
    }


def gathers(mesh) -> list[int]:
    """Return the most numbers of whole parameters that were alive at once in a step, and those of all of them."""
    network = fully_shard(nn.Sequential(*[nn.Linear(16, 16) for _ in range(8)]), mesh=mesh)
    alive, most, own = [], [0], gathered_module.gathered
    one_layer = 16 * 16 + 16

    def watched(p):
        whole = own(p)
        alive.append((StorageWeakRef(whole.untyped_storage()), whole.numel()))
        # A thread of the process group may hold what it has exchanged for an instant longer; what is kept stays.
        for _ in range(100):
            numbers = sum(size for there, size in alive if not there.expired())
            if numbers <= one_layer:
                break
            time.sleep(0.01)
        most[0] = max(most[0], numbers)
        return whole

    term = PerRecord(lambda lot, noise: network(lot.records).square().sum(dim=1))
    with _instead(gathered_module, "gathered", watched):
        lot = PoissonLots(torch.ones(N, 16), account_of(Ranks.join(), {"gradient": 1.0}, 1)).draw()
        term_gradients(network, term, lot, PrivateStream())
    return [most[0], sum(p.numel() for p in network.parameters())]


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size)
    ranks, mesh = Ranks.join(), init_device_mesh("cpu", (size,))
    found = {name: largest_difference(ranks, mesh, rule, options) for name, (rule, options) in CASES.items()}
    found |= {"same noise": same_noise(ranks, mesh), "refusals": refusals(ranks, mesh), "gathers": gathers(mesh)}
    drawn = {"sound": noise(ranks, mesh)}
    for name, break_it in BROKEN.items():
        # Found by its own rank, if not by all; it is drawn nevertheless.
        said = []

        def rehearse(self, own=PrivateOptimizer.rehearse, said=said):
            try:
                own(self)
            except NoiseMissing as error:
                said.append(str(error))

        with break_it(ranks), _instead(PrivateOptimizer, "rehearse", rehearse):
            drawn[name] = noise(ranks, mesh)
        found[name] = said
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    np.savez(folder / f"rank{rank}.npz", **{f"{name}/{i}": x for name, xs in drawn.items() for i, x in enumerate(xs)})
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
