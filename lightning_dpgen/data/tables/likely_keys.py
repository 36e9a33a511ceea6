"""Keys by which a schema probably declares the form of a text that was refused: for messages."""

from __future__ import annotations

import re

import pyarrow as pa

from lightning_dpgen.data.tables.arrays import Misfit
from lightning_dpgen.data.tables.likely_form import SIGNS, holds_thousands, reads
from lightning_dpgen.data.tables.likely_moments import likely_digits, likely_moments
from lightning_dpgen.data.tables.likely_units import is_missing_word, is_total, likely_amounts
from lightning_dpgen.data.tables.scales import Decimals, Integers
from lightning_dpgen.data.tables.written_form import NumberForm

# Signs that no number as programs write them has.
_STRANGE = re.compile(r"[^\d.,'\seE+-]+")


def likely_keys(text: str, kind: str) -> list[str]:
    """Return what a schema may declare of a column of a type so that a text is one of its values, as YAML; each will do.

    Example:
        >>> likely_keys("28.02.2023", "date"), likely_keys("1.234,50", "number"), likely_keys("1,234", "integer")
        (['format: "%d.%m.%Y"'], ["decimal: ',' and thousands: '.'"], ["thousands: ','"])
        >>> likely_keys("8,21", "number"), likely_keys("unknown", "number")
        (["decimal: ','"], [])
        >>> print(*likely_keys("334,59 €", "number"), *likely_keys("02:54 PM", "time"))
        decimal: ',' and unit: "1 €" format: "%I:%M %p"
    """
    texts = pa.array([text])
    if kind in ("date", "datetime", "time"):
        forms = [*likely_moments(texts, kind), *likely_digits(texts)]
        return [f'format: "{form.format}"' for form in forms if form.kind == kind]
    if kind not in ("integer", "number"):
        return []
    amounts, scale = likely_amounts(texts), Integers() if kind == "integer" else Decimals()
    unit = [f'{key}: "{value}"' for key, value in amounts.fields.items()]
    bare, text = amounts.bare, amounts.bare[0].as_py()
    found = [unit] if unit and reads(scale, bare) else []
    for form in (NumberForm(","), *SIGNS):
        parted = holds_thousands(bare, form) if form.thousands else False
        # A sign that the text has not is needed only where the other sign takes its usual place.
        useless = form.decimal == "," and "," not in text and form.thousands != "."
        if parted != bool(form.thousands) or useless or not form.fits(bare).all() or not reads(scale, form.read(bare)):
            continue
        quote = '"' if form.thousands == "'" else "'"
        keys = [f"decimal: '{form.decimal}'"] * (form.decimal != ".")
        found.append([*keys, *[f"thousands: {quote}{form.thousands}{quote}"] * parted, *unit])
    return [" and ".join(keys) for keys in found]


def likely_advice(text: str, *kinds: str) -> str:
    """Return what to declare of a text that was refused in a column of one of these types; "" where nothing is likely.

    Example:
        >>> likely_advice("n/a", "number")
        'if it says that a value is missing, declare missing: true and missing_values: ["n/a"] in the schema'
        >>> print(likely_advice("5 €", "integer", "number"))
        if it is written so, declare unit: "1 €" in the schema ('€' is not understood)
        >>> likely_advice("Bonn", "category")
        ''
    """
    if is_missing_word(text):
        said = text if "\\" not in text else text.replace("\\", "\\\\")
        return f'if it says that a value is missing, declare missing: true and missing_values: ["{said}"] in the schema'
    if is_total(text):
        return f'if the row is a sum of others and no record, declare comment: "{text}" in the schema'
    keys = dict.fromkeys(key for kind in kinds for key in likely_keys(text, kind))
    if not keys:
        return ""
    strange = _STRANGE.search(text) if any("unit" in key or "negative" in key for key in keys) else None
    named = "" if strange is None else f" ({strange[0]!r} is not understood)"
    return f"if it is written so, declare {' or '.join(keys)} in the schema{named}"


def with_likely_keys(misfit: Misfit, values: pa.Array, kind: str) -> Misfit:
    """Return the refusal of a value of a column of a type with the advice of what a schema may declare of its form."""
    text = values[misfit.row].as_py() if misfit.row is not None and pa.types.is_string(values.type) else None
    advice = "" if text is None else likely_advice(text, kind)
    return Misfit(misfit.row, misfit.problem, advice) if advice else misfit
