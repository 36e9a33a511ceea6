"""The networks of the benchmark of a GPU train privately: a record's private gradient is the one that autograd gives."""

import networks
import pytest
import torch

from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

_TEXTS = (torch.randint(97, (4, 13)),)
_PICTURES = (torch.rand(4, 3, 16, 16), torch.randint(10, (4,)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bf16", [True, False], ids=["bf16", "float32"])
@pytest.mark.parametrize(
    ("make", "records"),
    [
        (lambda: networks.GPT2(97, 12, 32, 2, 2), _TEXTS),
        (lambda: networks.Classifier(networks.ViT(16, 8, 32, 2, 2)), _PICTURES),
    ],
    ids=["GPT-2", "ViT"],
)
def test_a_record_has_the_gradient_of_autograd(make, records, bf16):
    torch.manual_seed(0)
    network = make()
    parameters = list(network.parameters())
    term = PerRecord(lambda lot, _: network(*lot.tensors))
    lot = Lot(records if len(records) > 1 else records[0], (0, 4))
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        gradients = term_gradients(network, term, lot, PrivateStream())
    found = {p: torch.empty_like(p) for p in parameters}
    for i in range(4):
        gradients.weighted_sum(torch.eye(4)[i], found)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = network(*(x[i : i + 1] for x in records)).sum()
        expected = torch.autograd.grad(loss, parameters)
        length = torch.linalg.vector_norm(torch.cat([x.flatten() for x in expected]))
        differences = [(x - found[p]).flatten() for p, x in zip(parameters, expected, strict=True)]
        apart = torch.linalg.vector_norm(torch.cat(differences))
        # A number of bf16 is rounded by 2^-9 of itself at most, and some layers follow each other.
        assert apart < (2.0**-7 if bf16 else 1e-5) * length
        assert length * (1 - 2.0**-7) < gradients.norms()[i] < length * (1 + 2.0**-7)
