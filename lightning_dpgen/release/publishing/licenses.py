"""The licences that a publisher may state of a release, by the words of the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

# The field of `declared` that holds the word.
LICENSE = "license"
# Words of the Hub that fit data and models. Its word "other" asks for a file that no release has.
License = Literal[
    "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nd-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-nc-nd-4.0",
    "odc-by", "odbl", "pddl", "cdla-permissive-2.0", "etalab-2.0", "apache-2.0", "mit",
]  # fmt: skip
# Names in the SPDX list of licences, where they are not the words in capitals.
_SPDX = {
    "odc-by": "ODC-By-1.0",
    "odbl": "ODbL-1.0",
    "pddl": "PDDL-1.0",
    "cdla-permissive-2.0": "CDLA-Permissive-2.0",
    "etalab-2.0": "etalab-2.0",
    "apache-2.0": "Apache-2.0",
}


def check_license(declared: Mapping[str, Any]) -> None:
    """Refuse a declared licence that is none of `License`.

    Raises:
        ValueError: naming the field.

    Example:
        >>> check_license({"license": "cc-by-4.0"})
        >>> check_license({"license": "CC BY"})
        Traceback (most recent call last):
        ValueError: declared['license']='CC BY': expected one of cc0-1.0, cc-by-4.0, ...
    """
    word = declared.get(LICENSE)
    if LICENSE in declared and word not in get_args(License):
        raise ValueError(
            f"declared['{LICENSE}']={str(word)[:60]!r}: expected one of {', '.join(get_args(License))}, the words of the "
            "Hugging Face Hub"
        )


def page_of(word: str) -> str:
    """Return the page of a licence in the SPDX list, by which machines know it.

    Example:
        >>> page_of("cc-by-4.0"), page_of("odbl")
        ('https://spdx.org/licenses/CC-BY-4.0.html', 'https://spdx.org/licenses/ODbL-1.0.html')
    """
    return f"https://spdx.org/licenses/{_SPDX.get(word, word.upper())}.html"
