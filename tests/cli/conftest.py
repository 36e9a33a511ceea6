"""One quick training on the bundled digits, shared by the tests of the program; and a way to call it."""

import contextlib
import functools
import shutil
from types import SimpleNamespace

import pytest
from markupsafe import Markup
from metrics.records import few_trees

from lightning_dpgen.cli.main import main
from lightning_dpgen.models import outputs
from lightning_dpgen.plugins import previews
from lightning_dpgen.privacy import durable
from lightning_dpgen.privacy.accounting import accountant, reference
from lightning_dpgen.release.pages import private_plots
from lightning_dpgen.release.rows import pictures
from lightning_dpgen.runs import measure as measured_run

QUICK = [
    "model.steps=5", "model.hidden=8", "model.latent=2", "split.k=3", "split.iterations=2", "split.features=16", "rows=50",
]  # fmt: skip


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Return the folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", *QUICK, f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture
def release(trained, tmp_path):
    """Return a copy of its release, to be spoiled."""
    return shutil.copytree(trained / "release", tmp_path / "release")


@pytest.fixture
def dpgen(capsys):
    """Return a function that calls the program; it gives exit status, standard output and standard error."""

    def call(*argv):
        capsys.readouterr()
        status = main([str(word) for word in argv])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def fair_fits(request):
    """Let fits have as many steps as they need for tests that ask how good they are, of a few columns."""
    request.getfixturevalue("fits_of")(120)


@pytest.fixture(scope="package", autouse=True)
def _cheap_parts():
    """Hold average records over few codes, and draw small sheets, no private plots and few trees: no test looks at them."""
    shifts = reference._dominating_shift
    with pytest.MonkeyPatch.context() as patch, few_trees():
        # Accounts are those of the coarsest interval: upper bounds, too.
        for module in (accountant, reference):
            patch.setattr(module, "intervals_for", lambda *_: accountant.INTERVALS[:1])
        # Shifts at other intervals are kept apart from these.
        patch.setattr(reference, "_dominating_shift", functools.lru_cache(shifts.__wrapped__))
        patch.setattr(outputs, "_CODES", 32)
        patch.setattr(outputs, "_FEWEST", 32)
        patch.setattr(previews, "sheet", functools.partial(previews.sheet, columns=1))
        patch.setattr(pictures, "sheet", functools.partial(pictures.sheet, columns=1))
        patch.setattr(private_plots, "drawn", lambda *_: Markup("<img>"))
        yield


@pytest.fixture(autouse=True)
def _quick_fits(request):
    if "fair_fits" not in request.fixturenames:
        request.getfixturevalue("short_fits")


@pytest.fixture
def interrupted_when_kept(monkeypatch):
    """Return a context that interrupts a run when its measurements were kept so many times; it gives the kept ones."""

    @contextlib.contextmanager
    def within(times):
        saves = []

        def save(path, value):
            durable.save(path, value)
            saves.append(value)
            if len(saves) == times:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(measured_run, "durable", SimpleNamespace(save=save, load=durable.load, reserve=durable.reserve))
            yield saves

    return within
