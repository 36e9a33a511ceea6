"""The most expensive releases that are allowed, and some that are not: the worst that `verify` and `load_release` meet."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import dp_accounting
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from lightning_dpgen.privacy.accounting import accountant, reference
from lightning_dpgen.privacy.accounting.accountant import INTERVALS, affordable, compute_epsilon
from lightning_dpgen.privacy.accounting.epsilon_range import round_up
from lightning_dpgen.privacy.accounting.events import compose_events, encode
from lightning_dpgen.privacy.accounting.reference import Reference
from lightning_dpgen.release.certificate import ACCOUNTANTS, also, stage_epsilons

from .mutations import sealed
from .runs import CORPUS

_GAUSSIAN = {"type": "GaussianDpEvent", "noise_multiplier": 5.0}


def certificate() -> dict[str, Any]:
    """Return the certificate of a sound release."""
    return json.loads((CORPUS / "verify" / "certificate_run.json").read_text(encoding="utf-8"))


def _sampled(multiplier: float, rate: float, count: int = 10) -> dp_accounting.DpEvent:
    lot = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
    return dp_accounting.SelfComposedDpEvent(lot, count)


def _of_stages(events: list[Any], interval: float = 1e-3, **changes: Any) -> bytes:
    """Return a certificate of these stages with invented epsilons: they are compared only after accounting."""
    trees = [event if isinstance(event, dict) else encode(event) for event in events]
    found = certificate() | {
        "event": trees[0] if len(trees) == 1 else {"type": "ComposedDpEvent", "events": trees},
        "stages": [{"name": f"s{i}", "event": tree, "epsilon": 1.0} for i, tree in enumerate(trees)],
    }
    found["accountant"] |= {"value_discretization_interval": interval}
    return sealed(found | changes)


def _true(events: list[dp_accounting.DpEvent], interval: float, delta: float = 1e-5) -> bytes:
    """Return a certificate whose numbers follow from its events, so that all of it is checked."""
    event, relation = compose_events(events), "add_or_remove_one"
    spending = compute_epsilon(event, delta, interval=interval or None)
    epsilon, numbers = round_up(spending.epsilon), stage_epsilons(events, delta, interval or None, relation)
    named = [
        {"name": f"s{i}", "event": encode(stage), "epsilon": round_up(number)}
        for i, (stage, number) in enumerate(zip(events, numbers, strict=True))
    ]
    found = json.loads(_of_stages(events, spending.interval)) | {
        "stages": named,
        "epsilon": epsilon,
        "delta": delta,
        "target_epsilon": epsilon,
        "also": also(event, epsilon, delta, interval or None, relation),
    }
    found["accountant"]["name"] = ACCOUNTANTS[spending.method]
    _forget()
    return sealed(found)


def _forget() -> None:
    """Forget results that were computed here, since a verifier does not have them."""
    for function in (*vars(accountant).values(), *vars(reference).values()):
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def _apart(events: list[dp_accounting.DpEvent], interval: float = 0.0) -> bytes:
    """Return a certificate whose event costs little and is not made of its stages."""
    found = json.loads(_of_stages(events, interval))
    found["accountant"]["name"] = ACCOUNTANTS["closed form"]
    return sealed(found | {"event": _GAUSSIAN})


def _behind(rest: list[dp_accounting.DpEvent], multiplier: float = 0.05) -> bytes:
    """Return a certificate of a full pass and of stages below a reference, whose numbers follow from them."""
    first, stated = dp_accounting.GaussianDpEvent(5.0), Reference(multiplier, 1e-7, 1, replaceable=True)
    event, delta, relation = compose_events([first, stated.event]), 1e-5, "add_or_remove_one"
    epsilon = round_up(compute_epsilon(event, delta).epsilon)
    together = compose_events(rest)
    dear = not affordable(together, INTERVALS[0])
    numbers = [1.0] * (len(rest) + 1) if dear else map(round_up, stage_epsilons([first, *rest], delta, None, relation))
    found = json.loads(_of_stages([first, *rest], 0.0)) | {
        "event": encode(event),
        "reference": {"after": 1, "replaceable": True},
        "epsilon": epsilon,
        "target_epsilon": epsilon,
        "delta": delta,
        "also": also(event, epsilon, delta, None, relation),
    }
    found["accountant"]["name"] = ACCOUNTANTS["closed form"]
    for stage, number in zip(found["stages"], numbers, strict=True):
        stage["epsilon"] = number
    _forget()
    return sealed(found)


def _as_many_as_allowed(
    make: Callable[[int], dp_accounting.DpEvent], interval: float, most: int
) -> list[dp_accounting.DpEvent]:
    events: list[dp_accounting.DpEvent] = []
    while len(events) < most and affordable(compose_events([*events, make(len(events))]), interval):
        events.append(make(len(events)))
    return events


def _zip(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _bundle(name: str, change: Callable[[dict[str, Any]], object], weights: bytes | None = None, **files: bytes) -> bytes:
    """Return a sound model whose description is changed."""
    with zipfile.ZipFile(CORPUS / "bundle" / f"seed_{name}.zip") as archive:
        found = {inner: archive.read(inner) for inner in archive.namelist()}
    model = json.loads(found["model.json"])
    change(model)
    found["model.json"] = json.dumps(model).encode()
    if weights is not None:
        found["model.safetensors"] = weights
    return _zip(found | {inner.replace("_", "."): content for inner, content in files.items()})


def _header(length: int, text: bytes = b"{}") -> bytes:
    return struct.pack("<Q", length) + text


# Pictures of the largest size that is allowed.
_PICTURES = {
    "kind": "images", "height": 4096, "width": 4096, "levels": 1, "classes": 0, "threshold": None, "channels": 4,
    "names": [],
}  # fmt: skip


def _tensors(shapes: dict[str, tuple[int, ...]]) -> bytes:
    """Return the header of such tensors, without their numbers."""
    described, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        described[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(described).encode()
    return _header(len(text), text)


def _long_rows(rows: int) -> bytes:
    """Write very many equal rows in a short file."""
    file = io.BytesIO()
    column = pa.array(np.zeros(rows))
    table = pa.table({"projected_0": column, "projected_1": column})
    pa.parquet.write_table(table, file, compression="zstd", row_group_size=rows)
    return file.getvalue()


def _wide_table(columns: int, values: int) -> dict[str, Any]:
    names = [str(value) for value in range(values)]
    described = [{"name": f"c{i}", "type": "category", "values": names} for i in range(columns)]
    return {"kind": "table", "columns": described}


def _page() -> bytes:
    """Return a page of references, each of which a careless reader of HTML would look up."""
    with zipfile.ZipFile(CORPUS / "verify" / "seed_run.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    from .mutations import _resealed

    files["report.html"] = b"&notit" * (3 << 20)
    _resealed(files)
    return _zip(files)


def _selected(mean: float) -> dp_accounting.DpEvent:
    return dp_accounting.dp_event.RepeatAndSelectDpEvent(dp_accounting.GaussianDpEvent(5.0), mean, 0.0)


def _selection(trials: int) -> bytes:
    events = [encode(_sampled(1.0 + i / 1000, 0.01, 100)) for i in range(trials)]
    tree = {
        "type": "RepeatAndSelectDpEvent",
        "event": {"type": "OneOfDpEvent", "events": events},
        "mean": 5.0,
        "shape": 0.0,
    }
    return _of_stages([tree], 0.0)


# Cases of about a second at most, each with its target and the name of its input.
QUICK: dict[str, tuple[str, str, Callable[[], bytes]]] = {
    "many bad names": (
        "verify",
        "certificate.json",
        lambda: sealed(certificate() | {"files": {f"../{i}": "0" for i in range(300_000)}}),
    ),
    "a thousand names that are objects, alike but for their last value": (
        "verify",
        "certificate.json",
        lambda: sealed(
            certificate() | {"released": [dict.fromkeys(map(str, range(899)), 1) | {"x": i} for i in range(1000)]}
        ),
    ),
    "two thousand sampled stages": (
        "verify",
        "certificate.json",
        lambda: _of_stages([_sampled(1.0 + i / 1000, 0.01) for i in range(2000)]),
    ),
    "nine hundred sampled stages": (
        "verify",
        "certificate.json",
        lambda: _of_stages([_sampled(1.0 + i / 1000, 0.01) for i in range(900)]),
    ),
    "an event of 400,000 objects": (
        "verify",
        "certificate.json",
        lambda: sealed(certificate() | {"event": {"type": "ComposedDpEvent", "events": [_GAUSSIAN] * 400_000}}),
    ),
    "a thousand sampled stages of which the event is not made": (
        "verify",
        "certificate.json",
        lambda: _apart([_sampled(1.0 + i / 1000, 0.01) for i in range(1000)]),
    ),
    "a stage of five thousand noises of which the event is not made": (
        "verify",
        "certificate.json",
        lambda: _apart([compose_events([_sampled(1.0 + i / 5000, 0.01, 1) for i in range(5000)])]),
    ),
    "a wide stage at the finest interval of which the event is not made": (
        "verify",
        "certificate.json",
        lambda: _apart([_sampled(0.1, 0.9, 5)], INTERVALS[-1]),
    ),
    "nine hundred sampled stages behind a reference": (
        "verify",
        "certificate.json",
        lambda: _behind([_sampled(1.0 + i / 1000, 0.01) for i in range(900)]),
    ),
    "four thousand selections": (
        "verify",
        "certificate.json",
        lambda: _of_stages([compose_events([_selected(2.0 + i / 1000) for i in range(4000)])], 0.0),
    ),
    "a fine interval and a wide loss": ("verify", "certificate.json", lambda: _of_stages([_sampled(0.12, 1e-11, 1)], 5e-6)),
    "ten million layers": ("bundle", "x.zip", lambda: _bundle("vae_pictures", lambda model: model.update(layers=10**7))),
    "layers as many as allowed, and wide": (
        "bundle",
        "x.zip",
        lambda: _bundle("vae_pictures", lambda model: model.update(layers=64, hidden=2**24, k=2**20)),
    ),
    "a header of a terabyte": ("bundle", "x.zip", lambda: _bundle("vae_pictures", lambda model: None, _header(2**40))),
    "a header of ten million blanks": (
        "bundle",
        "x.zip",
        lambda: _bundle("vae_pictures", lambda model: None, _header(10**7, b"{" + b" " * (10**7 - 2) + b"}")),
    ),
    "weights of half a million components": (
        "bundle",
        "x.zip",
        lambda: _bundle("products", lambda model: model.update(k=500_000, mixture_weights=[1.0] * 500_000)),
    ),
    "weights of ten thousand million bytes": (
        "bundle",
        "x.zip",
        lambda: _bundle(
            "products",
            lambda model: model.update(schema=_PICTURES, k=40, mixture_weights=[1.0] * 40),
            _tensors({"means": (40, 4096 * 4096 * 4)}),
        ),
    ),
    "rows that a short file cannot hold": (
        "bundle",
        "x.zip",
        lambda: _bundle("projected", lambda model: None, projected_parquet=_long_rows(10**7)),
    ),
    "a matrix larger than anyone makes": (
        "bundle",
        "x.zip",
        lambda: _bundle("projected", lambda model: model.update(d=2**20, k=2**20)),
    ),
}
SLOW: dict[str, tuple[str, str, Callable[[], bytes]]] = {
    "as many sampled stages as allowed": (
        "verify",
        "certificate.json",
        lambda: _true(_as_many_as_allowed(lambda i: _sampled(1.0 + i / 500, 0.01), INTERVALS[0], 1000), INTERVALS[0]),
    ),
    "as many narrow stages as allowed": (
        "verify",
        "certificate.json",
        lambda: _true(
            _as_many_as_allowed(lambda i: _sampled(6.0 + i / 100, 0.003, 1000), INTERVALS[0], 1000), INTERVALS[0]
        ),
    ),
    "as many stages as allowed at the finest interval": (
        "verify",
        "certificate.json",
        lambda: _true(_as_many_as_allowed(lambda i: _sampled(5.0 + i / 10, 0.01), INTERVALS[-1], 1000), INTERVALS[-1]),
    ),
    "one stage as wide as allowed": (
        "verify",
        "certificate.json",
        lambda: _true([_widest(INTERVALS[-1])], INTERVALS[-1]),
    ),
    "as many narrow stages behind a reference as allowed": (
        "verify",
        "certificate.json",
        lambda: _behind(_as_many_as_allowed(lambda i: _sampled(6.0 + i / 100, 0.003, 100), INTERVALS[0], 1000)),
    ),
    "as many stages behind a reference as allowed, each with a small epsilon": (
        "verify",
        "certificate.json",
        lambda: _behind(_as_many_as_allowed(lambda i: _sampled(1.0 + i / 1000, 1e-4, 1), INTERVALS[0], 1000)),
    ),
    "a few stages behind a reference at the finest interval": (
        "verify",
        "certificate.json",
        lambda: _behind(_as_many_as_allowed(lambda i: _sampled(3.0 + i / 10, 1e-3, 5), INTERVALS[-1], 1000)),
    ),
    "one stage behind a reference as wide as allowed": (
        "verify",
        "certificate.json",
        lambda: _behind([_widest(INTERVALS[-1])]),
    ),
    "a delta that rounding hides": ("verify", "certificate.json", lambda: _true([_widest(INTERVALS[-1])], 0.0, 1e-25)),
    "a billion lots": ("verify", "certificate.json", lambda: _of_stages([_sampled(60.0, 0.01, 10**9)], 1e-3)),
    "a thousand full passes": (
        "verify",
        "certificate.json",
        lambda: _of_stages([dp_accounting.GaussianDpEvent(100.0 + i) for i in range(1000)], 0.0),
    ),
    "a selection among as many as allowed": ("verify", "certificate.json", lambda: _selection(520)),
    "declared names that fill the file": (
        "verify",
        "certificate.json",
        lambda: sealed(certificate() | {"declared": {"n": 90, "discovered": [f"keys of {i}" for i in range(800_000)]}}),
    ),
    "a page of references": ("verify", "x.zip", _page),
    "a table of ten thousand columns": (
        "bundle",
        "x.zip",
        lambda: _bundle("vae_table", lambda model: model.update(schema=_wide_table(9000, 90))),
    ),
    "a column of half a million values": (
        "bundle",
        "x.zip",
        lambda: _bundle("vae_table", lambda model: model.update(schema=_wide_table(1, 900_000))),
    ),
    "numbers in a million bins": (
        "bundle",
        "x.zip",
        lambda: _bundle(
            "vae_table",
            lambda model: model.update(
                schema={
                    "kind": "table",
                    "columns": [
                        {"name": f"c{i}", "type": "number", "low": 1.0, "high": 1e9, "transform": "log", "bins": 10_000}
                        for i in range(100)
                    ],
                }
            ),
        ),
    ),
    "a universe of a hundred thousand long names": (
        "bundle",
        "x.zip",
        lambda: _bundle(
            "rbm_baskets",
            lambda model: model.update(
                schema={
                    "kind": "baskets",
                    "items": [f"{i:0150}" for i in range(100_000)],
                    "max_items": 100_000,
                    "classes": [],
                }
            ),
        ),
    ),
}


def _widest(interval: float) -> dp_accounting.DpEvent:
    """Return one sampled noise whose distribution has as many points as are allowed."""
    multiplier = 5.0
    while affordable(_sampled(0.97 * multiplier, 1e-4, 100), interval):
        multiplier *= 0.97
    return _sampled(multiplier, 1e-4, 100)


def inputs(cases: dict[str, tuple[str, str, Callable[[], bytes]]]) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield the title of each case, its target, and the name and content of its input."""
    for title, (target, name, make) in cases.items():
        yield title, target, name, make()
