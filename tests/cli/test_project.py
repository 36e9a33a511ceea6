"""`dpgen project`: it turns rows into projected rows with a certificate, in one command that spends once."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import safetensors.numpy
import scipy.sparse
from contracts.sealed import rewrite

from lightning_dpgen.data.simulated.points import blobs
from lightning_dpgen.privacy.drawn_noise import read_unit, write_unit
from lightning_dpgen.release.drawing.opened import file_hash
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.stated_noises import sums_of
from lightning_dpgen.runs import project

SETTINGS = ["data.n=300", "data.d=12", "project.radius=6", "project.k=5"]


@pytest.fixture(scope="module")
def projected(tmp_path_factory):
    from lightning_dpgen.cli.main import main

    folder = tmp_path_factory.mktemp("project") / "run"
    assert main(["project", *SETTINGS, f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture
def release(projected, tmp_path):
    return shutil.copytree(projected / "release", tmp_path / "release")


def _one_line(err):
    (line,) = [line for line in err.splitlines() if line.startswith("dpgen:") and not line.startswith("dpgen: warning")]
    return line


def test_a_release_is_whole_consistent_and_useful(dpgen, projected):
    release = projected / "release"
    names = {"README.md", "model.json", "model.safetensors", "privacy.json", "projected.parquet", "report.html"}
    assert {path.name for path in release.iterdir()} == names
    certificate = json.loads((release / "privacy.json").read_text())
    assert certificate["relation"] == "replace_one" and certificate["delta"] == 0.0 and certificate["epsilon"] == 4.0
    assert certificate["also"] == {"replace_one_epsilon": 4.0, "gaussian_mu": None, "curve": []}
    assert "one row replaced by any other row" in certificate["statement"]
    status, out, err = dpgen("verify", release)
    assert status == 0 and "it moves rows by at most" in out and not err
    table = pyarrow.parquet.read_table(release / "projected.parquet")
    assert table.shape == (300, 5) and table.column_names[4] == "projected_4"
    loaded = load_release(release)
    assert np.array_equal(loaded.rows, np.column_stack([c.to_numpy() for c in table.columns]))
    assert loaded.recovery.squared_distances(loaded.rows[:9], loaded.rows[9:18]).shape == (9,)
    assert loaded.whitened().shape == (300, 5)


def test_whitened_rows_are_round():
    from lightning_dpgen.projection.matrices import make_matrix
    from lightning_dpgen.projection.neighbourhood import Neighbourhood
    from lightning_dpgen.projection.project import Projection
    from lightning_dpgen.release.projected import ProjectedRows

    random = np.random.default_rng(0)
    matrix = make_matrix("gaussian", 12, 4, 0)
    rows = random.normal(size=(50_000, 12)) @ matrix + random.laplace(scale=0.7, size=(50_000, 4))
    projection = Projection(matrix, Neighbourhood("row", distance=1.0), "laplace")
    white = ProjectedRows(rows, projection, "gaussian", 0.7, None).whitened()
    np.testing.assert_allclose(np.cov(white.T), np.eye(4), atol=0.05)


def test_sample_and_evaluate_are_not_for_it(dpgen, release):
    for command in ("sample", "evaluate"):
        status, _, err = dpgen(command, release)
        assert status == 2 and "projected rows" in _one_line(err)


def _sealed(release, change=lambda c: None):
    def with_hashes(certificate):
        change(certificate)
        certificate["files"] = {name: file_hash(release / name) for name in certificate["files"]}

    rewrite(release, with_hashes)


def _description(release, **changes):
    path = release / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _tensors(release, change):
    path = release / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    change(tensors)
    safetensors.numpy.save_file(tensors, path)


def _row(release, steps):
    """Move one released number by a part of a step."""
    path = release / "projected.parquet"
    table = pyarrow.parquet.read_table(path)
    grid = json.loads((release / "model.json").read_text())["grid"]
    first = table.column(0).to_numpy().copy()
    first[0] += steps * grid
    pyarrow.parquet.write_table(table.set_column(0, table.column_names[0], pa.array(first)), path)


FORGERIES = {
    "less noise": (lambda r: _description(r, scale=0.01), "the noise is too small"),
    "a larger matrix": (lambda r: _tensors(r, lambda t: t["matrix"].__imul__(4.0)), "not the one that declared.seed draws"),
    "a matrix off its grid": (lambda r: _tensors(r, lambda t: t["matrix"].__imul__(1.1)), "that are not multiples of"),
    "a row off the grid": (lambda r: _row(r, 0.3), "are not multiples of the grid"),
    "a finer grid": (lambda r: _description(r, grid=2.0**-30), "declared.projection does not say"),
    "a grid that is none": (lambda r: _description(r, grid=0.0), "expected a number from"),
    "more than a projection": (lambda r: _tensors(r, lambda t: t.update(raw=t["centre"])), "a tensor too many"),
    "a count of another table": (lambda r: _description(r, pulled_back=301), "expected a whole number up to 300"),
    "no count": (lambda r: _description(r, pulled_back=None), "exactly if model.json gives a count"),
    "an overflow": (lambda r: _description(r, scale=10**400), "cannot be read"),
    "another kind": (lambda r: _description(r, model="vae_mixture"), "must agree on what this is"),
    "a distance": (lambda r: _description(r, radius=None, distance=1.0), "unit of privacy is not the neighbourhood"),
    "a larger radius": (lambda r: _description(r, radius=60.0), "unit of privacy is not the neighbourhood"),
    "an element for a row": (lambda r: _description(r, unit="element"), "unit of privacy is not the neighbourhood"),
    "another noise": (lambda r: _description(r, noise="gaussian"), "declared.projection does not say"),
    "no such matrix": (lambda r: _description(r, matrix="magic"), "cannot be read"),
    "infinite numbers": (lambda r: _tensors(r, lambda t: t["matrix"].__setitem__((0, 0), np.inf)), "cannot be read"),
    "another k": (lambda r: _description(r, k=4), "cannot be read"),
    "a scale that is none": (lambda r: _description(r, scale="large"), "cannot be read"),
    "no centre": (lambda r: _tensors(r, lambda t: t.pop("centre")), "cannot be read"),
}


@pytest.mark.parametrize(("forge", "words"), FORGERIES.values(), ids=FORGERIES.keys())
def test_forgeries_with_new_hashes_are_refused(dpgen, release, forge, words):
    forge(release)
    _sealed(release)
    status, out, err = dpgen("verify", release)
    assert status == 2 and words in out and not err


def _renamed(certificate):
    certificate["stages"][1].update(name="x")
    for entry in certificate["noise"]["sums"]:
        entry.update(stage="x" if entry["stage"] == "rows" else entry["stage"])


def _coarser(certificate):
    """Double the unit of rows, in agreement with the size of their noise."""
    (entry,) = sums_of(certificate, "rows")
    unit = 2.0 * float(read_unit(entry["unit"]))
    entry.update(unit=write_unit(unit), scale=entry["scale_in_units"] * unit)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(relation="add_or_remove_one"), "relation"),
        (lambda c: c["declared"].update(n=299), "does not hold the certificate's statement"),
        (lambda c: c.update(unit="one person, whatever happens"), "does not hold the certificate's statement"),
        (lambda c: c["declared"].update(seed=5), "not the one that declared.seed draws"),
        (lambda c: c["declared"]["projection"].update(radius=1.0), "declared.projection does not say"),
        (lambda c: c["also"].update(replace_one_epsilon=2.0), "'also'"),
        (lambda c: c.update(epsilon=2.0, target_epsilon=2.0), "costs"),
        (lambda c: c["stages"][1].update(name="something"), "noise of stage 'rows': there is no such stage"),
        (_renamed, "expected 'rows', and 'clipped' exactly if"),
        (_coarser, "moves rows by at most"),
    ],
)
def test_forged_certificates_are_refused(dpgen, release, change, words):
    _sealed(release, change)
    status, out, _ = dpgen("verify", release)
    assert status == 2 and words in out


def test_a_grid_of_another_sensitivity_is_refused(dpgen, release):
    """All numbers are multiples of it, and files and certificate agree; the matrix does not."""
    grid = json.loads((release / "model.json").read_text())["grid"] / 2
    _description(release, grid=grid)
    _sealed(release, lambda c: c["declared"]["projection"].update(grid=grid))
    status, out, _ = dpgen("verify", release)
    assert status == 2 and "this projection puts rows on multiples of" in out


def test_what_is_not_a_projection_cannot_claim_replacement(dpgen, trained, tmp_path):
    folder = shutil.copytree(trained / "release", tmp_path / "other")
    _sealed(folder, lambda c: c.update(relation="replace_one"))
    assert dpgen("verify", folder)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["project.radius=null"], "give one of them"),
        (["project.distance=1"], "give one of them"),
        (["project.radius=-2"], "radius=-2"),
        (["project.k=13"], "expected 1 to 12"),
        (["project.k=0"], "expected a whole number from 1"),
        (["project.unit=cell"], "project.unit=cell: expected one of row, element"),
        (["project.matrix=magic"], "expected one of gaussian"),
        (["project.matrix=identity"], "expected project.k=12"),
        (["project.noise=uniform"], "expected one of laplace"),
        (["project.noise=gaussian"], "needs a delta above 0"),
        (["project.centre=[1,2]"], "a list of 12 numbers"),
        (["project.centre=here"], "project.centre=here"),
        (["project.typical=-1"], "project.typical"),
        (["project.count_share=2"], "count_share"),
        (["privacy.epsilon=-1"], "privacy.epsilon=-1"),
        (["privacy.epsilon=null"], "privacy.epsilon=None"),
        (["privacy.delta=2"], "privacy.delta=2"),
        (["privacy.delta=0.01"], "less than 1/n"),
        (["privacy.unit=me"], "privacy.unit"),
        (["privacy=off", "privacy.epsilon=1"], "takes no epsilon"),
        (["privacy.noise=some"], "privacy.noise=some"),
        (["privacy.noise=secure", "debug.private_seed=1"], "takes no seed"),
        (["data.n=0"], "data.n=0"),
        (["project.distance=1"], "project.distance=1"),
        (["project=3"], "project=3: expected settings below this name: project.unit"),
        (["project.noise=gaussian"], "privacy.delta=0 with project.noise='gaussian'"),
        (["data=array"], "data.path"),
        (["data=array", "data.path=nowhere.npy"], "nowhere.npy"),
        (["data=array", f"data.path={__file__}"], "expected a name that ends in"),
        (["seed=-1"], "seed=-1"),
        (["project.nothing=1"], "no setting"),
        (["-m"], "only with dpgen train"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_leaves_nothing(dpgen, tmp_path, arguments, words):
    status, _, err = dpgen("project", *SETTINGS, f"run_dir={tmp_path / 'run'}", *arguments)
    assert status == 2 and words in _one_line(err), err
    assert not (tmp_path / "run").exists()


def test_train_says_where_rows_belong(dpgen):
    status, _, err = dpgen("train", "data=blobs")
    assert status == 2 and "is for dpgen project" in _one_line(err)
    status, _, err = dpgen("project", "data=digits")
    assert status == 2 and "is for dpgen train" in _one_line(err)


def test_files_of_rows(dpgen, tmp_path):
    rows = blobs(80, 4, seed=0)[0]
    np.save(tmp_path / "f.npy", rows.astype(np.float32))
    scipy.sparse.save_npz(tmp_path / "f.npz", scipy.sparse.csr_array(np.maximum(rows, 0.0)))
    columns = {name: rows[:, i] for i, name in enumerate("abcd")}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "f.parquet")
    for suffix in ("npy", "npz", "parquet"):
        run = tmp_path / suffix
        arguments = ["data=array", f"data.path={tmp_path / 'f'}.{suffix}", "project.radius=4", f"run_dir={run}"]
        status, _, err = dpgen("project", *arguments)
        assert status == 0, err
        assert dpgen("verify", run / "release")[0] == 0
        assert json.loads((run / "release" / "privacy.json").read_text())["declared"]["n"] == 80


def test_sparse_files_whose_indices_point_elsewhere(dpgen, tmp_path):
    for name, indices, indptr, shape in [("far", [0, 99], [0, 1, 2], (2, 12)), ("long", [0, 1], [0, 5, 1, 2], (3, 12))]:
        path = tmp_path / f"{name}.npz"
        np.savez(path, format=b"csr", shape=shape, data=np.ones(2), indices=indices, indptr=indptr)
        arguments = ["data=array", f"data.path={path}", "project.radius=1", "project.k=3", f"run_dir={tmp_path / 'r'}"]
        status, _, err = dpgen("project", *arguments)
        assert status == 2 and ("damaged" in _one_line(err) or "cannot be read" in _one_line(err))
        assert not (tmp_path / "r").exists()


def test_files_that_are_no_rows(dpgen, tmp_path):
    np.save(tmp_path / "cube.npy", np.zeros((2, 2, 2)))
    np.save(tmp_path / "nan.npy", np.full((9, 2), np.nan))
    np.save(tmp_path / "text.npy", np.array([["a", "b"]]))
    np.savez(tmp_path / "plain.npz", images=np.zeros((3, 3)))
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    pyarrow.parquet.write_table(pyarrow.table({"a": [1.0], "name": ["x"]}), tmp_path / "names.parquet")
    for path, words in [
        ("cube.npy", "expected (n, d)"),
        ("nan.npy", "NaN"),
        ("text.npy", "expected numbers"),
        ("plain.npz", "a csr matrix is written by"),
        ("empty.parquet", "cannot be read as rows"),
        ("table.csv", "expected a name that ends in"),
        ("names.parquet", "column 'name'"),
    ]:
        run = tmp_path / "run"
        arguments = ["data=array", f"data.path={tmp_path / path}", "project.radius=1", f"run_dir={run}"]
        status, _, err = dpgen("project", *arguments)
        assert status == 2 and words in _one_line(err), path
        assert not run.exists()


def test_a_radius_that_pulls_back_most_rows_is_warned_about(dpgen, tmp_path):
    arguments = ["data.n=5000", "data.d=12", "project.radius=1", "project.k=5", f"run_dir={tmp_path / 'r'}"]
    status, out, err = dpgen("project", *arguments)
    assert status == 0 and "noisy count" in out and "pulls back most rows" in err


def test_an_element_protects_no_row_and_says_so(dpgen, tmp_path):
    status, _, err = dpgen("project", *SETTINGS, "project.unit=element", f"run_dir={tmp_path / 'r'}")
    assert status == 0 and "protects one number of one row" in err
    text = json.loads((tmp_path / "r" / "release" / "privacy.json").read_text())["statement"]
    assert "a whole row is not the unit of this release" in text


def test_a_declared_distance_says_that_it_is_not_enforced(dpgen, tmp_path):
    arguments = ["data.n=300", "data.d=12", "project.distance=1", f"run_dir={tmp_path / 'r'}"]
    status, _, err = dpgen("project", *arguments)
    assert status == 0 and "declared and not enforced" in err
    assert "not enforced" in json.loads((tmp_path / "r" / "release" / "privacy.json").read_text())["unit"]


@pytest.mark.parametrize("switch", [["privacy=off"], ["debug.private_seed=3"]])
def test_what_is_not_private_is_labelled_and_refused(dpgen, tmp_path, switch):
    status, out, _ = dpgen("project", *SETTINGS, *switch, f"run_dir={tmp_path / 'r'}")
    assert status == 0 and "NOT A PRIVATE RELEASE" in out
    assert dpgen("verify", tmp_path / "r" / "release")[0] == 2
    rows = pyarrow.parquet.read_schema(tmp_path / "r" / "release" / "projected.parquet")
    assert rows.metadata[b"private"] == b"false"


def test_gaussian_noise_with_a_delta(dpgen, tmp_path):
    status, out, _ = dpgen("project", *SETTINGS, "privacy.delta=1e-5", f"run_dir={tmp_path / 'r'}")
    assert status == 0 and "delta 1e-05" in out
    status, out, _ = dpgen("verify", tmp_path / "r" / "release")
    assert status == 0 and "gaussian noise" in out


def test_the_budget_says_which_k_without_reading(dpgen):
    status, out, _ = dpgen("budget", "project", "data=array", "data.path=nowhere.npy", "data.d=40", "project.radius=2")
    assert status == 0 and "best: project.k=" in out and "one record replaced" in out
    status, _, err = dpgen("budget", "project", "data=array", "data.path=nowhere.npy", "project.radius=2")
    assert status == 2 and "data.d=null" in _one_line(err)
    status, out, _ = dpgen("budget", "project", "project.unit=element", "project.distance=1")
    assert "noise on the rows as they are" in out


class Crash(BaseException):
    """An end of the process, to all that this program can tell."""


@pytest.mark.parametrize("at", ["before the draw", "after the draw", "after saving", "while writing"])
def test_an_interrupted_projection_goes_on_or_says_what_is_lost(dpgen, tmp_path, monkeypatch, at):
    def crash(*_, **__):
        raise Crash

    save = project.durable.save

    def save_and_crash(*arguments):
        save(*arguments)
        raise Crash

    with monkeypatch.context() as patch:
        where = {
            "before the draw": (project, "_draw", crash),
            "after the draw": (project.durable, "save", crash),
            "after saving": (project.durable, "save", save_and_crash),
            "while writing": (project, "write_release", crash),
        }[at]
        patch.setattr(*where)
        with pytest.raises(Crash):
            dpgen("project", *SETTINGS, f"run_dir={tmp_path / 'r'}")
    status, _, err = dpgen("project", *SETTINGS, "privacy.epsilon=5", f"run_dir={tmp_path / 'r'}")
    if at == "before the draw":
        # Nothing was spent: the folder is as good as empty.
        assert status == 0, err
        return
    assert status == 2 and "other settings" in _one_line(err)
    status, _, err = dpgen("project", *SETTINGS, f"run_dir={tmp_path / 'r'}")
    if at == "after the draw":
        assert status == 3 and "no room for stage 'rows'" in _one_line(err) and not (tmp_path / "r" / "release").exists()
    else:
        assert status == 0, err
        assert dpgen("verify", tmp_path / "r" / "release")[0] == 0
        status, _, err = dpgen("project", *SETTINGS, f"run_dir={tmp_path / 'r'}")
        assert status == 2 and "finished release" in _one_line(err)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_projection_is_one_process(dpgen, tmp_path, monkeypatch, rank):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank}.items():
        monkeypatch.setenv(name, value)
    status, _, err = dpgen("project", "project.radius=9", "data=array", "data.path=nowhere.npy", f"run_dir={tmp_path}/p")
    assert status == 2 and "runs in one process; start it without torchrun" in err and not list(tmp_path.iterdir())
