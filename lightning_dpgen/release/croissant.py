"""Synthetic records described in Croissant, the vocabulary in which data sets are found and read by machines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from lightning_dpgen.release.certificate import CROISSANT, SYNTHETIC
from lightning_dpgen.release.opened import file_hash

_FORMAT = "http://mlcommons.org/croissant/1.0"
_PLAIN = re.compile(r"[A-Za-z0-9_.-]+")
# The context that the specification gives, word for word.
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


def write_croissant(folder: Path, schema: pa.Schema, *, name: str, description: str) -> None:
    """Describe the synthetic records that a folder holds, a field for each column.

    Args:
        folder: folder of the release, which holds the records.
        schema: schema of the records.
        name: name of the data set.
        description: the certificate's statement, so that it goes where the data go.
    """
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": name,
        "description": description,
        "conformsTo": _FORMAT,
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
