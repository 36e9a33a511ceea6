"""Components of a network that starts from another one generate as the components that they were taken from."""

import itertools

import pytest
import torch

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.models.generators import StackedGenerator
from lightning_dpgen.models.initial import check_initial, copy_components, match_components
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.models.vae import StackedVAE

PICTURES, LARGER = ImageSchema(2, 2, levels=1, classes=2), ImageSchema(4, 4, levels=3)
SERIES = SeriesSchema(length=3, low=0.0, high=1.0, classes=("a", "b"))
# A recurrent network, layers that components share, and a scale of each component are arranged in their own ways.
FAMILY = {
    "vae": (StackedVAE, PICTURES, {"hidden": 3, "latent": 2}),
    "vae held": (StackedVAE, PICTURES, {"hidden": 3, "fixed_bias": True}),
    "vae trunk": (StackedVAE, PICTURES, {"hidden": 3, "layers": 2, "trunk": True}),
    "vae gaussian": (StackedVAE, LARGER, {"hidden": 3, "likelihood": "gaussian"}),
    "vae conv": (StackedVAE, LARGER, {"network": "conv"}),
    "vae waves": (StackedVAE, SERIES, {"network": "waves", "hidden": 3, "likelihood": "gaussian"}),
    "rbm": (StackedRBM, PICTURES, {"hidden": 3, "chains": 2}),
    "wgan": (StackedGenerator, PICTURES, {"hidden": 3, "latent": 2, "conditional": True}),
    "wgan conv": (StackedGenerator, LARGER, {"network": "conv"}),
    "wgan lstm": (StackedGenerator, SERIES, {"network": "lstm", "hidden": 3}),
}


def _made(kind, schema, given, k, seed):
    """Return a network whose parameters and buffers are all random."""
    network = kind(schema, k, **given)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape, generator=random))
    return network


def _generated(network, component):
    offsets = [0] * (component + 1) + [20] * (network.k - component)
    return network.generate(offsets, torch.Generator().manual_seed(5))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(("kind", "schema", "given"), FAMILY.values(), ids=FAMILY.keys())
def test_a_component_generates_as_the_one_that_it_started_from(kind, schema, given, k):
    start, network = (_made(kind, schema, given, of, seed) for of, seed in ((k, 1), (3, 2)))
    parameters = list(network.parameters())
    order = [0] * 3 if k == 1 else [2, 0, 1]
    check_initial(network, start)
    copy_components(network, start, order)
    for own, taken in enumerate(order):
        assert torch.equal(_generated(network, own), _generated(start, taken))
    assert all(one is other for one, other in zip(parameters, network.parameters(), strict=True)), "copied in place"


@pytest.mark.parametrize("name", ["vae", "rbm", "wgan"])
def test_components_are_matched_to_the_means_that_are_most_like_them(name):
    """Among all orders the sum of squared distances is the least, by trying them all."""
    kind, schema, given = FAMILY[name]
    start = _made(kind, schema, given, 4, 3)
    means = torch.rand(4, schema.layout.width, generator=torch.Generator().manual_seed(4))
    averages = torch.stack([_averaged(start, c) for c in range(4)])

    def distance(order):
        return float((means - averages[list(order)]).square().sum())

    best = min(itertools.permutations(range(4)), key=distance)
    assert match_components(start, means) == list(best)
    assert match_components(start, means[[1, 3, 0, 2]]) == [best[i] for i in (1, 3, 0, 2)]
    assert match_components(_made(kind, schema, given, 1, 3), means) == [0] * 4


def _averaged(network, component):
    offsets = [0] * (component + 1) + [20_000] * (network.k - component)
    return network.generate(offsets, torch.Generator().manual_seed(6)).mean(dim=0)


OTHERS = {
    "another kind": (FAMILY["rbm"], 2, "'rbm_mixture': expected 'vae_mixture'"),
    "other records": ((StackedVAE, LARGER, {"hidden": 3, "latent": 2}), 2, "height is 4 there and 2 here"),
    "other sizes": ((StackedVAE, PICTURES, {"hidden": 4, "latent": 2}), 2, "hidden=4: expected 3"),
    "another likelihood": (
        (StackedVAE, PICTURES, {"hidden": 3, "latent": 2, "likelihood": "laplace"}),
        2,
        "likelihood='laplace': expected None",
    ),
    "other components": (FAMILY["vae"], 3, "3 components: expected 1 or 2"),
}


@pytest.mark.parametrize(("other", "k", "words"), OTHERS.values(), ids=OTHERS.keys())
def test_a_network_that_does_not_fit_is_refused(other, k, words):
    with pytest.raises(ValueError, match=words):
        check_initial(_made(*FAMILY["vae"], 2, 0), _made(*other, k, 1))


def test_a_network_of_ones_own_is_refused_since_its_components_are_not_known():
    class Own(StackedVAE):
        pass

    with pytest.raises(ValueError, match="network: a Own: expected one of StackedVAE, StackedRBM, StackedGenerator"):
        check_initial(*(Own(PICTURES, 2, hidden=3) for _ in range(2)))


def test_how_a_network_is_trained_makes_no_difference():
    kind, schema, given = FAMILY["vae"]
    check_initial(kind(schema, 2, **given, fixed_bias=True), kind(schema, 2, **given))
    generators = [StackedGenerator(PICTURES, 1, sampling=sampling) for sampling in ("softmax", "straight_through")]
    check_initial(*generators)
