"""Seeds, the sound inputs of the corpus, made again where a format has changed: ``python -m tests.fuzz --seeds``."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import scipy.sparse
import torch
from PIL import Image

from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.histories.row_table import RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.models.forests import StackedForests, StackedProducts
from lightning_dpgen.models.gaussians import SeriesGaussians, StackedGaussians
from lightning_dpgen.models.generators import StackedGenerator
from lightning_dpgen.models.history_network import HistoryNetwork
from lightning_dpgen.models.labelled import Crossing, LabelledNetwork
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.ledger import Ledger
from lightning_dpgen.privacy.mechanisms import gaussian, rounded_gaussian
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.privacy.studies.study import Study
from lightning_dpgen.projection.matrices import make_matrix
from lightning_dpgen.projection.neighbourhood import Neighbourhood
from lightning_dpgen.projection.project import Projection
from lightning_dpgen.release.bundle import write_release
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.projected import ProjectedRows, write_projected
from lightning_dpgen.release.weights import WeightsContent

from .targets import TABLE

LABELLED = parse_schema(
    "{label: c, columns: {a: {type: boolean}, b: {type: category, values: [x, y, z]}, c: {type: boolean}}}"
)
PICTURES = ImageSchema(4, 4, levels=16, classes=3)
VISITS = RowTable("visits", parse_schema("columns: {ward: {type: category, values: [a, b, c]}}"), max_rows=2)
CHOICES = parse_schema("columns: {a: {type: boolean}, b: {type: category, values: [x, y, z]}}")


def write_seeds(corpus: Path) -> None:
    """Write the seeds of each target into its folder, in place of any that are there."""
    for make in (_bundles, _releases, _ledgers, _studies, _rows, _pictures, _texts):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in make(Path(folder)).items():
                (corpus / name).parent.mkdir(exist_ok=True)
                (corpus / name).write_bytes(content)


def packed(folder: Path) -> bytes:
    """Return the files of a folder as an archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for path in folder.iterdir() if path.suffix != ".lock"):
            archive.writestr(zipfile.ZipInfo(path.name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _bundles(folder: Path) -> dict[str, bytes]:
    items, series = BasketSchema(tuple(range(9)), max_items=3), SeriesSchema(4, 0.0, 1.0)
    networks = {
        "vae_pictures": StackedVAE(PICTURES, 2, hidden=4),
        "vae_conv": StackedVAE(PICTURES, 1, network="conv"),
        "vae_table": StackedVAE(TABLE, 2, hidden=4, layers=2, trunk=True, fixed_bias=True),
        "rbm_baskets": StackedRBM(items, 2, hidden=4, chains=2),
        "wgan_series": StackedGenerator(series, 2, hidden=4, latent=2),
        "gaussians": StackedGaussians(PICTURES, 2, size=5, rank=2, pieces=2, symmetries={"turn": 5.0, "elastic": 0.02}),
        "posed_gaussians": StackedGaussians(PICTURES, 2, size=5, rank=7, poses=True),
        "gaussians_of_series": SeriesGaussians(series, 2, size=3, lead=2, pieces=2),
        "products": StackedProducts(items, 2),
        "labelled": LabelledNetwork(StackedProducts(TABLE, 2)),
        "forests": StackedForests(CHOICES, 2, [-1, 0]),
        "histories": HistoryNetwork(HistorySchema(None, (VISITS,)), hidden=2),
        "crossed": LabelledNetwork(StackedForests(LABELLED, 2, [-1, 0, -1]), [Crossing((0, 1), ((0, 1), (0, 1, 1)))]),
    }
    made = {}
    for name, network in networks.items():
        inner = folder / name
        inner.mkdir()
        if name == "vae_conv":
            # Zeros pack well.
            for parameter in network.parameters():
                torch.nn.init.zeros_(parameter)
        write_model(inner, Mixture(network, torch.full((network.k,), 1.0 / network.k)))
        made[f"bundle/seed_{name}.zip"] = packed(inner)
    inner = folder / "projected"
    inner.mkdir()
    write_projected(inner, _projected(np.random.default_rng(0)))
    made["bundle/seed_projected.zip"] = packed(inner)
    return made


def _projected(random: np.random.Generator) -> ProjectedRows:
    projection = Projection(make_matrix("gaussian", 6, 2, seed=1), Neighbourhood("row", radius=2.0), "laplace")
    rows = np.rint(random.normal(size=(5, 2)) / projection.grid) * projection.grid
    return ProjectedRows(rows, projection, "gaussian", 3.0, 1)


def _releases(folder: Path) -> dict[str, bytes]:
    stages = {
        "one": [StageSpec("training", {"gradient": 1.0}, 1, max_noise=1e3, sampler=Poisson(0.1))],
        "run": [
            StageSpec("split", {"sum": 1.0}, 3, max_noise=1e3, share=0.2),
            StageSpec("training", {"gradient": 1.0}, 40, max_noise=1e3, sampler=Poisson(0.05), share=0.8),
        ],
    }
    stages["stopped"] = stages["run"]
    made = {}
    for name, drafts in stages.items():
        stops = [10, 20] if name == "stopped" else []
        account = Account(make_plan(drafts, epsilon=2.0, delta=1e-5, stops=stops))
        for draft in drafts:
            for _ in range(min(draft.count, 15) if stops else draft.count):
                with account.open(draft.stage, draw=account.sample(draft.stage, 90)[1]) as access:
                    for noise in access.access.multipliers:
                        if noise == "sum":
                            whole = torch.zeros(1, dtype=torch.int64)
                            rounded_gaussian(access, noise, whole, unit=2.0**-8, sensitivity=1.0)
                        else:
                            gaussian(access, noise, torch.zeros(1), sensitivity=1.0)
        if stops:
            account.stop()
        else:
            account.verify_complete()
        content = WeightsContent({"weight": torch.zeros(2)}, "a network")
        declared = {"data": "a table", "n": 90, "rows": 5}
        write_release(folder / name, folder / f".{name}", content, account, unit="one record", declared=declared)
        made[f"verify/seed_{name}.zip"] = packed(folder / name)
        made[f"verify/certificate_{name}.json"] = (folder / name / "privacy.json").read_bytes()
    return made


def _ledgers(folder: Path) -> dict[str, bytes]:
    split, lot = Access("split", {"sum": 9.0}), Access("training", {"norms": 8.0, "sum": 5.0}, sampler=Poisson(0.5))
    account = Account(Plan((Stage(split, 1, 0.5), Stage(lot, 30, 0.5)), 8.0, 1e-5), folder / "ledger.jsonl")
    for stage in ("split", "training", "training"):
        with account.open(stage, draw=account.sample(stage, 90)[1]) as access:
            for noise in access.access.multipliers:
                gaussian(access, noise, torch.zeros(1), sensitivity=1.0)
    account.ledger.close()
    made = {"ledger/seed_closed.zip": packed(folder)}
    ledger = Ledger.reopen(folder / "ledger.jsonl")
    ledger.write(lot, ahead=3)
    whole = [(folder / name).read_bytes() for name in ("ledger.jsonl", "ledger.jsonl.heads")]
    ledger.close()
    for name, content in zip(("ledger.jsonl", "ledger.jsonl.heads"), whole, strict=True):
        (folder / name).write_bytes(content)
    made["ledger/seed_open.zip"] = packed(folder)
    stopped = Ledger.reopen(folder / "ledger.jsonl")
    stopped.record_study("0" * 16, folder / "study.jsonl")
    stopped.stop()
    made["ledger/seed_stopped.zip"] = packed(folder)
    return made


def _studies(folder: Path) -> dict[str, bytes]:
    import dp_accounting

    study = Study(folder / "study.jsonl", epsilon=9.0, delta=1e-6)
    lots = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(2.0)), 50
    )
    study.enter("a", dp_accounting.GaussianDpEvent(6.0))
    study.enter("b", lots)
    own = packed(folder)
    study.enter("c", dp_accounting.LaplaceDpEvent(9.0), pair=(0.5, 1e-8))
    made = {"study/seed_added.zip": own, "study/seed_mixed.zip": packed(folder)}
    study.stop("b", lots.event)
    study.stop("a", None)
    return made | {"study/seed_stopped.zip": packed(folder)}


