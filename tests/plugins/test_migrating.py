"""docs/how_to/move_from_opacus.md: listings run and state one epsilon, steps and refusals are as it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from opacus import PrivacyEngine
from opacus.accountants import create_accountant
from opacus.validators import ModuleValidator
from plugins.migrations import (
    CASES,
    QUIET,
    RECORDS,
    Module,
    N,
    batch_norm,
    contrast,
    fit,
    make_loader,
    make_network,
    of_each,
    train,
    with_loss,
)
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

from lightning_dpgen import (
    Account,
    AccountEngine,
    Fixed,
    PerRecord,
    PoissonLots,
    PrivateOptimizer,
    make_plan,
    term_gradients,
    training_stage,
)
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = (Path(__file__).parents[2] / "docs/how_to/move_from_opacus.md").read_text(encoding="utf-8")
LISTINGS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = {
    cells[0]: cells[1:]
    for cells in (line.strip("| ").split(" | ") for line in PAGE.split("## What a refusal says")[1].splitlines())
    if len(cells) == 3 and cells[0] not in ("---", "in the script")
}


@pytest.mark.slow
def test_each_listing_runs_and_all_state_one_epsilon():
    printed = []
    for code in LISTINGS:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "move_from_opacus.md", "exec"), {})
        printed.append(float(re.search(r"^epsilon ([\d.]+)$", out.getvalue(), re.MULTILINE)[1]))
    said = re.search(r"They print epsilon ([\d.]+), ([\d.]+) and ([\d.]+):", PAGE).groups()
    assert printed == pytest.approx([float(number) for number in said], abs=2e-3)
    assert printed[1] == pytest.approx(printed[0], rel=0.01), "Opacus and the account, with one noise"


def test_the_loop_under_an_account_is_that_of_opacus_to_the_letter():
    first, second = (code[code.index("for epoch") : code.index("print(")] for code in LISTINGS[:2])
    assert first == second


def test_other_accountants_state_more_or_less_than_is_spent_as_the_page_says():
    plan = make_plan([training_stage(Fixed(1.0), n=1000, sample_rate=0.05, steps=40, noise=1.1)], epsilon=None, delta=1e-5)
    stated = {}
    for name in ("rdp", "gdp"):
        accountant = create_accountant(name)
        accountant.history = [(1.1, 0.05, 40)]
        stated[name] = accountant.get_epsilon(delta=1e-5)
    assert stated["gdp"] < 0.95 * plan.epsilon and plan.epsilon < 0.95 * stated["rdp"]


def _one_step(how, bound):
    """Take a step of SGD on all records, clipped to a bound, with next to no noise; return the change of all parameters."""
    torch.manual_seed(0)
    network = make_network()
    before = [p.detach().clone() for p in network.parameters()]
    inner = torch.optim.SGD(network.parameters(), lr=1.0)
    if how == "Opacus":
        made = PrivacyEngine(accountant="rdp").make_private(
            module=network, optimizer=inner, data_loader=make_loader(batch_size=N), noise_multiplier=0.0,
            max_grad_norm=bound, poisson_sampling=False,
        )  # fmt: skip
    else:
        stage = Stage(Access("training", {"gradient": 1e-7}, Poisson(1.0)), 1, 1.0)
        account = Account(Plan((stage,), 1e3, 1e-5, n=N))
    if how.startswith("AccountEngine"):
        made = AccountEngine(account).make_private(
            module=network,
            optimizer=inner,
            data_loader=DataLoader(TensorDataset(*RECORDS)),
            max_grad_norm=bound,
            grad_sample_mode="ghost" if how.endswith("ghost") else "hooks",
        )
    if how == "engine of PrivateTraining":
        optimizer = PrivateOptimizer(inner, account=account, clipping=Fixed(bound))
        term = PerRecord(lambda lot, noise: of_each(network, *lot.records))
        optimizer.set_gradients(term_gradients(network, term, PoissonLots(RECORDS, account).draw(), account.stream))
        optimizer.step()
    elif how.endswith("ghost"):
        private, optimizer, criterion, loader = made
        for x, y in loader:
            optimizer.zero_grad()
            criterion(private(x), y).backward()
            optimizer.step()
    else:
        private, optimizer, loader = made
        for x, y in loader:
            optimizer.zero_grad()
            of_each(private, x, y).mean().backward()
            optimizer.step()
    return torch.cat([(p.detach() - old).flatten() for p, old in zip(network.parameters(), before, strict=True)])


@pytest.mark.parametrize("bound", [0.05, 0.8, 100.0], ids=["all are cut", "some are", "none is"])
def test_clipped_gradients_are_those_of_opacus(bound):
    theirs = _one_step("Opacus", bound)
    assert theirs.abs().max() > 1e-4
    for how in ("AccountEngine", "AccountEngine, ghost", "engine of PrivateTraining"):
        torch.testing.assert_close(_one_step(how, bound), theirs, rtol=1e-4, atol=1e-6, msg=how)


def test_a_network_that_opacus_has_fixed_trains():
    fixed = ModuleValidator.fix(batch_norm())
    assert isinstance(fixed[1], torch.nn.GroupNorm)
    fit(Module(fixed))


def test_the_page_lists_each_case():
    assert list(ROWS) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_says_what_the_page_says(name):
    here, opacus = CASES[name]
    does, says = ROWS[name]
    with pytest.raises(Exception) as found:
        here()
    said = re.escape(says).replace(re.escape("..."), ".*")
    assert re.fullmatch(said, str(found.value)) and "\n" not in str(found.value)
    assert does == ("-" if opacus is None else "trains" if _runs(opacus) else "refuses")


def _runs(function):
    try:
        function()
    except Exception:
        return False
    return True


def _together(critic, optimizer, x, y):
    optimizer.zero_grad()
    (softplus(-critic(x)) + softplus(critic(torch.zeros_like(x)))).sum(dim=1).mean().backward()
    optimizer.step()


def _apart(critic, optimizer, x, y):
    optimizer.zero_grad()
    softplus(-critic(x)).sum(dim=1).mean().backward()
    softplus(critic(torch.zeros_like(x))).sum(dim=1).mean().backward()
    optimizer.step()


def test_a_critic_takes_one_backward_pass_as_the_page_says():
    train(_together)
    with pytest.raises(ValueError, match="not compatible with grad accumulation"):
        train(_apart)


def test_a_loop_of_opacus_may_compare_records_as_the_page_says():
    train(with_loss(contrast))


def test_modules_of_cases_train_where_nothing_is_wrong():
    fit()
    train()
    pl.Trainer(max_steps=1, **QUIET).fit(Module(loss=lambda *given: of_each(*given).mean()), make_loader())
