"""Schemas, records and their sources: what may be read."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.data.baskets.schema import BasketSchema as BasketSchema
    from lightning_dpgen.data.layout import Encoded as Encoded
    from lightning_dpgen.data.layout import Layout as Layout
    from lightning_dpgen.data.pictures.schema import ImageSchema as ImageSchema
    from lightning_dpgen.data.pictures.schema import encode_images as encode_images
    from lightning_dpgen.data.records import Records as Records
    from lightning_dpgen.data.schema import Schema as Schema
    from lightning_dpgen.data.series.schema import SeriesSchema as SeriesSchema
    from lightning_dpgen.data.tables.schema import TableSchema as TableSchema
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "baskets.schema": ["BasketSchema"],
            "layout": ["Encoded", "Layout"],
            "pictures.schema": ["ImageSchema", "encode_images"],
            "records": ["Records"],
            "schema": ["Schema"],
            "series.schema": ["SeriesSchema"],
            "tables.schema": ["TableSchema"],
        },
    )
