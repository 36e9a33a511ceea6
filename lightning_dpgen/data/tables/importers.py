"""Schemas from the files of other programs: the metadata of SDV, the domains of dpsynth and of mbi (PGM).

Such files may hold what a program read off the records: SDV detects ranges and values, and a domain is often counted. So
names, types, forms and descriptions are taken, and bounds, values and whether a value may be missing are left for a person,
unless the curator declares that all of the file is public.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_dpgen.data.tables.column import BadSchema, shortened
from lightning_dpgen.data.tables.moment_form import MomentForm
from lightning_dpgen.data.tables.schema_draft import OPEN, ColumnDraft
from lightning_dpgen.data.tables.schema_file import read_yaml

_DPSYNTH = {
    "type", "description", "possible_values", "out_of_domain_index", "min_value", "max_value", "clip_to_range", "sentinel",
    "dtype", "interval_handling", "max_tokens", "formatting", "exemplar", "default_value", "public_possible_values",
}  # fmt: skip
_NAMES = {"name", "first_name", "last_name", "email"}
# The keys beside the type that a file may say of a column without a person's word.
_FORMS = ("description", "format", "decimals")
_FORM_TOLD = "by a program, perhaps from the records: check it"
_MISSING_TOLD = "may it be missing? The file says so, perhaps of its records alone"
_CLOCK = ("%H", "%I", "%M", "%S", "%f", "%T", "%X", "%c", "%p")


def read_sdv(path: str | Path, *, declared_public: bool = False) -> list[ColumnDraft]:
    """Draft the columns of SDV's metadata (JSON): of one table, or of several where there is one.

    Keys of the table and personal data become fakes, or are left out.

    Args:
        declared_public: whether a person says that ranges and values of the file are public; else they are `OPEN`.

    Raises:
        BadSchema, OSError: if it is something else, or cannot be read.
    """
    fields = read_yaml(path)
    tables = fields.get("tables")
    if isinstance(tables, dict):
        if len(tables) != 1:
            raise BadSchema(f"{path} holds {len(tables)} tables: expected one; save the metadata of one table")
        fields = next(iter(tables.values()))
    columns = fields.get("columns") if isinstance(fields, dict) else None
    if not isinstance(columns, dict) or not columns or not all(isinstance(about, dict) for about in columns.values()):
        raise BadSchema(f"{path}: expected the metadata of a table by SDV, with columns and their sdtype")
    key = fields.get("primary_key")
    keys = key if isinstance(key, list) else [key]
    return [_of_sdv(name, about, name in keys, declared_public) for name, about in columns.items()]


def read_domain(path: str | Path, *, declared_public: bool = False) -> list[ColumnDraft]:
    """Draft the columns of a domain file of dpsynth (YAML of attributes), or of mbi (JSON of the sizes of columns).

    Values of dpsynth that are outside of a list go to one of the list, which becomes `other`. The values that a size counts
    are 0, 1 and so on.

    Args:
        declared_public: whether a person says that sizes, bounds and values of the file are public; else they are `OPEN`.

    Raises:
        BadSchema, OSError: if it is something else, or cannot be read.
    """
    fields = read_yaml(path)
    if isinstance(fields.get("attributes"), dict):
        # dpsynth writes a schema with constraints so; these say nothing of a column.
        fields = fields["attributes"]
    drafts = []
    for name, about in fields.items():
        if type(about) is int and 1 <= about <= 10_000:
            # Codes are numbered from 0 whatever the records are, and their number may have been counted.
            known = {"high": about - 1, "bins": about} if declared_public else {}
            drafts.append(ColumnDraft.of_type(name, "integer", low=0, **known))
        elif isinstance(about, dict) and set(about) <= _DPSYNTH:
            drafts.append(_of_dpsynth(name, about, declared_public))
        else:
            expected = "a number of values, or an attribute of dpsynth"
            raise BadSchema(f"{shortened(about)}: expected {expected}", name, place=str(path))
    if not drafts:
        raise BadSchema(f"{path}: expected at least one column")
    return drafts


def _draft(name: str, kind: str, known: dict[str, Any], declared_public: bool) -> ColumnDraft:
    """Draft a column of what a file says of it: the keys that a program may have read off records are left to a person."""
    if declared_public:
        return ColumnDraft.of_type(name, kind, **known)
    asked = {"missing": OPEN} if known.get("missing") is True else {}
    draft = ColumnDraft.of_type(name, kind, **{key: known[key] for key in known if key in _FORMS}, **asked)
    told = {key: _FORM_TOLD for key in ("format", "decimals") if key in known} | dict.fromkeys(asked, _MISSING_TOLD)
    return replace(draft, why=draft.why | told)


def _of_sdv(name: str, about: dict[str, Any], is_key: bool, declared_public: bool) -> ColumnDraft:
    kind = about.get("sdtype")
    known: dict[str, Any] = {"missing": True} if about.get("range_is_nullable") is True else {}
    if is_key:
        return ColumnDraft(name, {"type": "fake", "fake": "row_number"}, {"fake": "the key of the table"})
    if kind == "numerical":
        kept = str(about.get("computer_representation", "")).lower()
        whole = about.get("decimal_places") == 0 or kept.startswith(("int", "uint"))
        if not whole and type(about.get("decimal_places")) is int:
            known["decimals"] = about["decimal_places"]
        known |= _range(about, lambda value: value)
        return _draft(name, "integer" if whole else "number", known, declared_public)
    if kind == "datetime":
        form = about.get("datetime_format")
        form = form if isinstance(form, str) else "%Y-%m-%d %H:%M:%S"
        timed = any(part in form for part in _CLOCK)
        known |= _range(about, lambda value: _iso(value, form, timed))
        type_ = "datetime" if timed else "date"
        usual = form in ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S")
        read = not usual and _is_form(form, type_)
        draft = _draft(name, type_, known | ({"format": form} if read else {}), declared_public)
        if usual or read:
            return draft
        return draft.because("type", "write it as YYYY-MM-DD in the file" + (", with HH:MM:SS" if timed else ""))
    if kind in ("categorical", "ordinal"):
        listed = about.get("range_values")
        return _draft(name, "category", ({"values": listed} if isinstance(listed, list) else {}) | known, declared_public)
    if kind == "boolean":
        return _draft(name, "boolean", known, declared_public)
    if isinstance(kind, str) and kind in _NAMES:
        return ColumnDraft(name, {"type": "fake", "fake": "email" if kind == "email" else "name"})
    if isinstance(kind, str) and kind != "unknown":
        return ColumnDraft(name, {"type": "drop"}, {"type": f"sdtype {shortened(kind)}: not modelled; or type: fake"})
    return ColumnDraft(name, {"type": OPEN}, {"type": "SDV does not know"})


def _is_form(form: str, kind: str) -> bool:
    """Tell whether a schema can declare SDV's format of dates or times."""
    try:
        MomentForm(form, kind)
    except ValueError:
        return False
    return True


