"""Synthetic records described in Croissant, the vocabulary in which data sets are found and read by machines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightning_dpgen.release.drawing.opened import file_hash
from lightning_dpgen.release.files import CROISSANT, SYNTHETIC
from lightning_dpgen.release.publishing.licenses import page_of

_FORMAT = "http://mlcommons.org/croissant/1.0"
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
_TERMS = (
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject", "fileSet", "format",
    "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex",
    "repeated", "replace", "samplingRate", "separator", "source", "subField", "transform",
)  # fmt: skip
# The context that the specification gives.
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "sc": "https://schema.org/",
    **{term: f"cr:{term}" for term in _TERMS},
}


def write_croissant(folder: Path, schema: pa.Schema, *, name: str, description: str, license: str | None = None) -> None:
    """Describe the synthetic records of a release as a data set of this name, a field for each column.

    The description is the certificate's statement, so that it goes where the data go. A licence is a word of the Hub.
    """
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": name,
        "description": description,
        "conformsTo": _FORMAT,
        **({} if license is None else {"license": page_of(license)}),
        "keywords": ["synthetic data", "differential privacy"],
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": SYNTHETIC,
                "name": SYNTHETIC,
                "contentUrl": SYNTHETIC,
                "encodingFormat": "application/x-parquet",
                "sha256": file_hash(folder / SYNTHETIC),
            }
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "records",
                "name": "records",
                "description": "Synthetic records, one row each.",
                "field": [_field(number, field) for number, field in enumerate(schema)],
            }
        ],
    }
    text = json.dumps(described, indent=1, ensure_ascii=False)
    (folder / CROISSANT).write_text(text + "\n", encoding="utf-8")


def _field(number: int, field: pa.Field) -> dict[str, Any]:
    several = pa.types.is_list(field.type)
    # A name may hold what an identifier may not.
    known = field.name if _PLAIN.fullmatch(field.name) else f"column:{number}"
    described = {
        "@type": "cr:Field",
        "@id": f"records/{known}",
        "name": field.name,
        "dataType": data_type(field.type.value_type if several else field.type),
        "source": {"fileObject": {"@id": SYNTHETIC}, "extract": {"column": field.name}},
    }
    return described | ({"repeated": True} if several else {})


def data_type(kind: pa.DataType) -> str:
    """Return the Croissant type of values of an Arrow type.

    Example:
        >>> data_type(pa.int64()), data_type(pa.date32())
        ('sc:Integer', 'sc:Date')
    """
    types = pa.types
    if types.is_boolean(kind):
        return "sc:Boolean"
    if types.is_integer(kind):
        return "sc:Integer"
    if types.is_floating(kind):
        return "sc:Float"
    if types.is_date(kind):
        return "sc:Date"
    if types.is_timestamp(kind):
        return "sc:DateTime"
    return "sc:Time" if types.is_time(kind) else "sc:Text"
