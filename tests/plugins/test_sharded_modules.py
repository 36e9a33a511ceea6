"""Refusals of a fit with sharded parameters, and of strategies that a module does not follow."""

from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy
from pytorch_lightning.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from lightning_dpgen import Fixed, PrivateTraining
from lightning_dpgen.plugins import PrivateValidation
from lightning_dpgen.plugins.several_optimizers import training_alone
from lightning_dpgen.plugins.trainer_checks import _check_strategy, check_sharded


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def _strategy(tensor_parallel=1):
    return ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=tensor_parallel)


def test_tensor_parallelism_is_refused():
    for strategy in (_strategy(2), ModelParallelStrategy()):
        with pytest.raises(MisconfigurationException, match="expected data_parallel_size=<all ranks>"):
            _check_strategy(strategy)
    _check_strategy(_strategy())


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_that_take_the_account_along_are_refused(method):
    with pytest.raises(MisconfigurationException, match=f"start_method='{method}'.*: expected 'ddp'"):
        _check_strategy(DDPStrategy(start_method=method))
    _check_strategy(DDPStrategy())


@pytest.mark.parametrize(
    ("sharded", "strategy", "words"),
    [(False, _strategy(), "without a sharded layer"), (True, DDPStrategy(), "fully_shard with strategy=DDPStrategy")],
)
def test_strategy_and_module_agree(mesh, sharded, strategy, words):
    network = fully_shard(nn.Linear(2, 1), mesh=mesh) if sharded else nn.Linear(2, 1)
    with pytest.raises(MisconfigurationException, match=words):
        check_sharded(SimpleNamespace(strategy=strategy), network)


def test_reduction_in_low_precision_is_refused(mesh):
    network = fully_shard(nn.Linear(2, 1), mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
    with pytest.raises(MisconfigurationException, match="leave mp_policy out"):
        check_sharded(SimpleNamespace(strategy=_strategy()), network)


def test_an_optimizer_trains_alone_after_an_evaluation(mesh):
    """FSDP2 leaves the parameters of the outermost module whole, and the optimizer has their shards."""
    network = fully_shard(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), mesh=mesh)
    optimizer = torch.optim.SGD(network[0].parameters(), lr=0.1)
    with torch.no_grad():
        network(torch.ones(1, 2))
    with training_alone(network, optimizer):
        assert [p.requires_grad for p in network.parameters()] == [True, True, False, False]
    assert all(p.requires_grad for p in network.parameters())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{"averaging": 0.9}, {"micro_batch": "auto"}, {"engine": "func"}], ids=str)
def test_options_that_need_whole_parameters_are_refused(options):
    private = PrivateTraining(
        torch.rand(100, 3), n=100, epsilon=8, delta=1e-5, sample_rate=0.2, steps=40, clipping=Fixed(1.0), **options
    )
    with pytest.raises(MisconfigurationException, match="with ModelParallelStrategy: expected engine='ghost'"):
        private.callback()._check_options(SimpleNamespace(strategy=_strategy()))
    private.callback()._check_options(pl.Trainer(accelerator="cpu", logger=False))


@pytest.mark.filterwarnings("ignore")
def test_private_validation_that_needs_whole_parameters_is_refused():
    private = PrivateTraining(
        torch.rand(100, 3), n=100, epsilon=8, delta=1e-5, sample_rate=0.2, steps=40, clipping=Fixed(1.0),
        validation=PrivateValidation(torch.rand(90, 3), {"loss": (0, 1)}, n=90),
    )  # fmt: skip
    with pytest.raises(MisconfigurationException, match=r"validation=PrivateValidation.*with ModelParallelStrategy"):
        private.callback()._check_options(SimpleNamespace(strategy=_strategy()))
