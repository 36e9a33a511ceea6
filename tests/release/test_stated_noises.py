"""The noises that a certificate states: each follows from how it was drawn, and `verify` finds each false number."""

import contextlib
import copy
import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.access import GAUSSIAN, LAPLACE, PURE, Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.pld import ADD_OR_REMOVE_ONE, REPLACE_ONE
from lightning_dpgen.privacy.drawn_noise import DrawnNoise, read_unit, write_unit
from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Cyclic, Poisson
from lightning_dpgen.privacy.sampling.strategy import Strategy
from lightning_dpgen.release.certificate import digest, make_certificate
from lightning_dpgen.release.stated_noises import MOST_ALIKE, RELATIVE_GRID
from lightning_dpgen.verification.noise_check import check_noises
from lightning_dpgen.verification.verify import verify

ROWS = 3
# Each door for sums: its kind, the norm of its bound, a unit and a bound, and whether the bound is of a whole unit already.
UNIT = 1.0 / 784
DOORS = {
    "rounded_gaussian": (GAUSSIAN, "L2", UNIT, math.sqrt(3.0), False),
    "of_unit": (GAUSSIAN, "L2", 2.0**-20, 5.0, True),
    "histogram": (GAUSSIAN, "L2", 1.0, math.sqrt(2.0), False),
    "keys": (GAUSSIAN, "L2", 1.0, math.sqrt(2.0), True),
    "rounded_laplace": (LAPLACE, "L1", 2.0**-9, 1.5, False),
    "rounded_spherical": (PURE, "L2", 2.0**-9, 2.0, False),
}


def _draw(access, name):
    zeros, (_, _, unit, bound, of_unit) = torch.zeros(4, dtype=torch.int64), DOORS[name]
    if name in ("rounded_gaussian", "of_unit"):
        mechanisms.rounded_gaussian(access, name, zeros, unit=unit, sensitivity=bound, per_person=of_unit)
    elif name == "histogram":
        mechanisms.noisy_histogram(access, name, zeros, 3, sensitivity=bound)
    elif name == "keys":
        mechanisms.select_keys(access, name, np.array(["a"]), np.array([9]), most=2)
    else:
        getattr(mechanisms, name)(access, name, zeros, unit=unit, sensitivity=bound)


def _certificate(folder, relation, rows, delta, ledger=None):
    """Return the certificate of a run that goes through each door that its relation allows."""
    names = [name for name in DOORS if (delta or name not in ("rounded_gaussian", "of_unit", "histogram", "keys"))]
    if relation == REPLACE_ONE:
        names = [name for name in names if DOORS[name][0] == GAUSSIAN and name != "keys"]
    kinds = {name: DOORS[name][0] for name in names if DOORS[name][0] != GAUSSIAN}
    specs = [StageSpec("gradients", {"gradient": 2.0}, 3, max_noise=1e6, sampler=Poisson(0.1))] if delta else []
    if len(names) > len(kinds):
        gaussians = {name: float(place + 1) for place, name in enumerate(n for n in names if n not in kinds)}
        deltas = {"deltas": {"keys": 1e-7}} if "keys" in names else {}
        specs.append(StageSpec("sums", gaussians, 1, max_noise=1e6, share=0.5, **deltas))
    specs += [StageSpec(name, {name: 1.0}, 2, max_noise=1e6, share=0.1, kinds={name: kind}) for name, kind in kinds.items()]
    specs = [spec for spec in specs if relation != REPLACE_ONE or spec.stage != "gradients"]
    account = Account(make_plan(specs, epsilon=4.0, delta=delta, relation=relation, max_rows=rows), ledger)
    for stage in account.plan.stages:
        while account.remaining(stage.name):
            draw = account.sample(stage.name, 50)[1] if stage.name == "gradients" else None
            with account.open(stage.name, draw=draw) as access:
                for name in access.access.multipliers:
                    if name == "gradient":
                        mechanisms.gaussian(access, name, torch.zeros(2), sensitivity=1.0)
                    else:
                        _draw(access, name)
    account.verify_complete()
    (folder / "numbers.txt").write_text("1 2 3")
    declared = {"n": 900} | ({"max_rows": rows} if rows > 1 else {})
    about = {"unit": "one row", "declared": declared, "released": ["numbers.txt"], "folder": folder}
    return account, make_certificate(account, **about)


