"""The templates of pages and cards, and how they are rendered."""

from __future__ import annotations

import functools
from pathlib import Path

import jinja2

_TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def environment(*, autoescape: bool) -> jinja2.Environment:
    """Make the environment that renders the templates; a name that is not given is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
