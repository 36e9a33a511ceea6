"""`dpgen audit`: silent on what is shipped, and each broken pipeline is refuted, by a line changed in what is shipped.

Of the sound ones a false alarm has a probability of 1e-4 each (`audit.confidence`); the broken ones are far beyond it.
"""

import numpy as np
import pytest
from contracts.changes import FACTORS, NOISE, ROUNDED_NOISE, change

from lightning_dpgen.audit.canaries import canaries_of, coins
from lightning_dpgen.audit.mechanisms import CASES
from lightning_dpgen.audit.training import audit_run
from lightning_dpgen.cli.main import main
from lightning_dpgen.gradients import privatize
from lightning_dpgen.measure.workload import Workload
from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.drawn_noise import MECHANISMS
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.specs.settings import load_complete_settings

SOUND = ["audit.confidence=0.9999", "audit.draws=300", "audit.canaries=200"]
SMALL = ["model.hidden=8", "model.latent=2", "model.steps=10"]
MODELS = {
    "vae": ["model=vae", *SMALL],
    "rbm": ["model=rbm", "model.hidden=8", "model.steps=10"],
    "wgan": ["model=wgan", *SMALL],
    "groups": ["model=vae", *SMALL, "model.divergence=kl", "model.groups=4"],
    "embedding": ["model=vae", *SMALL, "model.divergence=mmd"],
    "layers": ["model=vae", *SMALL, "clipping=fixed"],
    "measured": ["model=measured", "model.waves=6", "audit.draws=100", "audit.canaries=20"],
    "tables": ["data=adult", "model=measured", "model.components=5"],
    "baskets": ["data=bms_webview1", "model=measured", "model.components=5"],
}
# The default suite has one small audit of a sound run, and one of a broken run below.
QUICK, FEW = "vae", ["audit.draws=100", "audit.canaries=60"]


@pytest.fixture
def audit(capsys):
    """Run an audit; return the exit status, and the rows (claim, bound, verdict) by the audited part."""

    def call(*words):
        status = main(["audit", *words])
        out = capsys.readouterr().out
        lines = [line for line in out.splitlines() if " REFUTED " in line or "  -  " in line]
        return status, {line.split("  ")[0]: line for line in lines}, out

    return call


@pytest.mark.parametrize("model", [pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in MODELS])
def test_what_is_shipped_is_not_refuted(audit, model):
    status, rows, out = audit(*SOUND, *(FEW if model == QUICK else []), *MODELS[model])
    assert status == 0 and "no claim is refuted" in out and not any("REFUTED" in row for row in rows.values())
    assert "the whole run" in rows and "Laplace noise" in rows
    assert len(rows) >= 10 and "What it cannot see" in out


BROKEN = {
    "no noise": (mechanisms.gaussian, {NOISE: "pass"}, MODELS["rbm"],
                 {"Gaussian noise, float32", "the same, of a record far beyond the bound", "the whole run"}),
    "no noise on what is measured": (mechanisms.rounded_gaussian, {ROUNDED_NOISE: "pass"},
                 MODELS["measured"], {"the whole run"}),
    "noise half as large": (mechanisms.gaussian, {NOISE: NOISE.replace("deviation", "0.5 * deviation")}, MODELS["rbm"],
        {"Gaussian noise, float32", "Gaussian noise, float64", "the same, of a record far beyond the bound"}),
    "noise half as large on whole numbers": (mechanisms.rounded_gaussian, {
        ROUNDED_NOISE: ROUNDED_NOISE.replace("sigma", "0.5 * sigma")}, MODELS["rbm"],
                            {"Gaussian noise on a histogram"}),
    "noise half as large in the step alone": (privatize.privatize,
        {"rule.scope.sensitivity(bounds) * (reach": "rule.scope.sensitivity(bounds) / 2 * (reach"}, MODELS["rbm"],
        {"the same, of a record far beyond the bound"}),
    "noise half as large in what is measured alone": (Workload.measure, {
        "rounded_gaussian(access, name, scores, unit=unit, sensitivity=bound)":
            "rounded_gaussian(access, name, scores, unit=unit, sensitivity=bound / 2)"},
        MODELS["measured"], {"means", "squares"}),
    "a missing clip": (privatize.clipped_weights, {FACTORS: "factors = lambda norms, bound: torch.ones_like(norms)"},
                       MODELS["rbm"], {"the same, of a record far beyond the bound"}),
    "seeded noise": (PrivateStream._key, {"else Keystream()": "else np.random.PCG64DXSM(0)"}, MODELS["measured"],
                     {"noise and samples after the same public seeds"}),
    "noise seeded as torch is": (PrivateStream._key, {"else Keystream()": "else np.random.PCG64DXSM(torch.initial_seed())"},
                     MODELS["measured"], {"noise and samples after the same public seeds"}),
    "samples from a constant key": (PrivateStream._key, {"else np.random.PCG64DXSM()": "else np.random.PCG64DXSM(0)"},
                     MODELS["measured"], {"noise and samples after the same public seeds"}),
    "all records in each lot": (PrivateStream.poisson_sample, {"random = self._sampler": "return np.arange(population)"},
                                MODELS["rbm"], {"how often a lot holds a record (its rate)"}),
    "keys above a threshold that is too low": (
        mechanisms.select_keys, {"multipliers[name], most": "multipliers[name] / 2, most"}, MODELS["measured"],
        {"how often a key of one record is seen (its delta)"}),
    "Laplace noise half as large": (mechanisms._take_scale, {"return scale * ": "return 0.5 * scale * "},
                                    MODELS["measured"], {"Laplace noise"}),
}  # fmt: skip


