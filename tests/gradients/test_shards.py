"""Parameters that `fully_shard` has divided over one rank; `contracts/test_sharded_ranks.py` has two."""

import pytest
import torch
import torch.distributed as dist
from contracts import shard_steps
from contracts.shard_steps import CASES, Network, largest_difference, refusals
from gradients.families import RULED
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lightning_dpgen.gradients.engines import ghost_gradients, term_gradients
from lightning_dpgen.gradients.isolation.isolation import Isolation
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.shards import GatheredParameters, is_sharded
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.plugins.training_ledger import digest_of
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.sampling.lots import Lot


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_steps_are_those_of_whole_parameters(mesh):
    rule, options = CASES["fixed"]
    assert largest_difference(Ranks(), mesh, rule, options) < 2e-6


REFUSED = {
    "plane": "a mesh of 2 dimensions: expected fully_shard by the first dimension on a mesh of one dimension",
    "columns": "placed as (Shard(dim=1),)",
    "partly": "2 of 4 trainable parameters are not sharded",
    "offload": "fully_shard(offload_policy=Away(...))",
    "precision": "MixedPrecisionPolicy with torch.bfloat16",
    "func": "engine='func' holds whole gradients",
    "free": "no grad_sample, and no DataFree term",
    "closed": "PerRecord(forms=...) reads whole parameters",
    "none": "",
}


def test_what_is_not_covered_is_refused_and_not_charged(mesh):
    found = refusals(Ranks(), mesh)
    assert all(text in found[name] and "\n" not in found[name] for name, text in REFUSED.items()), found
    assert not found["none"]


def test_one_layer_is_whole_at_a_time(mesh):
    most, all_of_them = shard_steps.gathers(mesh)
    assert most <= all_of_them / 8


def test_what_the_loss_writes_over_is_found(mesh):
    """torch looks for it itself, except in what is kept by the hooks that leave out whole parameters."""
    network = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), mesh=mesh)

    def loss(lot, noise):
        x = network[0](lot.records)
        y = network[1](x)
        x.mul_(2.0)
        return (x + y).sum(dim=1)

    with pytest.raises(ValueError, match="writes into a tensor that an earlier function has kept"):
        term_gradients(network, PerRecord(loss), Lot(torch.ones(3, 4), (0, 3)), PrivateStream())


def test_a_stand_in_has_no_numbers_of_its_own(mesh):
    network, gathered = fully_shard(nn.Linear(4, 4), mesh=mesh), GatheredParameters(Isolation(1))
    x = gathered.stand_in(network.weight)
    assert x.shape == (4, 4) and x.isnan().all() and x.untyped_storage().nbytes() == 4
    with gathered.present([x]):
        assert torch.equal(x.detach(), network.weight.full_tensor())
    assert x.isnan().all()


def test_an_evaluation_between_steps_is_by_fsdp_itself(mesh):
    network = fully_shard(nn.Sequential(fully_shard(nn.Linear(4, 4), mesh=mesh), nn.Linear(4, 1)), mesh=mesh)
    term, lot = PerRecord(lambda lot, noise: network(lot.records).sum(dim=1)), Lot(torch.ones(3, 4), (0, 3))
    first = term_gradients(network, term, lot, PrivateStream()).norms()
    with torch.no_grad():
        before = network(torch.ones(1, 4))
    assert torch.equal(term_gradients(network, term, lot, PrivateStream()).norms(), first)
    assert torch.equal(network(torch.ones(1, 4)), before)


def test_frozen_parameters_that_an_evaluation_left_whole_are_divided_first(mesh):
    """Their memory is freed when they are divided: the first lot must not write what it keeps of them there."""
    found = []
    for sharded in (False, True):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4).requires_grad_(False))
        if sharded:
            fully_shard(network[0], mesh=mesh)
            fully_shard(network, mesh=mesh)
        with torch.no_grad():
            network(torch.ones(1, 4))
        term = PerRecord(lambda lot, noise, network=network: network(lot.records).square().mean(dim=1))
        lot = Lot(torch.arange(12.0).reshape(3, 4).sin(), (0, 3))
        found.append(term_gradients(network, term, lot, PrivateStream()).norms())
    assert is_sharded(network[1].weight)
    torch.testing.assert_close(*found)


def test_a_digest_is_that_of_whole_parameters(mesh):
    network = Network().sharded(mesh)
    assert digest_of(network) == digest_of(Network())
    with torch.no_grad():
        network(shard_steps.RECORDS)
    assert digest_of(network) == digest_of(Network())
    # numpy would hold on to the memory that FSDP2 frees here.
    network.state_dict()


def test_half_precision_computes_layers_as_without_shards(mesh):
    """Norms and sums are of parameters in full precision, whatever autocast makes of a layer."""
    found = []
    for network in (Network(), Network().sharded(mesh)):
        term = PerRecord(lambda lot, noise, network=network: network(lot.records).float().square().sum(dim=1))
        lot = Lot(shard_steps.RECORDS, (0, len(shard_steps.RECORDS)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(term_gradients(network, term, lot, PrivateStream()).norms())
    torch.testing.assert_close(*found)


class Recurrent(nn.GRU):
    def forward(self, x):
        return super().forward(x)[0]


class Attention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)[0]


class Channels(nn.Sequential):
    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


FROZEN = {
    "linear": lambda: nn.Linear(8, 8),
    "norm": lambda: nn.LayerNorm(8),
    "batch norm": lambda: Channels(nn.BatchNorm1d(8)).eval(),
    "convolution": lambda: Channels(nn.Conv1d(8, 8, 3, padding=1)),
    "recurrent": lambda: Recurrent(8, 8, batch_first=True),
    "attention": lambda: Attention(8, 2, batch_first=True),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)).eval(),
}


@pytest.mark.parametrize("kind", FROZEN)
def test_a_frozen_layer_is_called_as_without_shards(mesh, kind):
    """Functions of public parameters have ways of their own, which the stand-ins of shards must not miss."""
    found = []
    for sharded in (False, True):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(8, 8), FROZEN[kind]().requires_grad_(False), nn.Linear(8, 1))
        network = fully_shard(network, mesh=mesh) if sharded else network
        term = PerRecord(lambda lot, noise, network=network: network(lot.records).sum(dim=(1, 2)))
        lot = Lot(torch.randn(5, 4, 8), (0, 5))
        found.append(term_gradients(network, term, lot, PrivateStream()).norms())
    torch.testing.assert_close(*found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no rule for")
@pytest.mark.parametrize("name", RULED)
def test_every_family_has_the_gradients_that_it_has_without_shards(mesh, name):
    found = []
    for sharded in (False, True):
        torch.manual_seed(0)
        case = RULED[name]()
        if case.term.forms is not None or any(p.dim() == 0 for p in case.network.parameters()):
            pytest.skip("closed forms are refused, by fully_shard itself single numbers, too")
        network = fully_shard(case.network, mesh=mesh) if sharded else case.network
        gradients = ghost_gradients(network, case.term, case.lot((0, 6) if case.k == 1 else (0, 2, 4, 6)), case.noise(6))
        parameters = [p for p in network.parameters() if p.requires_grad]
        buffer = GradientBuffer(parameters)
        buffer.write([(gradients, torch.linspace(0.1, 1.0, len(gradients)))], add=False)
        found.append((gradients.norms(), buffer.flat))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
