"""Random schemas of tables, and records that fit them."""

import datetime

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import assume

from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.data.tables.written_form import QUOTES

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=8).map(str.strip)
_DAY = datetime.date(1970, 1, 1)
_MIDNIGHT = datetime.datetime(1970, 1, 1)


@st.composite
def columns(draw, name):
    """Draw the declaration of a column of any modelled type."""
    kind = draw(st.sampled_from(["text", "code", "boolean", "integer", "number", "decimals", "date", "datetime", "time"]))
    fields = {"missing": True} if draw(st.booleans()) else {}
    if kind == "text":
        values = draw(st.lists(TEXT.filter(lambda text: text not in ("", "?")), min_size=1, max_size=6, unique=True))
        fields |= {"type": "category", "values": values}
    elif kind == "code":
        values = draw(st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=6, unique=True))
        fields |= {"type": "category", "values": values}
    elif kind == "boolean":
        fields["type"] = "boolean"
    else:
        fields |= draw(numeric(kind))
    return column_of(name, fields)


@st.composite
def numeric(draw, kind):
    step = {"datetime": draw(st.sampled_from(["second", "minute", "hour", "day"])), "time": "minute"}.get(kind)
    seconds = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}.get(step, 1)
    decimals = draw(st.integers(0, 4))
    if kind == "number":
        low = draw(st.floats(-1e6, 1e6))
        high = low + draw(st.floats(1.0, 1e6))
        extra = draw(st.lists(st.floats(-1e7, 1e7), max_size=3))
    else:
        largest = {"time": 1439, "datetime": 10**8 // seconds}.get(kind, 10**5)
        least = 0 if kind == "time" else -largest
        low = draw(st.integers(least, largest))
        high = draw(st.one_of(st.integers(low, min(low + 8, largest)), st.integers(low, largest)))
        extra = draw(st.lists(st.integers(least, largest), max_size=3))
    write = {
        "number": float,
        "integer": int,
        "decimals": lambda tick: tick / 10**decimals,
        "date": lambda tick: (_DAY + datetime.timedelta(tick)).isoformat(),
        "datetime": lambda tick: (_MIDNIGHT + datetime.timedelta(seconds=tick * seconds)).isoformat(" "),
        "time": lambda tick: f"{tick // 60:02}:{tick % 60:02}",
    }[kind]
    fields = {"type": "number" if kind == "decimals" else kind, "low": write(low), "high": write(high)}
    if kind == "decimals":
        fields["decimals"] = decimals
    if step:
        fields["resolution"] = step
    if low < high and draw(st.integers(0, 3)) == 0:
        return fields | {"encoding": "scaled"}
    if draw(st.integers(0, 3)) == 0 and high - low > 3:
        cuts = [low + (high - low) // 3, low + 2 * (high - low) // 3] if kind != "number" else [low + (high - low) / 3]
        fields["edges"] = [write(cut) for cut in cuts]
    else:
        fields |= {"bins": draw(st.integers(1, 12)), "transform": draw(st.sampled_from(["linear", "log", "sqrt"]))}
    return fields | {"special": sorted({write(tick) for tick in extra})}


@st.composite
def schemas(draw):
    names = draw(st.lists(TEXT.filter(bool), min_size=1, max_size=5, unique=True))
    made = [draw(columns(name)) for name in names]
    assume(any(column.choices or column.scaled for column in made))
    labels = [
        column.name for column in made if column.declared.dump()["type"] in ("category", "boolean") and column.choices
    ]
    return TableSchema(
        tuple(made),
        label=draw(st.sampled_from([None, *labels])),
        description=draw(TEXT),
        header=draw(st.booleans()),
        separator=draw(st.sampled_from([None, ";", "|"])),
        quotes=draw(st.sampled_from(QUOTES)),
    )


def ticks(column, random, rows):
    """Draw values within the bounds of a numeric column and special ones, as its scale numbers them."""
    low, high = column.scale.tick(column.low), column.scale.tick(column.high)
    found = random.integers(low, high + 1, rows) if column.scale.whole else random.uniform(low, high, rows)
    found[random.random(rows) < 0.2] = low
    found[random.random(rows) < 0.2] = high
    for value in map(column.scale.tick, column.special):
        found[random.random(rows) < 0.2] = value
    return found


def records(schema, seed, rows):
    """Draw random records that fit."""
    random = np.random.default_rng(seed)
    arrays = []
    for column in schema.modelled:
        absent = random.random(rows) < (0.3 if column.missing else 0.0)
        if isinstance(column, Category):
            chosen = random.integers(0, len(column.values), rows)
            arrays.append(pa.array(column.values, column.arrow).take(pa.array(chosen, mask=absent)))
        else:
            arrays.append(column.scale.column(ticks(column, random, rows), absent))
    return pa.record_batch(arrays, schema=schema.arrow)