CASES = [(ADD_OR_REMOVE_ONE, 1, 1e-5), (ADD_OR_REMOVE_ONE, ROWS, 1e-5), (REPLACE_ONE, 1, 1e-5), (ADD_OR_REMOVE_ONE, 1, 0.0)]


@pytest.mark.parametrize(("relation", "rows", "delta"), CASES)
def test_each_sum_is_stated_as_it_was_drawn(tmp_path, relation, rows, delta):
    account, certificate = _certificate(tmp_path, relation, rows, delta)
    planned = {name: m for stage in account.plan.stages for name, m in stage.access.multipliers.items()}
    found = {name: entry for entry in certificate["noise"]["sums"] for name in entry["names"]}
    assert found.keys() == planned.keys() - {"gradient"}
    for name, entry in found.items():
        kind, norm, unit, bound, of_unit = DOORS[name]
        records = 1 if of_unit else rows
        size = planned[name] * bound * records * (0.5 if kind == GAUSSIAN and relation == REPLACE_ONE else 1.0)
        assert (entry["law"], entry["norm"], entry["records"]) == (kind, norm, records)
        assert float(Fraction(read_unit(entry["unit"]))) == unit and entry["multiplier"] == planned[name]
        assert entry["bound_in_units"] * unit == pytest.approx(bound, rel=1e-12)
        assert (entry["scale"], entry["scale_in_units"] * unit) == pytest.approx((size, size), rel=1e-12)
    assert [entry["names"] for entry in certificate["noise"]["others"]] == [["gradient"]] * ("gradient" in planned)
    assert all(entry["grid"] == RELATIVE_GRID for entry in certificate["noise"]["others"])
    if relation == ADD_OR_REMOVE_ONE:
        # A release under replace-one is one of projected rows.
        (tmp_path / "privacy.json").write_text(json.dumps(certificate))
        assert verify(tmp_path).problems == []
    assert check_noises(certificate)[0] == []


def _numbers(value, path=()):
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, (dict, list)):
            yield from _numbers(item, (*path, key))
        elif not isinstance(item, str) or key == "unit":
            yield (*path, key), item


@pytest.mark.parametrize(("relation", "rows", "delta"), CASES)
def test_no_number_of_a_noise_can_be_another_one(tmp_path, relation, rows, delta):
    """A change of a millionth, of a unit by a factor of two, and a noise that is left out or doubled."""
    certificate = _certificate(tmp_path, relation, rows, delta)[1]
    noise, changed = certificate["noise"], []
    for path, value in _numbers({name: noise[name] for name in ("sums", "others")}):
        for factor in (1.0 - 1e-6, 1.0 + 1e-6):
            changed.append(copy.deepcopy(noise))
            *way, last = path
            place = changed[-1]
            for key in way:
                place = place[key]
            another = value + 1 if isinstance(value, int) else factor * value if isinstance(value, float) else None
            place[last] = write_unit(float(read_unit(value)) * 2.0) if another is None else another
    for name in ("sums", "others"):
        for i in range(len(noise[name])):
            changed.append(noise | {name: noise[name][:i] + noise[name][i + 1 :]})
            # An event does not tell one noise that is no Gaussian from two equal ones.
            if noise[name][i]["law"] == GAUSSIAN:
                changed.append(noise | {name: [*noise[name], noise[name][i] | {"names": ["another"]}]})
    assert len(changed) > 10
    for other in changed:
        assert check_noises(certificate | {"noise": other})[0], other
    sealed = certificate | {"noise": changed[0]}
    (tmp_path / "privacy.json").write_text(json.dumps(sealed | {"digest": digest(sealed)}))
    assert not verify(tmp_path).good