def _range(about: dict[str, Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    keys = {"range_min": "low", "range_max": "high"}
    return {ours: form(about[theirs]) for theirs, ours in keys.items() if about.get(theirs) is not None}


def _iso(value: Any, form: str, timed: bool) -> str:
    """Return a time in SDV's format as ISO text, or `OPEN`."""
    try:
        moment = datetime.datetime.strptime(str(value), form)
    except ValueError:
        return OPEN
    moment = moment.replace(microsecond=0, tzinfo=None)
    return moment.isoformat(" ") if timed else moment.date().isoformat()


def _of_dpsynth(name: str, about: dict[str, Any], declared_public: bool) -> ColumnDraft:
    described = {"description": about["description"]} if isinstance(about.get("description"), str) else {}
    kind = about.get("type")
    if kind == "NumericalAttribute" or "min_value" in about:
        whole = about.get("dtype") == "int"
        known = {ours: about[theirs] for theirs, ours in (("min_value", "low"), ("max_value", "high")) if theirs in about}
        # Where values beyond the bounds are not moved, they are missing there, whatever the records are.
        outside = {} if about.get("clip_to_range", True) else {"missing": True}
        draft = _draft(name, "integer" if whole else "number", known | described, declared_public)
        return replace(draft, fields=draft.fields | outside)
    if kind == "CategoricalAttribute" or "possible_values" in about:
        values, other = about.get("possible_values"), about.get("out_of_domain_index", 0)
        if isinstance(values, list) and type(other) is int and 0 <= other < len(values):
            values = [str(value) if type(value) is float else value for value in values]
            return _draft(name, "category", {"values": values, "other": values[other]} | described, declared_public)
    if kind == "FreeFormTextAttribute" or "max_tokens" in about:
        return ColumnDraft(name, {"type": "drop", **described}, {"type": "free text is not modelled; or type: fake"})
    return ColumnDraft.of_type(name, "category", **described)