def _database(table: pd.DataFrame) -> bytes:
    with sqlite3.connect(":memory:") as connection:
        table.to_sql("t", connection, index=False)
        content = connection.serialize()
    connection.close()
    return content


def _written(write: Callable) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _rows(folder: Path) -> dict[str, bytes]:
    random = np.random.default_rng(0)
    rows = random.normal(size=(6, 3))
    few = scipy.sparse.random_array((20, 30), density=0.1, format="csr", rng=np.random.default_rng(1))
    table = pd.DataFrame({
        "smoker": [True, False, True], "age": [7, 42, 99], "weight": [71.5, None, 80.0], "city": ["Bonn", "Köln", "a b"],
        "day": ["2020-02-03", "2021-01-01", "2024-12-31"],
    })  # fmt: skip
    frame = pa.Table.from_pandas(table)
    series = random.uniform(0.0, 9.0, (5, 3))
    wide = pd.DataFrame({"label": [1, 2], "t_0": [1.5, 2.0], "t_1": [3.0, 4.0], "t_2": [3.0, 4.0]})
    long = "d,value\n" + "".join(f"2024-01-0{day} 0{hour}:00,{hour}\n" for day in (1, 2) for hour in range(3))
    lines = "1 2 3\n\n11 2\n29\n"
    csv = table.to_csv(index=False).encode()
    return {
        "rows/seed.npy": _written(lambda file: np.save(file, rows.astype(np.float32))),
        "rows/seed.npz": _written(lambda file: scipy.sparse.save_npz(file, few)),
        "rows/seed.parquet": _written(
            lambda file: pa.parquet.write_table(pa.table({"a": rows[:, 0], "b": rows[:, 1]}), file)
        ),
        "rows/table_seed.csv": csv,
        "rows/table_seed.tsv": table.to_csv(index=False, sep="\t").encode(),
        "rows/table_seed.csv.gz": gzip.compress(csv, mtime=0),
        "rows/table_seed.parquet": _written(lambda file: pa.parquet.write_table(frame, file)),
        "rows/table_seed.ndjson": table.to_json(orient="records", lines=True).encode(),
        "rows/table_seed.xlsx": _written(lambda file: table.to_excel(file, index=False)),
        "rows/table_seed.sqlite": _database(table),
        "rows/draft_seed.csv": csv,
        "rows/draft_seed.parquet": _written(lambda file: pa.parquet.write_table(frame, file)),
        "baskets/seed.npz": _written(lambda file: scipy.sparse.save_npz(file, few)),
        "baskets/seed_counts.npz": _written(lambda file: scipy.sparse.save_npz(file, (9 * few).astype(np.int32))),
        "baskets/seed.dat": lines.encode(),
        "baskets/labelled_seed.dat": b"a tea milk\nb\nb jam tea milk\n",
        "baskets/seed.csv": b"b,i\n1,1\n1,2\n2,3\n3,\n",
        "baskets/seed.dat.gz": gzip.compress(lines.encode(), mtime=0),
        "baskets/seed.parquet": _written(
            lambda file: pa.parquet.write_table(
                pa.table({"b": [1, 1, 2, 3], "i": pa.array([1, 2, 3, None], pa.int64())}), file
            )
        ),
        "baskets/items_seed.txt": b"tea\nmilk\njam\n",
        "baskets/items_seed.csv": b'"tea"\nmilk\n3\n',
        "baskets/items_seed.json": b'["tea", "milk"]',
        "series/seed.npy": _written(lambda file: np.save(file, series)),
        "series/seed.npz": _written(lambda file: np.savez(file, series=series, labels=np.arange(5))),
        "series/seed.csv": wide.to_csv(index=False).encode(),
        "series/long_seed.csv": long.encode(),
        "series/seed.parquet": _written(
            lambda file: pa.parquet.write_table(pa.Table.from_pandas(wide.drop(columns="label")), file)
        ),
    }