def test_noise_is_for_the_records_of_a_unit_and_what_is_not_drawn_is_told(tmp_path):
    certificate = _certificate(tmp_path, ADD_OR_REMOVE_ONE, 1, 1e-5)[1]
    more, moved = copy.deepcopy(certificate), copy.deepcopy(certificate)
    for entry in more["noise"]["sums"]:
        entry |= {name: 7 * entry[name] for name in ("records", "scale_in_units", "scale")}
    assert any("a unit of privacy has 1 at most" in problem for problem in check_noises(more)[0])
    for entry in moved["noise"].pop("sums"):
        kept = {name: entry[name] for name in ("stage", "access", "names", "law", "multiplier")}
        moved["noise"]["others"].append(kept | {"mechanism": "none"})
    assert any("never drawn" in note for note in check_noises(moved | {"noise": moved["noise"] | {"sums": []}})[2])
    told = copy.deepcopy(certificate)
    [gradient] = [entry for entry in told["noise"]["others"] if entry["names"] == ["gradient"]]
    gradient["mechanism"] = "correlated_gaussian"
    assert any("stated to be correlated" in problem for problem in check_noises(told)[0])


def test_what_was_drawn_before_an_error_is_stated(tmp_path):
    account = Account(make_plan([StageSpec("first", {"x": 1.0}, 1, max_noise=1e6)], epsilon=2.0, delta=1e-5))
    with contextlib.suppress(ZeroDivisionError), account.open("first") as access:
        mechanisms.rounded_gaussian(access, "x", torch.zeros(1, dtype=torch.int64), sensitivity=1.0)
        raise ZeroDivisionError
    certificate = make_certificate(account, unit="one row", declared={"n": 90}, released=[], folder=tmp_path)
    assert [entry["names"] for entry in certificate["noise"]["sums"]] == [["x"]]


