"""Warnings of collapsed columns: only where noisy shares say otherwise, for any family, before anything is published."""

import pytest
import torch

from lightning_dpgen.data.tables.schema_file import schema_of
from lightning_dpgen.measure.degenerate import degenerate_warning
from lightning_dpgen.models.forests import StackedForests
from lightning_dpgen.models.generators import StackedGenerator
from lightning_dpgen.models.mixture import Margins, Mixture
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.release.synthetic import release_mixture

SCHEMA = schema_of(
    {
        "columns": {
            "race": {"type": "category", "values": ["White", "Black", "Other"]},
            "age": {"type": "integer", "low": 0, "high": 9, "bins": 10},
            "income": {"type": "category", "values": ["low", "high"]},
        }
    }
)
SOUND = torch.tensor([0.8, 0.15, 0.05, *[0.1] * 10, 0.75, 0.25])


def forests(shares):
    network = StackedForests(SCHEMA, 2, [-1, -1, -1])
    for table, span in zip(network.tables, SCHEMA.layout.spans, strict=True):
        table.copy_(shares[span] / shares[span].sum())
    return network


def biased(network, shares):
    """Let a network make all its records by these shares, whatever their codes."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if not name.endswith("output_bias"):
                parameter.zero_()
    network.start_at((shares + 1e-9).expand(network.k, -1))
    with torch.no_grad():
        network.output_bias.copy_(torch.log(shares + 1e-9).expand(network.k, -1))
    return network


FAMILIES = {
    "forests": forests,
    "generators": lambda shares: biased(StackedGenerator(SCHEMA, 2, hidden=4, latent=2), shares),
    "autoencoders": lambda shares: biased(StackedVAE(SCHEMA, 2, hidden=4, latent=2), shares),
}


def changed(**columns):
    shares = SOUND.clone()
    for (name, _), span in zip(SCHEMA.choices.items(), SCHEMA.layout.spans, strict=True):
        if name in columns:
            shares[span] = torch.tensor(columns[name])
    return shares


CASES = {
    # The columns that a model makes otherwise than SOUND, and the words that tell them.
    "one value": ({"income": [1.0, 0.0]}, ["income is low in 100% of them (a noisy share says 75.0%)"]),
    "two ages": ({"age": [0.4, 0, 0, 0.4, *[0.2 / 6] * 6]}, ["age is ", "(a noisy share says 20.0%)"]),
    "two races": ({"race": [0.0, 0.5, 0.5]}, ["in 100% of them (a noisy share says 20.0%)"]),
    "two incomes": ({"income": [0.2, 0.8]}, None),
    "nearly one": ({"race": [0.9, 0.1, 0.0]}, None),
    "all ages": ({"age": [0.3, 0.3, *[0.05] * 8]}, None),
    "sound": ({}, None),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", CASES)
def test_columns_that_collapse_are_told_whatever_the_family(family, case):
    torch.manual_seed(0)
    columns, words = CASES[case]
    made = changed(**columns)
    found = degenerate_warning(Mixture(FAMILIES[family](made), torch.ones(2), margins=Margins(SOUND, 0.01)))
    if words is None:
        assert found is None
    else:
        assert "degenerate" in found and "\n" not in found and all(word in found for word in words)
    # The same rows are no matter where noisy shares say the same of them, or say nothing for noise.
    for margins in (Margins(made, 0.01), Margins(SOUND, 1.0)):
        assert degenerate_warning(Mixture(FAMILIES[family](made), torch.ones(2), margins=margins)) is None


@pytest.mark.parametrize(
    ("made", "said"), [([0.5, 0.5, *[0.0] * 8, 0.0], "age is 0 or 1 in 100% of them (a noisy share says 20.0%)"),
    ([0.1] * 10 + [0.9], None), ([0.0] * 10 + [1.0], "each of these columns has one value"), ([0.1] * 10 + [0.0], None)],
)  # fmt: skip
def test_numbers_are_held_against_the_density_of_their_bins(made, said):
    """Special values are no part of it, and stand beside it however many they are."""
    age = {"type": "integer", "low": 0, "high": 9, "bins": 10, "special": [99]}
    density = {"density": [[value, 100.0] for value in range(10)], "density_noise": 2.0}
    schema = schema_of({"columns": {"age": age | density, "ill": {"type": "boolean"}}})
    network = StackedForests(schema, 1, [-1, -1])
    network.tables[0].copy_(torch.tensor([made]))
    found = degenerate_warning(Mixture(network, torch.ones(1)))
    assert (found is None) if said is None else said in found.replace("1 or 0", "0 or 1")


def test_without_noisy_shares_only_columns_of_one_value_are_told():
    found = degenerate_warning(Mixture(forests(changed(income=[1.0, 0.0])), torch.ones(2)))
    assert "each of these columns has one value: income;" in found and "bias=means" in found
    assert degenerate_warning(Mixture(forests(changed(age=[0.5, 0.5, *[0.0] * 8])), torch.ones(2))) is None


def test_noise_alone_tells_nothing():
    """Noisy shares of 300 tables, none of whose columns has collapsed: a false alarm in 100 of such seeds."""
    generator, mixture = torch.Generator().manual_seed(1), Mixture(forests(changed(race=[1.0, 0.0, 0.0])), torch.ones(2))
    for _ in range(300):
        noise = 0.02 * torch.randn(len(SOUND), generator=generator)
        mixture.margins = Margins(changed(race=[1.0, 0.0, 0.0]) + noise, 0.02)
        assert degenerate_warning(mixture) is None


def test_a_release_of_ones_own_warns_and_its_pages_say_so(tmp_path):
    stage = StageSpec("shares", {"sums": 1.0}, 1, max_noise=float("inf"), share=1.0)
    account = Account(make_plan([stage], epsilon=1.0, delta=1e-5))
    with account.open("shares") as access:
        access.consume("sums")
    mixture = Mixture(forests(changed(income=[1.0, 0.0])), torch.ones(2), account.ledger.run, None, Margins(SOUND, 0.01))
    with pytest.warns(UserWarning, match="income is low in 100% of them"):
        release_mixture(mixture, account, tmp_path / "release", data="people", n=1000)
    assert "income is low in 100%" in (tmp_path / "release" / "README.md").read_text()
