"""The benchmark of other people's networks runs, and says which it leaves out."""

import models
import pytest


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("only", "options"), [("LSTM", ["--alone"]), pytest.param("", [], marks=pytest.mark.slow)], ids=["alone", "all"]
)
def test_it_runs(monkeypatch, capsys, only, options):
    monkeypatch.setattr("sys.argv", ["models.py", "--quick", "--only", only, *options])
    models.main()
    out = capsys.readouterr().out
    for name, stranger in models.STRANGERS.items():
        if only in name:
            runs = models.installed(stranger.package)
            assert (f"{name}: private / plain" if runs else f"{stranger.package} is not installed") in out
    assert "nan" not in out
