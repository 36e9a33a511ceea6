"""Figures of PriVAE: every variant has a plan within its budget, and the other aggregations train as they say."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from experiments.common.kept import Kept
from experiments.privae import fashion as privae_fashion
from experiments.privae import pinwheel
from experiments.privae.aggregations import AGGREGATIONS, DRAWS, WholeLotVAE
from lightning_dpgen import (
    Account,
    Fixed,
    MomentsAccountant,
    PrivateSplitDataModule,
    SplitSettings,
    encode_images,
    make_plan,
    training_stage,
)
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.gradients.per_sample_gradients import weighted_sums
from lightning_dpgen.models.divergences import GroupCodes, make_kernel, mmd
from lightning_dpgen.privacy import mechanisms
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.specs.settings import load_complete_settings

SCHEMA, N, STEPS, BOUND = ImageSchema(2, 2, levels=255), 60, 3, 0.5


@pytest.mark.parametrize("name", pinwheel.VARIANTS)
def test_a_variant_of_the_pinwheel_spends_its_budget(name):
    plan = load_complete_settings(pinwheel.VARIANTS[name]).plan()
    assert plan.private is ("not private" not in name)
    assert not plan.private or (2.8 < plan.epsilon <= 2.87 and plan.delta == 1e-4)


@pytest.mark.parametrize("name", [*privae_fashion.PRIVATE, *privae_fashion.TWINS])
def test_a_variant_of_the_pictures_spends_its_budget(name):
    if name in privae_fashion.TWINS:
        assert not load_complete_settings(privae_fashion.TWINS[name]).plan().private
        return
    asked = load_complete_settings([*privae_fashion.PRIVATE[name], "privacy.epsilon=4"])
    plan = asked.plan()
    assert 3.9 < plan.epsilon <= 4.0 and plan.delta == 1e-5 and asked.spec.data.classes == 0


def test_points_without_a_term_are_trained_as_with_it_but_for_that():
    for with_it, without in (("faithful, KL", "faithful, without"), ("best, mmd", "best, without")):
        pair = [load_complete_settings(pinwheel.VARIANTS[name]).spec.model for name in (with_it, without)]
        differ = {key for key in type(pair[0]).model_fields if getattr(pair[0], key) != getattr(pair[1], key)}
        assert "divergence" in differ and differ <= {
            *(name for names in pinwheel.TERM.values() for name in names), "beta", "noise", "divergence_averaging",
        }  # fmt: skip


def make_module(aggregation, *, bound=BOUND, n=N, rate=0.5):
    split = SplitSettings(k=1)
    stage = training_stage(Fixed(bound), n=n, sample_rate=rate, steps=STEPS)
    plan = make_plan([*split.specs(n, means=False), stage], epsilon=20.0, delta=1e-5)
    account = Account(plan, stream=PrivateStream(seed=0))
    return WholeLotVAE(
        SCHEMA, account, Fixed(bound), n=n, k=1, hidden=3, latent=2, bias="zero", prior_scale=0.1, weight=5.0,
        aggregation=aggregation,
    )  # fmt: skip


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_lot_as_one_vector_is_noised_for_twice_its_bound(aggregation, monkeypatch):
    declared, gaussian = [], mechanisms.gaussian

    def noted(access, name, values, *, sensitivity, **given):
        declared.append((name, sensitivity))
        return gaussian(access, name, values, sensitivity=sensitivity, **given)

    monkeypatch.setattr("lightning_dpgen.gradients.privatize.gaussian", noted)
    module = make_module(aggregation)
    account = module.account
    trainer = pl.Trainer(
        callbacks=[MomentsAccountant(account)], accelerator="cpu", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    records = encode_images(torch.arange(N * 4).view(N, 2, 2).remainder(256).numpy(), None, SCHEMA)
    trainer.fit(module, PrivateSplitDataModule(records, SplitSettings(k=1), account, n=N, block=4))
    account.verify_complete()
    # A rehearsal before the fit, without records, is first.
    assert declared[1:] == [("gradient", 2.0 * BOUND)] * STEPS
    assert account.plan.epsilon == pytest.approx(20.0, rel=1e-3)


def whole_gradient(module, records, noise):
    """Return the vector of a lot before its last clip, by noise of codes that is handed in."""
    module.account.stream.normal = lambda *_, **__: noise
    module._public.manual_seed(5)
    (gradients,) = module.gradients(Lot(records, (0, len(records))))
    assert gradients.groups == len(gradients) == 1
    out = {p: torch.zeros_like(p) for p in module.network.parameters()}
    weighted_sums([(gradients, torch.ones(1))], out)
    return torch.cat([out[p].flatten() for p in module.network.parameters()])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("bound", [1e-3, 30.0, 1e3])
def test_a_lot_is_one_vector_of_clipped_gradients(aggregation, bound):
    """An oracle goes through the records one by one, with autograd alone."""
    module, generator = make_module(aggregation, bound=bound), torch.Generator().manual_seed(2)
    records, noise = torch.rand(9, 4, generator=generator), torch.randn(9, 2, generator=generator)
    network, parameters = module.network, list(module.network.parameters())
    draws = network.prior.draw(torch.randn(DRAWS, network.prior.noise, generator=torch.Generator().manual_seed(5)))
    mean, log_variance = network.encode(records, (0, 9))
    z = mean + torch.exp(0.5 * log_variance) * noise
    codes = GroupCodes(z[None], mean[None], log_variance[None], torch.ones(1, 9, dtype=torch.bool))
    common = 5.0 * mmd(codes, draws, make_kernel("cauchy", 2)).sum()

    def gradient(loss):
        found = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in found])

    losses = [network.negative_elbo(Lot(records[i : i + 1], (0, 1)), noise[i : i + 1]).sum() for i in range(9)]
    if aggregation == "batch":
        expected = gradient(sum(losses) / 9 + common)
    else:
        rows = [gradient(loss + common) for loss in losses]
        clipped = sum(bool(row.norm() > bound) for row in rows)
        assert clipped == {1e-3: 9, 1e3: 0}.get(bound, clipped) and (bound != 30.0 or 0 < clipped < 9)
        # The expected lot is of 30.
        expected = sum(row * min(1.0, bound / float(row.norm())) for row in rows) / 30.0
    torch.testing.assert_close(whole_gradient(module, records, noise), expected, rtol=2e-4, atol=1e-6)


def test_micro_aggregation_moves_by_2b_minus_1():
    """In one dimension, with a lot of at most B: B C and 2 (B - 1) C are too small, and the clipped mean moves by 2 C."""
    B, C = 16, 0.05

    def total(own, common):
        return float(np.clip(np.asarray(own) + common, -C, C).sum())

    # Gradients of records are far smaller than that of the divergence, which one record more turns round.
    before, after = total([0.0] * (B - 1), -40.0), total([0.0] * B, 40.0)
    assert after - before == pytest.approx((2 * B - 1) * C)
    assert after - before > max(B, 2 * (B - 1)) * C * 1.01
    # A wrong order: a mean that is not clipped again moves further in a larger lot.
    larger = total([0.0] * (2 * B), 40.0) - total([0.0] * (2 * B - 1), -40.0)
    assert larger / B > 2 * C * 1.5 and np.clip(larger / B, -C, C) + C <= 2 * C


def test_an_aggregation_of_another_name_is_refused():
    with pytest.raises(ValueError, match="aggregation='mean': expected batch or micro"):
        make_module("mean")


# Two steps of a dense pair on digits in place of 2,350 on pictures; the convolutional pair takes pictures of 32 x 32.
SHORT = ["data=digits", "data.n=1500", "model.steps=2", "model.rate=0.1", "trainer.accelerator=cpu"]


def test_figure_1_is_drawn_from_its_cells(monkeypatch, tmp_path, figures):
    """Some forms at two budgets, a twin, and the same command with what is kept, which trains nothing."""
    x = torch.rand(60, 64, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(privae_fashion, "pictures", lambda held_out: (x, np.zeros(60)))
    names = ["PriVAE + MMD", "PriVAE", "micro aggregation", "VAE + MMD"]
    for forms in (privae_fashion.PRIVATE, privae_fashion.TWINS):
        for name in forms.keys() & set(names):
            monkeypatch.setitem(forms, name, [*forms[name], *SHORT])
    monkeypatch.setattr(sys, "argv", ["fashion", str(tmp_path), "--epsilons", "4", "8", "--only", *names])
    privae_fashion.main()
    kept = json.loads((tmp_path / "privae_fashion.json").read_text())
    assert len(kept) == 2 * 3 + 1
    assert all(np.isfinite(row).all() and len(row) == len(privae_fashion.COLUMNS) for row in kept.values())
    monkeypatch.setattr(privae_fashion, "trained", lambda *_: pytest.fail("a cell is computed again"))
    monkeypatch.setattr(sys, "argv", ["fashion", str(tmp_path), "--kept"])
    privae_fashion.main()
    above = figures[-1].axes[0]
    curve = {line.get_label(): line for line in above.lines}["micro aggregation (1)"]
    cells = [kept[json.dumps({"epsilon": e, "run": 0, "variant": "micro aggregation"})][0] for e in (4.0, 8.0)]
    assert curve.get_ydata() == pytest.approx(cells)


def test_a_rate_is_chosen_by_training_pictures(monkeypatch, tmp_path, capsys):
    asked = []
    monkeypatch.setattr(privae_fashion, "pictures", lambda held_out: asked.append(held_out) or (torch.rand(60, 64), None))
    monkeypatch.setitem(privae_fashion.PRIVATE, "PriVAE + MMD", [*privae_fashion.PRIVATE["PriVAE + MMD"], *SHORT])
    monkeypatch.setattr(sys, "argv", ["fashion", str(tmp_path), "--rates", "0.001", "0.01"])
    privae_fashion.main()
    assert asked == [False] and capsys.readouterr().out.count("PriVAE + MMD, rate") == 2


def test_weights_that_stay_have_not_moved(tmp_path, monkeypatch):
    """A rate of 1e-30 moves nothing; a step of Adam moves each weight by its rate."""
    still = [*privae_fashion.PRIVATE["PriVAE"], *SHORT, "model.lr=1e-12"]
    monkeypatch.setitem(privae_fashion.PRIVATE, "PriVAE", still)
    assert privae_fashion.moved(privae_fashion.trained(tmp_path, "PriVAE", 4.0, 3), 3) < 1e-6
    assert privae_fashion.moved(privae_fashion.trained(tmp_path, "PriVAE", 4.0, 3), 4) > 1.0


def test_figure_2_is_drawn_from_its_cells(monkeypatch, tmp_path, figures):
    names = ["faithful, KL", "best, mmd, not private", "faithful, KL, corners"]
    for name in list(pinwheel.VARIANTS):
        monkeypatch.setitem(pinwheel.VARIANTS, name, [*pinwheel.VARIANTS[name], "model.steps=2", "trainer.accelerator=cpu"])
        if name not in names:
            monkeypatch.delitem(pinwheel.VARIANTS, name)
    monkeypatch.setattr(sys, "argv", ["pinwheel", str(tmp_path)])
    pinwheel.main()
    kept = json.loads((tmp_path / "privae_pinwheel.json").read_text())
    shown = [name for name in pinwheel.VARIANTS if "corners" not in name]
    assert len(kept) == len(pinwheel.VARIANTS) + len(shown)
    monkeypatch.setattr(pinwheel, "trained", lambda *_: pytest.fail("a cell is computed again"))
    monkeypatch.setattr(sys, "argv", ["pinwheel", str(tmp_path), "--kept"])
    pinwheel.main()
    assert [axis.get_title() for axis in figures[-1].axes[: len(shown)]] == shown


# The forms of both figures, as the page calls them.
FORMS = {
    "PriVAE + MMD": "the paper's + MMD",
    "PriVAE": "the paper's",
    "micro aggregation": "micro aggregation, true 2 C",
    "batch aggregation": "batch aggregation, true 2 C",
    "tuned rate + MMD": "a rate of 10 + MMD",
    "tuned rate": "a rate of 10",
    "tuned rate, noise of MMD": "a rate of 10, noise of the term without its gradient",
    "VAE + MMD": "the paper's twin, VAE + MMD",
    "VAE": "the same twin without the term",
}
SPIRALS = {
    "faithful, KL": "the paper's, KL by one group",
    "faithful, without": "the paper's without the term",
    "faithful, KL, not private": "the paper's, not private",
    "faithful, without, not private": "the paper's without the term, not private",
    "best, mmd": "best: discrepancy by a mean embedding, full lots, 100 steps of Adam, an average over them",
    "best, without": "best without the term",
    "best, mmd, not private": "best, not private",
    "best, without, not private": "best without the term, not private",
    "best, mmd, corners": "best, with centres at the corners of the unit square",
    "faithful, KL, corners": "the paper's at these corners",
    "faithful, KL, corners, not private": "the paper's at these corners, not private",
}
RESULTS = Path(__file__).parents[2] / "experiments/results"


def _kept_runs(kept, about):
    return np.array(
        list(itertools.takewhile(lambda cell: cell is not None, (kept.look(about | {"run": i}) for i in range(99))))
    )


def _short(value):
    return f"{value:.3f}".replace("0.", ".", 1) if value < 1 else f"{value:.3f}"


def lines_of_pictures():
    """Return the lines of the page that say what is kept of Figure 1."""
    kept = Kept(RESULTS / "privae_fashion.json")
    for name in (*privae_fashion.PRIVATE, *privae_fashion.TWINS):
        for epsilon in privae_fashion.epsilons_of(name, privae_fashion.EPSILONS):
            if len(found := _kept_runs(kept, {"variant": name, "epsilon": epsilon})):
                sparsity, likelihood, discrepancy, moved = found.mean(axis=0)
                far = f"{moved:.2f}" if moved > 0.1 else f"{moved:.4f}".lstrip("0")
                at = "" if epsilon is None else f", {epsilon:g}"
                scores = f"{_short(sparsity)} | {likelihood:.0f} | {discrepancy:.1f}"
                yield f"| {FORMS.get(name, name)}{at} | {len(found)} | {scores} | {far} |"


def lines_of_spirals():
    """Return the lines of the page that say what is kept of Figure 2."""
    kept = Kept(RESULTS / "privae_pinwheel.json")
    for name, form in SPIRALS.items():
        found = _kept_runs(kept, {"variant": name})
        good = int(((found[:, 0] >= 0.9) & (found[:, 1] == pinwheel.ARMS)).sum())
        pure, off = (f"{_short(x.mean())} ({_short(x.std())})" for x in (found[:, 0], found[:, 2]))
        yield f"| {form} | {pure} | {good} of {len(found)} | {off} |"


@pytest.mark.parametrize("line", [*lines_of_pictures(), *lines_of_spirals()])
def test_the_page_shows_the_results_that_are_kept(line):
    assert line in (RESULTS.parent / "privae/README.md").read_text(encoding="utf-8")
