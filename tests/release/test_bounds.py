"""The contents of a release are bounded, and the program's own releases are always within the bounds."""

import json

import dp_accounting
import numpy as np
import pytest
import safetensors.numpy
import torch
from released import account

from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import rounded_laplace
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.projection.matrices import MOST_NUMBERS, check_matrix, make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection
from lightning_dpgen.release import bounds
from lightning_dpgen.release.bounds import MOST_FILES, check_declared, check_finite, check_tensors, too_long
from lightning_dpgen.release.bounds import MOST_NUMBERS as MOST_TENSORS
from lightning_dpgen.release.bundle import release_from
from lightning_dpgen.release.files import NotARelease
from lightning_dpgen.release.projected import ProjectedRows, load_projected, write_projected
from lightning_dpgen.release.weights import WeightsContent
from lightning_dpgen.verification import epsilon_check
from lightning_dpgen.verification.verify import verify


def test_a_description_that_no_reader_would_take_is_refused_before_it_is_released(tmp_path):
    check_declared({"columns": ["x" * 50] * 10_000})
    for declared in ({"names": ["x" * 100] * 90_000}, {"names": [1] * 600_000}):
        with pytest.raises(ValueError, match="expected at most"):
            check_declared(declared)
        with pytest.raises(ValueError, match="declared: the declarations take"):
            release_from(
                WeightsContent({}, "x"), account(), tmp_path / "r", data="table", n=90, unit=None, declared=declared
            )


def test_more_files_than_a_reader_takes(tmp_path):
    content = WeightsContent({}, "x")
    object.__setattr__(content, "released", tuple(f"f{i}" for i in range(MOST_FILES + 1)))
    with pytest.raises(ValueError, match="1,001 files"):
        release_from(content, account(), tmp_path / "r", data="table", n=90, unit=None, declared={})


def test_a_pure_release_of_very_many_stages_is_verified(tmp_path):
    stages = tuple(Stage(Access(f"s{i}", {"sum": 900.0 + i}, kinds={"sum": "laplace"}), 1, 0.1) for i in range(300))
    paid = Account(Plan(stages, 8.0, 0.0))
    for stage in stages:
        with paid.open(stage.name) as access:
            rounded_laplace(access, "sum", torch.zeros(1, dtype=torch.int64), sensitivity=1.0)
    content = WeightsContent({"weight": torch.zeros(1)}, "x")
    release_from(content, paid, tmp_path / "r", data="table", n=90, unit=None, declared={})
    assert verify(tmp_path / "r").problems == []


@pytest.mark.parametrize("name", ["stages", "files", "released", "versions"])
def test_lists_of_a_certificate(name):
    assert too_long({name: ["a"] * 1000}) is None and too_long({name: {}}) is None
    assert "expected at most" in too_long({name: ["a"] * 1001})


@pytest.mark.parametrize("name", [{"a": 1}, ["a"], 1, None, "a" * 129])
def test_what_is_no_name_of_a_file_is_found_before_names_are_compared(name):
    assert too_long({"released": ["a" * 128, "b"]}) is None
    assert "names of at most 128 characters" in too_long({"released": ["b", name]})


def test_choices_of_a_selection():
    assert too_long({"selection": {"space": {"a": ["1"] * 5000}, "chosen": {"a": "1"}}}) is None
    for space in ({"a": ["1"] * 10_001}, {str(i): [] for i in range(10_001)}):
        assert "choices" in too_long({"selection": {"space": space}})


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_rows_of_any_kind_are_read_again(tmp_path, scale):
    """Without noise rows may be all alike, of which packed nothing would be left."""
    random = np.random.default_rng(0)
    projection = Projection(make_matrix("gaussian", 3, 2, 0), Neighbourhood("row", radius=1.0), "laplace")
    steps = np.zeros((300_000, 2)) if scale == 0.0 else np.rint(random.normal(size=(300_000, 2)) * 2**20)
    rows = steps * projection.grid
    write_projected(tmp_path, ProjectedRows(rows, projection, "gaussian", scale, None))
    assert (load_projected(tmp_path).rows == rows).all()


