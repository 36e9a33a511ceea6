"""The benchmark of lots runs, and its contenders fetch what they say."""

import sys

import lots
import torch


def test_it_runs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lots.py", "--quick"])
    monkeypatch.setattr(lots, "RECORDS_4M", 10_000)
    try:
        lots.main()
    finally:
        torch.set_flush_denormal(False)
    shown = capsys.readouterr().out
    assert "standard / Opacus sampler" in shown and "CSR, mapped / scipy batch" in shown


def test_contenders_fetch_lots_of_the_same_records(tmp_path):
    for make, width in ((lots.of_pictures, lots.PIXELS), (lots.of_places, lots.PLACES)):
        (_, plain), *contenders = make(200, 20, tmp_path).items()
        assert plain().shape == (20, width)
        for _, draw in contenders:
            drawn = [draw() for _ in range(30)]
            assert 15 < sum(map(len, drawn)) / 30 < 25
            assert {lot.tensors[0].shape[1] for lot in drawn} == {width}
            assert {float(x) for x in drawn[0].tensors[0].unique()} <= {0.0, 1.0, 2.0, 3.0}
