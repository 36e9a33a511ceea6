"""A wheel built from the tree carries its configuration and runs `dpgen train` away from the checkout."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def _run(*command: str, **kwargs) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_trains_elsewhere(tmp_path):
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT))
    _run(*build)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    _run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel))
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONWARNINGS": "ignore"}
    program = (sys.executable, "-m", "lightning_dpgen")
    where = "import lightning_dpgen; print(lightning_dpgen.__file__)"
    assert str(site) in _run(sys.executable, "-c", where, cwd=tmp_path, env=environment)
    quick = ("run_dir=run", "model.steps=3", "split.iterations=1", "rows=10")
    out = _run(*program, "train", *quick, cwd=tmp_path, env=environment)
    assert "epsilon" in out and (tmp_path / "run" / "release" / "privacy.json").is_file()
    assert "CONSISTENT" in _run(*program, "verify", "run/release", cwd=tmp_path, env=environment)