def _pictures(folder: Path) -> dict[str, bytes]:
    grey = np.random.default_rng(0).integers(0, 256, (3, 5, 6), dtype=np.uint8)
    colour = np.random.default_rng(1).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    made = {
        "pictures/seed.npy": _written(lambda file: np.save(file, grey)),
        "pictures/seed.npz": _written(lambda file: np.savez(file, images=grey, labels=np.arange(3))),
    }
    for form, picture in (("png", grey[0]), ("jpg", colour), ("jpeg", grey[1])):
        name = f"pictures/seed.{form}"
        made[name] = _written(
            lambda file, picture=picture, form=form: Image.fromarray(picture).save(file, "PNG" if form == "png" else "JPEG")
        )
    palette = Image.fromarray(colour).convert("P")
    made["pictures/palette_seed.png"] = _written(lambda file: palette.save(file, "PNG"))
    return made


def _texts(folder: Path) -> dict[str, bytes]:
    from lightning_dpgen.data.tables.schema_file import schema_text

    sdv = {
        "METADATA_SPEC_VERSION": "SINGLE_TABLE_V1",
        "primary_key": "id",
        "columns": {
            "id": {"sdtype": "id"}, "age": {"sdtype": "numerical", "computer_representation": "Int64"},
            "sex": {"sdtype": "categorical"}, "born": {"sdtype": "datetime", "datetime_format": "%Y-%m-%d"},
            "mail": {"sdtype": "email"}, "wage": {"sdtype": "numerical", "decimal_places": 2}, "ok": {"sdtype": "boolean"},
        },
    }  # fmt: skip
    domain = (
        "age: {type: numerical, min_value: 0, max_value: 99, dtype: int}\n"
        "sex: {type: categorical, possible_values: [F, M], out_of_domain_index: 0}\n"
        "city: {type: free_form_text, description: where}\n"
    )
    words = {
        "digits": ["data=digits", "model=vae", "split.k=3", "privacy.epsilon=1.74"],
        "images": ["data=images", "data.path=x.npz", "data.n=5000", "data.height=4", "data.width=4", "model=measured"],
        "baskets": ["data=baskets", "data.path=x.dat", "data.n=5000", "data.items=1..20", "data.max_items=5", "model=rbm"],
        "series": [
            "data=series",
            "data.path=x.csv",
            "data.n=500",
            "data.length=4",
            "data.low=0",
            "data.high=1",
            "model=wgan",
        ],
        "measured": ["data=mnist", "model=measured", "model.symmetries=handwriting", "seed=3", "rows=10"],
        "clipping": ["data=digits", "clipping=dpnorm", "privacy.noise=secure", "model.steps=20", "privacy.delta=1e-6"],
        "project": ["project", "data=blobs", "project.k=3", "privacy.epsilon=2", "project.matrix=sparse", "data.n=50"],
    }
    made = {
        "schema/seed.yaml": schema_text(TABLE).encode(),
        "schema/seed_open.yaml": (
            b"description: people\nstrip: false\nheader: false\nseparator: ';'\ncolumns:\n"
            b"  age: {type: integer, low: private, high: private}\n  id: {type: fake, fake: row_number}\n"
            b"  x: {type: drop}\n"
            b"  city: {type: category, values: private}\n"
            b"  wage: {type: number, low: 1, high: 50000, decimals: 2, transform: log, special: [1], missing: true}\n"
        ),
        "histories/seed.yaml": (
            b"persons:\n  file: people.csv\n  key: id\n  label: died\n"
            b"  columns:\n    sex: {type: category, values: [F, M]}\n    died: {type: boolean}\n"
            b"visits:\n  file: visits.csv\n  person: id\n  order: day\n  max_rows: 4\n  keep: last\n"
            b"  start: {low: 2020-01-01, high: 2020-12-31}\n  gap: {high: 90, edges: [7, 30]}\n  columns:\n"
            b"    ward: {type: category, values: [a, b, c]}\n    cost: {type: integer, low: 0, high: 99, missing: true}\n"
        ),
        "histories/seed_one.yaml": (
            b"panel:\n  file: panel.csv\n  separator: ';'\n  person: id\n  max_rows: 3\n  fixed:\n"
            b"    born: {type: integer, low: 1900, high: 2020, bins: 6}\n  columns:\n    sick: {type: boolean}\n"
        ),
        "histories/seed_queries.yaml": (
            b"url: sqlite:///clinic.db\nvisits:\n  query: select id, ward from visits where day > 3\n  person: id\n"
            b"  max_rows: 3\n  columns: {ward: {type: category, values: [a, b]}}\n"
        ),
        "histories/draft_seed.csv": (
            b"id,born,day,ward,cost\nA,1950,2024-01-03,x,1.50\nA,1950,2024-02-07,y,2.25\nB,1971,2024-05-09,x,\n"
        ),
        "importers/sdv_seed.json": json.dumps(sdv).encode(),
        "importers/sdv_tables_seed.json": json.dumps({"tables": {"people": sdv}}).encode(),
        "importers/domain_seed.yaml": domain.encode(),
        "importers/domain_seed.json": b'{"age": 85, "sex": 2}',
    }
    return made | {f"overrides/words_{name}.json": json.dumps(text).encode() for name, text in words.items()}
