"""Laws over all samplers: each is read back from its plan as it was, and another class is read as none of them."""

import json
from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import pytest

from lightning_dpgen import Account, StageSpec, make_plan
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.sampling import samplers
from lightning_dpgen.privacy.sampling.correlated_noise import Strategy
from lightning_dpgen.privacy.sampling.samplers import (
    SAMPLERS,
    Cyclic,
    Poisson,
    Sampler,
    TruncatedPoisson,
    sampler_from_json,
)

ONE_OF_EACH = {
    Poisson: Poisson(0.1),
    TruncatedPoisson: TruncatedPoisson(0.1, largest_lot=200, at_most=1000),
    Cyclic: Cyclic(0.1, Strategy(8, 2, (1.0, 0.5))),
}


@dataclass(frozen=True)
class Twice(Poisson):
    """A sampler that is not ours, whose accesses cost as much as two."""

    name: ClassVar[str] = "twice"

    def event(self, noise):
        return dp_accounting.ComposedDpEvent([super().event(noise)] * 2)


@dataclass(frozen=True)
class Blocks(Poisson):
    """Another one, with a number of its own."""

    name: ClassVar[str] = "blocks"
    block: int = 1


def _event(sampler):
    return sampler.event(dp_accounting.GaussianDpEvent(2.0))


def test_all_samplers_are_looked_at():
    assert set(ONE_OF_EACH) == set(SAMPLERS) and len({sampler.name for sampler in SAMPLERS}) == len(SAMPLERS)


OTHERS = {Twice: Twice(0.1), Blocks: Blocks(0.1, block=50)}


@pytest.mark.parametrize("kind", [*SAMPLERS, *OTHERS])
def test_a_plan_gives_back_the_very_sampler(monkeypatch, kind):
    monkeypatch.setattr(samplers, "SAMPLERS", (*SAMPLERS, *OTHERS))
    sampler = (ONE_OF_EACH | OTHERS)[kind]
    read = sampler_from_json(json.loads(json.dumps(sampler.as_json())))
    assert type(read) is kind and read == sampler and sampler.is_close(read) and repr(_event(read)) == repr(_event(sampler))


def test_a_run_with_another_sampler_goes_on_at_its_own_cost_or_not_at_all(monkeypatch, tmp_path):
    plan = make_plan([StageSpec("sums", {"sum": 1.0}, 20, max_noise=50, sampler=Twice(0.1))], epsilon=2.0, delta=1e-5)
    Account(plan, tmp_path / "ledger.jsonl").ledger.close()
    with pytest.raises(LedgerError, match=r"sampler='twice': expected one of none: its class joins SAMPLERS"):
        Account.resume(tmp_path / "ledger.jsonl")
    monkeypatch.setattr(samplers, "SAMPLERS", (*SAMPLERS, Twice))
    resumed = Account.resume(tmp_path / "ledger.jsonl")
    resumed.ledger.close()
    assert resumed.plan.epsilon == plan.epsilon > 1.9


def test_a_sampler_has_a_name_that_no_other_has():
    with pytest.raises(TypeError, match="class Nameless: expected a name of its own"):

        class Nameless(Poisson):
            pass

    class Other(Sampler):
        name = "poisson"

    with pytest.raises(ValueError, match="Other: name='poisson' is that of another sampler"):
        Other(0.1).as_json()


def test_a_number_of_its_own_makes_another_sampler():
    assert not Blocks(0.1, block=50).is_close(Blocks(0.1)) and Blocks(0.1).is_close(Blocks(0.1 * (1 + 1e-12)))
    with pytest.raises(ValueError, match="sampler='poisson': expected"):
        sampler_from_json({"sample_rate": 0.1, "sampler": "poisson", "truncation": {}})
