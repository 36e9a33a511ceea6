"""One quick training on the bundled digits, shared by the tests of the program; and a way to call it."""

import shutil

import pytest

from lightning_dpgen.cli.main import main

QUICK = ["model.steps=5", "model.hidden=8", "model.latent=2", "split.iterations=2", "split.features=16", "rows=50"]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", *QUICK, f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture
def release(trained, tmp_path):
    """A copy of its release, to be spoiled."""
    return shutil.copytree(trained / "release", tmp_path / "release")


@pytest.fixture
def dpgen(capsys):
    """Calls the program; gives exit status, standard output and standard error."""

    def call(*argv):
        capsys.readouterr()
        status = main([str(word) for word in argv])
        out, err = capsys.readouterr()
        return status, out, err

    return call
