"""A wheel built from the tree carries its configuration and runs `dpgen train` away from the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def _run(*command: str, **kwargs) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_wheel_trains_elsewhere(tmp_path):
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT))
    _run(*build)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(site))
    _run(*install, str(wheel))
    assert (site / "lightning_dpgen" / "py.typed").is_file()
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONWARNINGS": "ignore"}
    quick = ["run_dir=run", "model.steps=3", "split.iterations=1", "rows=10"]
    # Both run in one process, since imports take most of the time of each.
    program = (
        "import sys, lightning_dpgen; from lightning_dpgen.cli.main import main; print(lightning_dpgen.__file__); "
        f"sys.exit(main({['train', *quick]}) or main(['verify', 'run/release']))"
    )
    out = _run(sys.executable, "-c", program, cwd=tmp_path, env=environment)
    assert str(site) in out and "epsilon" in out and "CONSISTENT" in out
    assert (tmp_path / "run" / "release" / "privacy.json").is_file()