def test_a_ledger_that_is_read_again_states_the_same(tmp_path):
    (tmp_path / "release").mkdir()
    account, _ = _certificate(tmp_path / "release", ADD_OR_REMOVE_ONE, ROWS, 1e-5, tmp_path / "ledger.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    # Three lots draw the same noise, and one line says how.
    assert sum("mechanism" in line for line in lines) == len(account.ledger.noises) == len(DOORS) + 1
    assert list(Ledger.read(tmp_path / "ledger.jsonl").noises) == list(account.ledger.noises)


def test_an_earlier_ledger_is_refused_in_a_line(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).close()
    path.write_text(path.read_text().replace('"ledger": 6', '"ledger": 5'))
    with pytest.raises(LedgerError, match="is a ledger of format 5; this version of the software reads format 6"):
        Account.resume(path)


def test_an_adaptive_bound_is_stated_a_few_times(tmp_path):
    plan = make_plan([StageSpec("sums", {"x": 1.0}, 20, max_noise=1e6)], epsilon=2.0, delta=1e-5)
    account = Account(plan)
    for place in range(20):
        with account.open("sums") as access:
            mechanisms.rounded_gaussian(access, "x", torch.zeros(1, dtype=torch.int64), sensitivity=1.0 + place)
    certificate = make_certificate(account, unit="one row", declared={"n": 90}, released=[], folder=tmp_path)
    assert len(account.ledger.noises) == 20 and check_noises(certificate)[0] == []
    sums = certificate["noise"]["sums"]
    # The largest is never left out.
    assert [entry["bound_in_units"] for entry in sums] == [*(1.0 + i for i in range(MOST_ALIKE - 1)), 20.0]
    assert [entry.get("unlisted") for entry in sums] == [None] * (MOST_ALIKE - 1) + [20 - MOST_ALIKE]
    assert any("bounds of noises that are not listed" in note for note in check_noises(certificate)[2])
    for listed in (sums[1:], [sums[0] | {"unlisted": 12}, *sums[1:]], [sums[0] | {"unlisted": 12}, *sums[1:-1]]):
        problems = check_noises(certificate | {"noise": certificate["noise"] | {"sums": listed}})[0]
        assert any("the largest of these says how many" in problem for problem in problems)


def test_what_was_planned_and_not_drawn_is_stated_so(tmp_path):
    specs = [StageSpec(name, {name: 1.0}, 1, max_noise=1e6, share=0.4) for name in ("first", "second")]
    account = Account(make_plan(specs, epsilon=2.0, delta=1e-5))
    with account.open("first") as access:
        mechanisms.rounded_gaussian(access, "first", torch.zeros(1, dtype=torch.int64), sensitivity=1.0)
    certificate = make_certificate(account, unit="one row", declared={"n": 90}, released=[], folder=tmp_path)
    assert [entry["names"] for entry in certificate["noise"]["sums"]] == [["first"]]
    assert [entry["mechanism"] for entry in certificate["noise"]["others"]] == ["none"]
    assert check_noises(certificate)[0] == []


@pytest.mark.parametrize("steps", [0, 8])
def test_correlated_noise_is_stated_whether_its_steps_were_made_or_not(tmp_path, steps):
    strategy = Strategy(8, 2, (1.0, 0.5))
    training = Stage(Access("training", {"gradient": 2.0}, Cyclic(0.5, strategy)), 8, 0.5)
    account = Account(Plan((Stage(Access("first", {"x": 5.0}), 1, 0.5), training), 100.0, 1e-5, n=900))
    with account.open("first") as access:
        mechanisms.rounded_gaussian(access, "x", torch.zeros(1, dtype=torch.int64), sensitivity=1.0)
    for _ in range(steps):
        with account.open("training", draw=account.sample("training", 20)[1]) as access:
            mechanisms.gaussian(access, "gradient", torch.zeros(3), sensitivity=1.0)
    certificate = make_certificate(account, unit="one row", declared={"n": 900}, released=[], folder=tmp_path)
    assert [entry["mechanism"] for entry in certificate["noise"]["others"]] == ["correlated_gaussian" if steps else "none"]
    assert check_noises(certificate)[0] == []


@given(st.floats(2.0**-900, 2.0**900))
def test_a_unit_is_written_exactly(unit):
    assert float(read_unit(write_unit(unit))) == unit


@given(st.integers(1, 5000), st.integers(-20, 20))
def test_a_small_fraction_is_written_as_one(bottom, power):
    assert (
        read_unit(write_unit(float(Fraction(1, bottom) * Fraction(2) ** power)))
        == Fraction(1, bottom) * Fraction(2) ** power
    )


@pytest.mark.parametrize(
    "text", ["0", "-1", "2/4", "01", "1/0", "2^0", "2^9999", "1e-3", "inf", "", "7" * 70, "3 ", "4*2^2"]
)
def test_what_is_no_unit(text):
    with pytest.raises(ValueError, match="expected a power of two"):
        read_unit(text)
    noise = DrawnNoise("rounded_gaussian", "a", "b", 1.0, "2^-3", 8.0)
    assert DrawnNoise.from_json(noise.as_json()) == noise
    with pytest.raises(ValueError):
        DrawnNoise.from_json(dataclasses.replace(noise, unit=text).as_json())


def test_a_noise_is_of_a_sum_or_of_none():
    for fields in (
        {"mechanism": "gaussian", "unit": "1", "bound_in_units": 1.0},
        {"mechanism": "rounded_gaussian"},
        {"mechanism": "rounded_gaussian", "unit": "1"},
        {"mechanism": "cheap"},
    ):
        with pytest.raises(ValueError):
            DrawnNoise.from_json({"stage": "a", "name": "b", "multiplier": 1.0} | fields)