def test_a_second_account_takes_whole_orders_and_each_noise_once(monkeypatch):
    """Opacus sums a series for other orders, which takes a third of a second for one noise sampled at rate one half."""
    asked = []

    def get_epsilon(self, delta, alphas=None):
        asked.append((self.history, alphas))
        return 1.0

    monkeypatch.setattr(epsilon_check.RDPAccountant, "get_epsilon", get_epsilon)
    lot = dp_accounting.PoissonSampledDpEvent(0.5, dp_accounting.GaussianDpEvent(50.0))
    epsilon_check._second_opinion(dp_accounting.ComposedDpEvent([lot] * 3), 1e-5, "add_or_remove_one")
    [(history, orders)] = asked
    assert history == [(50.0, 0.5, 3)] and all(isinstance(order, int) for order in orders)


def test_matrices_that_take_too_long():
    check_matrix("gaussian", 100_000, 100)
    check_matrix("identity", 2000, 2000)
    with pytest.raises(ValueError, match="numbers; project to fewer"):
        check_matrix("sparse", MOST_NUMBERS, 2)
    with pytest.raises(ValueError, match="products"):
        check_matrix("orthonormal", 4000, 4000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop("a"), "'a' is missing"),
        (lambda tensors: tensors.update(c=np.zeros(1, np.float32)), "'c' is a tensor too many"),
        (lambda tensors: tensors.update(a=np.zeros(3, np.float32)), r"'a' is \[3\] of F32: expected \[2, 3\]"),
        (lambda tensors: tensors.update(a=np.zeros((2, 3))), "of F64: expected"),
        (lambda tensors: tensors.update({"x" * 80_000: np.zeros(1, np.float32)}), "a header of"),
    ],
)
def test_tensors_are_those_of_the_description(tmp_path, change, words):
    tensors = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(1, np.float32)}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors", metadata={"made": "by us"})
    check_tensors(tmp_path / "x.safetensors", shapes, "F32")
    change(tensors)
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=words):
        check_tensors(tmp_path / "x.safetensors", shapes, "F32")


def test_numbers_in_all_tensors(tmp_path):
    with pytest.raises(ValueError, match="numbers in all tensors: expected at most"):
        check_tensors(tmp_path / "x.safetensors", {"a": (MOST_TENSORS,), "b": (1,)}, "F32")


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_are_finite(tmp_path, number):
    tensors = {"a": np.zeros(7, np.float32), "b": np.zeros((2, 3), np.float32)}
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors")
    check_finite(tmp_path / "x.safetensors")
    tensors["b"][1, 2] = number
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="expected finite float32"):
        check_finite(tmp_path / "x.safetensors")


def test_what_no_reader_would_open_is_not_released(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "MOST_BYTES_IN_ALL", 200)
    content = WeightsContent({"a": torch.zeros(90)}, "x")
    with pytest.raises(ValueError, match=r"most of them in model\.safetensors: expected at most 200"):
        release_from(content, account(), tmp_path / "r", data="table", n=90, unit=None, declared={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\2\0\0\0", b"\2\0\0\0\0\0\0\0[]", b"\2\0\0\0\0\0\0\0{", b"\377" * 8])
def test_what_is_no_header(tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.safetensors: "):
        check_tensors(tmp_path / "x.safetensors", {"a": (1,)}, "F32")


def test_a_file_that_claims_more_rows_than_it_holds(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    projection = Projection(make_matrix("gaussian", 3, 2, 0), Neighbourhood("row", radius=1.0), "laplace")
    write_projected(tmp_path, ProjectedRows(np.zeros((4, 2)), projection, "gaussian", 1.0, None))
    table = pa.table({name: np.zeros(10**6) for name in ("projected_0", "projected_1")})
    pyarrow.parquet.write_table(table, tmp_path / "projected.parquet", compression="zstd")
    with pytest.raises(NotARelease, match="too short"):
        load_projected(tmp_path)
    assert json.loads((tmp_path / "model.json").read_text())["k"] == 2
