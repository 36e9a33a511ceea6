"""A loss that was sound for some lots and turns unsound in a later one is refused there: no check is remembered."""

import pytest
import torch
from torch import nn

from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

LABELS = torch.arange(12).remainder(4)
PUBLIC = torch.Generator().manual_seed(0)


def _caught(x):
    try:
        float(x.sum())
    except RuntimeError:
        return x


UNSOUND = {
    "looks at a value": lambda x: x if x.sum() > 0 else -x,
    "takes a value out": lambda x: x + x.sum().item(),
    "goes on after an error": _caught,
    "a public generator": lambda x: x + torch.rand(x.shape, generator=PUBLIC),
    "a seed": lambda x: x + torch.manual_seed(0).initial_seed(),
    "a script": lambda x: torch.jit.trace(lambda y: y * 2.0, x)(x),
    "text": lambda x: [x, str(x)][0],
    "a function of its own": lambda x: x.apply_(lambda number: number),
    "a private function": lambda x: torch._foreach_add([x], 1.0)[0],
    "the gradient of a tensor": lambda x: [x, setattr(torch.zeros(x.shape), "grad", x)][0],
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("unsound", UNSOUND.values(), ids=UNSOUND)
def test_a_loss_that_changes_between_lots(unsound, engine):
    network, stream, turned = nn.Linear(3, 4), PrivateStream(0), []

    def loss(lot, _):
        scores = network(lot.records[0])
        scores = unsound(scores) if turned else scores
        return nn.functional.cross_entropy(scores, lot.records[1], reduction="none")

    def gradients():
        lot = Lot((torch.rand(12, 3), LABELS), (0, 12))
        return term_gradients(network, PerRecord(loss), lot, stream, engine=engine)

    for _ in range(2):
        assert len(gradients()) == 12
    turned.append(True)
    with pytest.raises((ValueError, RuntimeError)):
        gradients()
    turned.clear()
    # It is as it was once the loss is.
    assert gradients().norms().isfinite().all()


def test_a_value_that_is_kept_in_a_later_lot():
    network, stream, kept = nn.Linear(3, 4), PrivateStream(0), []

    def loss(lot, _):
        scores = network(lot.records)
        if len(kept) == 1:
            kept.append(scores.sum())
        shift = kept[1] if len(kept) > 2 else 0.0
        return scores.square().sum(dim=1) + shift

    def gradients():
        return term_gradients(network, PerRecord(loss), Lot(torch.rand(12, 3), (0, 12)), stream)

    gradients()
    kept.append(None)
    gradients()
    kept.append(None)
    with pytest.raises(ValueError, match="earlier call"):
        gradients()


def test_another_parameter_is_written_into_in_a_later_lot():
    network, stream, turned = nn.Linear(3, 4), PrivateStream(0), []

    def loss(lot, _):
        if turned:
            network.weight.data.copy_(lot.records.expand(4, 3))
        return network(lot.records).square().sum(dim=1)

    def gradients():
        return term_gradients(network, PerRecord(loss), Lot(torch.rand(12, 3), (0, 12)), stream)

    gradients()
    before = network.weight.detach().clone()
    turned.append(True)
    with pytest.raises((ValueError, RuntimeError), match="writes"):
        gradients()
    assert torch.equal(network.weight, before)
