"""`dpgen encode`: codes of real records, private, in a file of their own; or one line and no file."""

import re
import stat

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_dpgen import load_release
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.data.records import Records
from lightning_dpgen.models.vae import StackedVAE

QUICK = ["model.steps=20", "split.iterations=2", "split.features=16", "rows=20", "split.k=3", "model.hidden=8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from lightning_dpgen.cli.main import main

    folder = tmp_path_factory.mktemp("encode")
    assert main(["train", *QUICK, "model.latent=3", f"run_dir={folder / 'vae'}"]) == 0
    assert main(["train", "model=measured", "rows=20", f"run_dir={folder / 'measured'}"]) == 0
    return folder


def test_codes_of_records_are_written_for_their_owner_alone(dpgen, run, tmp_path):
    path = tmp_path / "codes.parquet"
    status, out, err = dpgen("encode", run / "vae", "data=digits", "-o", path)
    assert status == 0 and "PRIVATE" in out and "codes of 3 dimensions" in out, err
    codes = pd.read_parquet(path)
    assert list(codes.columns) == ["component", "z_0", "z_1", "z_2"] and set(codes["component"]) <= {0, 1, 2}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # From Python they are the same.
    schema = public_set("digits").schema
    records = Records(schema, load_public_set("digits").encoded)
    release = load_release(run / "vae")
    pd.testing.assert_frame_equal(release.encode(records), codes)


def test_a_record_has_the_component_of_the_largest_bound(run):
    """By hand, one component at a time: the weight times the evidence lower bound at the mean of the code."""
    release, schema = load_release(run / "vae"), public_set("digits").schema
    network, records = release.mixture.network, Records(schema, load_public_set("digits").encoded)
    x = records.take(np.arange(40))
    found, mean, _ = network.nearest_components(x, release.mixture.weights)
    bounds = []
    for c in range(3):
        own = [0] * (c + 1) + [1] * (3 - c)
        rows = []
        for i in range(40):
            centre, log_variance = network.encode(x[i : i + 1], own)
            made = torch.sigmoid(network.decode(centre, own)[:, :64]).clamp(1e-7, 1 - 1e-7)
            logits = network.decode(centre, own)[:, 64:]
            units = (x[i, :64] * made.log() + (1 - x[i, :64]) * (1 - made).log()).sum()
            label = (x[i, 64:] * torch.log_softmax(logits, dim=1)).sum()
            kl = 0.5 * (centre.square() + log_variance.exp() - 1 - log_variance).sum()
            rows.append(float((release.mixture.weights[c].log() + units + label - kl).detach()))
        bounds.append(rows)
    assert np.array_equal(np.argmax(bounds, axis=0), found.numpy()) and mean.shape == (40, 3)
    assert isinstance(network, StackedVAE)


BAD = {
    "no encoder": (
        ["{measured}", "data=digits", "-o", "{place}/c.parquet"],
        "is measured statistics, without an encoder",
    ),
    "into the release": (["{vae}", "data=digits", "-o", "{vae}/release/c.parquet"], "lies in a release"),
    "another ending": (["{vae}", "data=digits", "-o", "{place}/c.csv"], r"ends in \.parquet"),
    "no folder": (["{vae}", "data=digits", "-o", "{place}/none/c.parquet"], "there is no folder"),
    "other records": (["{vae}", "data=mushroom", "-o", "{place}/c.parquet"], "the release is of kind images"),
    "no data": (["{vae}", "-o", "{place}/c.parquet"], r"data: must be given, as in data=digits$"),
    "no kind of data": (["{vae}", "data.path=x", "-o", "{place}/c.parquet"], r"data: must be given, as in data=digits$"),
    "no place": (["{vae}", "data=digits"], "-o"),
}


@pytest.mark.parametrize(("words", "line"), BAD.values(), ids=BAD)
def test_anything_else_is_one_line_and_no_file(dpgen, run, tmp_path, words, line):
    given = [word.format(vae=run / "vae", measured=run / "measured", place=tmp_path) for word in words]
    status, _, err = dpgen("encode", *given)
    assert status == 2 and re.search(line, err) and "Traceback" not in err, err
    assert not list(tmp_path.glob("*")) and not list((run / "vae/release").glob("*.parquet.part"))
