"""A label on top of a network: real records correct what the network says, whatever it is."""

import numpy as np
import pytest
import torch
from marks import only

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.measure import labels
from lightning_dpgen.measure.labels import LABELS, LabelRecipe
from lightning_dpgen.models.forests import StackedProducts
from lightning_dpgen.models.generators import StackedGenerator
from lightning_dpgen.models.labelled import added_up
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_plan

SCHEMA = TableSchema(
    (
        column_of("dose", {"type": "number", "low": 0, "high": 1, "encoding": "scaled"}),
        *(column_of(name, {"type": "category", "values": [f"{name}{i}" for i in range(4)]}) for name in "abc"),
        column_of("well", {"type": "category", "values": ["no", "a bit", "yes"]}),
    ),
    label="well",
)
CHOICES = TableSchema(SCHEMA.columns[1:], label="well")
UNTRAINED = {
    "vae": (StackedVAE, {"latent": 2, "likelihood": "gaussian"}),
    "rbm": (StackedRBM, {"chains": 5}),
    "wgan": (StackedGenerator, {"latent": 2}),
    "wgan, labels first": (StackedGenerator, {"latent": 2, "conditional": True}),
}


@pytest.fixture(autouse=True)
def few_made_up(monkeypatch):
    monkeypatch.setattr(labels, "_MADE", 3000)


def some_records(n, seed=0):
    """Draw a label that a middling dose raises, and that follows the choices; return its true shares, too."""
    random = np.random.default_rng(seed)
    dose, codes = random.random((n, 1)), random.integers(0, 4, (n, 3))
    weights = np.random.default_rng(7).normal(size=(3, 4, 3))
    logits = sum(weights[j][codes[:, j]] for j in range(3)) + 6.0 * np.abs(dose - 0.5) * [1.0, 0.0, -1.0]
    y = (logits + random.gumbel(size=(n, 3))).argmax(axis=1)
    own = Encoded(dose.astype(np.float32), np.concatenate([codes, y[:, None]], axis=1).astype(np.uint8))
    return Records(SCHEMA, own), np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def labelled(mixture, records, epsilon, **settings):
    recipe, kept = LabelRecipe(mixture, len(records), **settings), []
    account = Account(make_plan(recipe.specs(1.0), epsilon=epsilon, delta=1e-6), stream=PrivateStream(3))
    found = recipe.measure(records, torch.zeros(len(records), dtype=torch.int64), account, save=kept.append)
    assert account.finished and all(recipe.fits(state) for state in kept)
    return recipe, found, kept


def given(mixture, records):
    """Return the shares (B, labels) that the weights of columns give to labels."""
    logits = added_up(records.encoded, SCHEMA.layout, mixture.network.label_weights.double())
    return torch.softmax(logits, dim=1).numpy()


def untrained(name):
    make, settings = UNTRAINED[name]
    network = make(SCHEMA, 3, hidden=8, generator=torch.Generator().manual_seed(0), **settings)
    if hasattr(network, "start_at"):
        means = torch.full((3, SCHEMA.layout.width), 0.25)
        means[:, SCHEMA.layout.labels], means[:, 0] = torch.tensor([0.5, 0.2, 0.3]), 0.5
        network.start_at(means)
    return Mixture(network, torch.full((3,), 1 / 3))


@pytest.mark.parametrize("name", only(list(UNTRAINED), "vae", "wgan, labels first"))
def test_real_records_say_what_an_untrained_network_does_not_know(name):
    """A dose that is low or high says the same, as no weight of the number itself could. The doses of an untrained network
    are nearly all alike, which must not mislead the first step."""
    records, true = some_records(20_000)
    recipe, found, _ = labelled(untrained(name), records, 5.0)
    start = recipe.fit({LABELS: ()})
    before, after = (np.abs(given(mixture, records) - true).mean() for mixture in (start, found))
    assert before > 0.2 and after < 0.07
    # Labels occur as often as the network says.
    drawn = [mixture.sample(20_000, torch.Generator().manual_seed(0)).codes[:, 3] for mixture in (untrained(name), found)]
    np.testing.assert_allclose(*[np.bincount(codes, minlength=3) / 20_000 for codes in drawn], atol=0.03)


