"""Generators: labels by their shares, choices that are drawn, series by a recurrent network, and their way to a release."""

from types import SimpleNamespace

import pytest
import scipy.stats
import torch

from lightning_dpgen.data.layout import Layout
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.models.generators import SeriesDecoder, StackedGenerator, _log_uniform
from lightning_dpgen.release.drawing.model_files import rebuilt

PICTURES = ImageSchema(2, 2, levels=1, classes=3)
SERIES = SeriesSchema(length=4, low=0.0, high=1.0, channels=("a", "b"), classes=("x", "y"))
TABLE = SimpleNamespace(kind="table", layout=Layout(units=1, groups=(4, 3), label=1))


def _generator(schema=PICTURES, k=2, **given):
    return StackedGenerator(schema, k, hidden=4, latent=3, generator=torch.Generator().manual_seed(0), **given)


def _means(network):
    return torch.rand(network.k, network.schema.layout.width, generator=torch.Generator().manual_seed(1))


FORMS = {
    "dense": (PICTURES, {}),
    "deep": (PICTURES, {"layers": 3}),
    "conv": (ImageSchema(4, 4, levels=1, classes=2), {"network": "conv"}),
    "lstm": (SERIES, {"network": "lstm"}),
    "conditional": (PICTURES, {"conditional": True}),
    "conditional lstm": (SERIES, {"network": "lstm", "conditional": True}),
    "straight through": (PICTURES, {"sampling": "straight_through"}),
    "both": (PICTURES, {"sampling": "straight_through", "conditional": True}),
}


@pytest.mark.parametrize(("schema", "given"), FORMS.values(), ids=FORMS.keys())
def test_a_generator_makes_records_and_is_read_again(schema, given):
    network = _generator(schema, **given)
    network.start_at(_means(network))
    network.hold_at(_means(network), torch.full((2,), 0.01))
    made = network.generate((0, 3, 3 + 5), torch.Generator().manual_seed(2))
    layout = schema.layout
    assert made.shape == (8, layout.width) and made.min() >= 0.0 and made.max() <= 1.0
    for span in layout.spans:
        torch.testing.assert_close(made[:, span].sum(dim=1), torch.ones(8))
    again = rebuilt(network)
    assert torch.equal(again.generate((0, 3, 8), torch.Generator().manual_seed(2)), made)
    # No component has records, or one has none.
    assert network(torch.zeros(0, network.code), (0, 0, 0)).shape == (0, layout.width)
    assert network(torch.zeros(2, network.code), (0, 0, 2)).shape == (2, layout.width)


def test_labels_are_drawn_by_the_shares_of_their_component():
    """Chi squared, 6,000 draws: right shares fail with a chance of 1e-4, and those of the other component always."""
    network = _generator(conditional=True)
    means = torch.full((2, PICTURES.layout.width), 0.5)
    shares = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
    means[:, PICTURES.layout.labels] = shares.float()
    network.start_at(means)
    made = network.generate((0, 6000, 12000), torch.Generator().manual_seed(0))
    for c in range(2):
        counts = made[6000 * c : 6000 * (c + 1), PICTURES.layout.labels].sum(dim=0).numpy()
        assert scipy.stats.chisquare(counts, 6000 * shares[c].numpy()).pvalue > 1e-4
        assert scipy.stats.chisquare(counts, 6000 * shares[1 - c].numpy()).pvalue < 1e-12


def test_the_rest_of_a_conditional_record_follows_its_label():
    network = _generator(conditional=True, k=1)
    with torch.no_grad():
        for parameter in network.layers.parameters():
            parameter.mul_(4.0)
    code = torch.zeros(3, network.code)
    made = network(code, (0, 3), torch.eye(3))
    assert torch.equal(made[:, PICTURES.layout.labels], torch.eye(3))
    assert (made[0, :4] - made[1, :4]).abs().max() > 0.01


def test_choices_that_are_drawn_have_their_shares_and_gradients():
    """Chi squared, 8,000 draws, as above."""
    network = _generator(TABLE, k=1, sampling="straight_through")
    code = torch.randn(1, network.code, generator=torch.Generator().manual_seed(0)).repeat(8000, 1)
    code[:, network.latent :] = torch.randn(8000, 7, generator=torch.Generator().manual_seed(1))
    shares, drawn = network.shares(code, (0, 8000)), network(code, (0, 8000))
    for span in TABLE.layout.spans:
        torch.testing.assert_close(drawn[:, span].detach().amax(dim=1), torch.ones(8000))
        counts, own = drawn[:, span].detach().sum(dim=0).round().numpy(), shares[0, span].detach().double().numpy()
        assert scipy.stats.chisquare(counts, 8000 * own / own.sum()).pvalue > 1e-4
        assert scipy.stats.chisquare(counts, 8000 * own[::-1] / own.sum()).pvalue < 1e-12
    weights = torch.randn(drawn.shape, generator=torch.Generator().manual_seed(2))
    parameters = list(network.parameters())
    for a, b in zip(*(torch.autograd.grad((x * weights).sum(), parameters) for x in (shares, drawn)), strict=True):
        torch.testing.assert_close(a, b)


def test_a_recurrent_network_writes_each_component_by_its_own_cell():
    network = SeriesDecoder(SERIES, 2, inputs=3, hidden=5, generator=torch.Generator().manual_seed(0))
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    both = network(z, (0, 2, 5))
    torch.testing.assert_close(both[:2], network(z[:2], (0, 2, 2)))
    torch.testing.assert_close(both[2:], network(z[2:], (0, 0, 3)))
    assert (network(z[:2], (0, 2, 2)) - network(z[:2], (0, 0, 2))).abs().max() > 0.01


BAD = {
    "network": (PICTURES, {"network": "gru"}, "network='gru': expected dense, conv or lstm"),
    "sampling": (PICTURES, {"sampling": "hard"}, "sampling='hard': expected one of softmax, straight_through"),
    "no label": (ImageSchema(2, 2, levels=1), {"conditional": True}, "conditional=True: expected records with a label"),
    "no series": (PICTURES, {"network": "lstm"}, "network='lstm' needs series"),
    "layers": (PICTURES, {"layers": 65}, "layers=65: expected at most 64"),
}


@pytest.mark.parametrize(("schema", "given", "words"), BAD.values(), ids=BAD.keys())
def test_what_makes_no_sense_is_refused(schema, given, words):
    with pytest.raises(ValueError, match=words):
        _generator(schema, **given)


def test_choices_are_drawn_by_the_same_numbers_as_by_torchs_own_function():
    normal = torch.cat([torch.linspace(-9.0, 9.0, 2001), torch.tensor([0.0])])
    torch.testing.assert_close(_log_uniform(normal), torch.special.log_ndtr(normal), rtol=2e-5, atol=0.0)
    hidden = torch.vmap(_log_uniform)(normal[:, None])
    torch.testing.assert_close(hidden[:, 0], _log_uniform(normal))
