"""The versions that a certificate names: a package that is only on the path has none."""

import importlib.metadata

import pytest

import lightning_dpgen
from lightning_dpgen.cli.main import main
from lightning_dpgen.privacy import software
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import NotInstalled
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.ranks import Ranks


def test_versions_are_those_that_are_installed():
    known = software.versions()
    assert known["lightning_dpgen"] == importlib.metadata.version("lightning_dpgen") == lightning_dpgen.__version__
    assert {"torch", "opacus", "python"} <= set(known) and all(known.values())


def test_a_package_without_a_version_is_named_before_anything_is_spent(monkeypatch):
    monkeypatch.setattr(software, "_PACKAGES", ("lightning_dpgen", "no-such-package"))
    with pytest.raises(NotInstalled, match=r"^no-such-package is not installed.*pip install"):
        Account(Plan((), 1.0, 1e-5)).join(Ranks())


@pytest.mark.parametrize("words", [["--version"], ["train", "model=average"]])
def test_a_checkout_that_is_not_installed_is_one_line(monkeypatch, capsys, words):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(software, "version", version)
    software.installed_version.cache_clear()
    assert main(words) == 2
    shown = capsys.readouterr()
    assert not shown.out and shown.err.count("\n") == 1
    assert shown.err.startswith("dpgen: lightning_dpgen is not installed")