def test_the_label_begins_with_what_the_network_says_of_it():
    """Components that each have a label of their own say by Bayes' rule which one a record has; a ridge of a tenth, for a
    thousandth, would forget a good part of it."""
    random = torch.Generator().manual_seed(0)
    columns = [torch.rand(3, 4, generator=random).pow(3) for _ in range(3)]
    columns = [shares / shares.sum(dim=1, keepdim=True) for shares in columns]
    network = StackedProducts(CHOICES, 3)
    network.means.copy_(torch.cat([*columns, torch.eye(3)], dim=1))
    start = LabelRecipe(Mixture(network, torch.ones(3)), 1000).fit({LABELS: ()})
    codes = np.stack(np.meshgrid(*[np.arange(4)] * 3, [0], indexing="ij"), axis=-1).reshape(-1, 4).astype(np.uint8)
    likely = torch.stack([shares[:, codes[:, j].astype(int)].T for j, shares in enumerate(columns)]).prod(dim=0) / 3
    chances = likely.sum(dim=1, keepdim=True)
    logits = added_up(Encoded(np.zeros((64, 0)), codes), CHOICES.layout, start.network.label_weights.double())
    off = (torch.softmax(logits, dim=1) - likely / chances).abs().mean(dim=1)
    assert float(off @ chances[:, 0].double()) < 0.03


def test_sharper_labels_are_the_same_logits_times_a_factor():
    records, _ = some_records(2000)
    _, plain, kept = labelled(untrained("wgan"), records, 3.0)
    sharp = LabelRecipe(untrained("wgan"), 2000, 4.0).fit(kept[-1])
    torch.testing.assert_close(sharp.network.label_weights, 4.0 * plain.network.label_weights)
    drawn = [mixture.sample(20_000, torch.Generator().manual_seed(0)) for mixture in (plain, sharp)]
    shares = [np.bincount(part.codes[:, 3], minlength=3) / 20_000 for part in drawn]
    np.testing.assert_allclose(*shares, atol=0.02)


def test_a_run_goes_on_between_accesses_and_ends_where_it_would_have():
    records, _ = some_records(1000)
    _, found, kept = labelled(untrained("vae"), records, 3.0)
    assert [len(state[LABELS]) for state in kept] == [1, 2, 3, 4]
    again = LabelRecipe(untrained("vae"), 1000).measure(None, None, None, state=kept[-1])
    for name, tensor in found.network.state_dict().items():
        assert torch.equal(tensor, again.network.state_dict()[name])
    one, other = (LabelRecipe(untrained("vae"), 1000).statistics(LABELS, kept[1])["gradient"] for _ in range(2))
    nowhere = torch.zeros(1000, dtype=torch.int64)
    assert torch.equal(one.sums(records.encoded, nowhere), other.sums(records.encoded, nowhere))


def test_a_label_does_not_hide_what_its_network_has_cost():
    """A network of another account is not of the one that has paid for its label; a declaration of its start goes on."""
    records, _ = some_records(500)
    network = untrained("vae")
    account = Account(make_plan(LabelRecipe(network, 500).specs(1.0), epsilon=3.0, delta=1e-6))
    runs = {"": "", "another": "", account.ledger.run: account.ledger.run}
    state = []
    for own, expected in runs.items():
        recipe = LabelRecipe(Mixture(network.network, network.weights, own, {"public": "a census"}), 500)
        if not state:
            recipe.measure(records, torch.zeros(500, dtype=torch.int64), account, save=state.append)
        found = recipe.fit(state[-1])
        assert found.run == expected and found.init == {"public": "a census"}


def test_what_makes_no_recipe_is_refused():
    mixture = untrained("vae")
    for given, said in (({"n": 0}, "n=0"), ({"n": 9, "sharpness": 0}, "sharpness=0: expected a number from 0.1 to 100")):
        with pytest.raises(ValueError, match=said):
            LabelRecipe(mixture, **given)
    plain = TableSchema((column_of("a", {"type": "boolean"}), column_of("b", {"type": "boolean"})))
    with pytest.raises(ValueError, match="expected a label, something besides it"):
        LabelRecipe(Mixture(StackedProducts(plain, 2), torch.ones(2)), 100)
