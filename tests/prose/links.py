"""Links of pages lead somewhere, and the sections of pages that code names are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .files import PAGES, ROOT, find_line, read, write

BLOCK = re.compile(r"^(`{3,})([^\n]*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
# Sentences that name a page and a section of it, in code and in pages.
SECTION = re.compile(r"(docs/[\w/]+\.md)\s*(?:\(|,\s*(?:#\s*)?)\"([^\"]+)\"")


def check_links(pages: list[Path] = PAGES) -> Iterator[str]:
    """Yield links to a file or a section that is not there."""
    for page in pages:
        text = BLOCK.sub("", read(page))
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in _anchors(file)):
                yield write(page, find_line(page, f"]({target})"), f"the link leads nowhere: {target}")


def check_sections(files: list[Path] | None = None) -> Iterator[str]:
    """Yield sections that code or a configuration names and that are not on the page."""
    places = [ROOT / place for place in ("lightning_dpgen", "tests", "experiments", "benchmarks", "conf")]
    for path in files or [path for place in places for path in place.rglob("*") if path.suffix in (".py", ".yaml")]:
        text = re.sub(r"\n\s*#?\s*", " ", read(path))
        for page, section in SECTION.findall(text):
            headings = re.findall(r"^#+ (.*)$", read(ROOT / page), re.MULTILINE)
            if not any(heading.startswith(section) for heading in headings):
                yield write(path, find_line(path, page), f"no such section: {page}, {section}")


def _anchor(heading: str) -> str:
    """Return the anchor that a heading has on the site, and on GitHub."""
    plain = re.sub(r"[`*_]|\[([^]]*)\]\([^)]*\)", lambda found: found[1] or "_" * (found[0] == "_"), heading.strip())
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def _anchors(page: Path) -> set[str]:
    text = BLOCK.sub("", read(page))
    named = re.findall(r"^\((\S+)\)=$", text, re.MULTILINE)
    return {_anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)} | set(named)