# The others are slow: laws catch the same faults in milliseconds (tests/contracts).
SOON = "a missing clip"


@pytest.mark.parametrize("case", [pytest.param(case, marks=() if case == SOON else pytest.mark.slow) for case in BROKEN])
def test_a_broken_pipeline_is_refuted(audit, monkeypatch, case):
    function, lines, words, expected = BROKEN[case]
    with monkeypatch.context() as patch:
        change(patch, function, lines)
        # A factor of 2 takes more to be seen.
        many = FEW if case == SOON else ["audit.draws=1200"] if "half" in case else []
        status, rows, out = audit("audit.confidence=0.9999", "audit.draws=400", "audit.canaries=300", *words, *many)
    assert status == 1 and "REFUTED: " in out
    for what in expected:
        assert "REFUTED" in rows[what], out


def test_each_mechanism_is_audited():
    """Correlated noise is audited by its steps, and discrete Laplace noise is drawn no more."""
    audited = {case.mechanism.name for case in CASES.values()}
    assert audited == MECHANISMS.keys() - {"correlated_gaussian", "discrete_laplace"}
    assert all(hasattr(mechanisms, name) for name in audited)


def test_any_number_of_canaries():
    part = coins(203)
    about = {"epsilon_at": lambda delta: 9.0, "delta": 1e-5, "confidence": 0.9999, "what": "a run"}
    found = audit_run(lambda part: part.astype(float), part, **about)
    assert "203 canaries" in found.how and 0.0 < found.bound < 9.0


@pytest.mark.slow
def test_canaries_may_be_among_records_if_the_audit_may_spend(audit):
    status, rows, _ = audit(*SOUND, *MODELS["vae"], "audit.spend=true")
    assert status == 0 and "the whole run" in rows


@pytest.mark.parametrize("data", ["digits", "adult", "bms_webview1", "uk_demand"])
def test_canaries_are_records_of_their_schema(data):
    schema = load_complete_settings([f"data={data}"]).schema
    canaries = canaries_of(schema, 50)
    assert len(canaries) == 50 and len({row.tobytes() for row in canaries.take(np.arange(50)).numpy()}) > 25
    assert canaries_of(schema, 50).encoded.codes.tolist() == canaries.encoded.codes.tolist()


def test_coins_are_fair_and_their_own():
    """10,000 coins: outside 4,700 to 5,300 by chance 2e-9."""
    thrown = coins(10_000)
    assert 4_700 < thrown.sum() < 5_300 and (thrown != coins(10_000)).any()


REFUSED = {
    "audit.canaries=3": ["audit.canaries=3"],
    "audit.draws=1": ["audit.draws=1"],
    "audit.confidence=2": ["audit.confidence=2"],
    "claims nothing": ["privacy=off"],
    "makes a run that is not private": ["debug.private_seed=1"],
    "one process": ["trainer.devices=2"],
    "one component": ["split.k=5"],
    "leave them out": ["privacy.study=census"],
    "no setting": ["audit.guesses=5"],
    "at made-up records alone": ["model=measured", "audit.spend=true"],
    "declare the items for it": [
        "data=baskets",
        "data.path=x",
        "data.items=private",
        "data.max_items=4",
        "data.n=99",
        "data.discovery_share=0.1",
        "data.outside=clamp",
        "model=measured",
    ],
    "data.n: must be given": ["data=table", "data.schema=x", "model=measured"],
    "model.steps=0": ["model.steps=0"],
    "single records in an audit": [
        "data=table", "data.path=x", "data.schema=x", "data.person=p", "data.max_rows=2", "model=vae",
    ],
}  # fmt: skip


@pytest.mark.parametrize("told", REFUSED)
def test_what_cannot_be_audited_is_refused(capsys, told):
    status = main(["audit", *REFUSED[told]])
    err = capsys.readouterr().err
    assert status == 2 and told in err and err.count("\n") == 1
