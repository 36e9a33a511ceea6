"""Check what is written: ``python -m tests.prose``.

Each finding is one line, with file and line of the place. Exit status 1 if there is a finding.
"""

from __future__ import annotations

import sys

from . import english, links, programs, public_names, references, refusals, setting_names, structure

CHECKS = (
    programs.check_by_ruff,
    english.check_openings, english.check_verbs, english.check_words, english.check_lines_of_pages,
    setting_names.check_messages, setting_names.check_pages,
    structure.check_imports, structure.check_files_of_pages, structure.check_map, structure.check_rooms,
    structure.check_decisions,
    refusals.check_refusals,
    public_names.check_signatures, public_names.check_modules, public_names.check_errors, public_names.check_reference,
    links.check_links, links.check_sections, references.check_references,
)  # fmt: skip


def main() -> int:
    mypy = programs.start_mypy()
    findings = [finding for check in CHECKS for finding in check()]
    findings += programs.read_mypy(mypy)
    print(*findings, sep="\n", end="\n" * bool(findings))
    print(f"prose: {len(CHECKS) + 1} checks, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
