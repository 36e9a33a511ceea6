"""`dpgen stop`: end an unfinished run for good, so that its study has back what the run has not drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning_dpgen.cli.arguments import Parser, loading
from lightning_dpgen.common.folders import place_of
from lightning_dpgen.specs.usage_error import OK, UsageError

WARNING = (
    "This holds if you stopped the run because of released numbers, or of nothing in its records. If you stopped it for "
    "what its private curves show, or anything else under private/, no account covers that choice."
)


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen stop",
        description="Stop an unfinished run for good. Its study, if it is composed by moments, then counts what the run "
        "has drawn, and later runs may spend the rest. The run never goes on. Stop none for what its private curves show.",
    )
    parser.add_argument("run", help="the folder of a run, or the file of a ledger (ledger.jsonl)")
    parser.add_argument("--study", metavar="FILE", help="the study of the run, if its file was moved since")
    return parser


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_args(argv)
    with loading():
        from lightning_dpgen.privacy.ledger import Ledger
        from lightning_dpgen.privacy.studies.entry import stop_run
        from lightning_dpgen.privacy.studies.study import Study
        from lightning_dpgen.runs.run_folder import RunFolder
    place = place_of(arguments.run)
    ledger = RunFolder(place).ledger if place.is_dir() else place
    if not ledger.is_file():
        raise UsageError(f"{arguments.run}: expected the folder of a run, or its ledger; there is no {ledger.name}")
    if _is_study(ledger):
        raise UsageError(
            f"{arguments.run}: is a study: name the run to stop, by its folder or its ledger, and the study as --study "
            f"{arguments.run} if its file was moved"
        )
    study = None if arguments.study is None else Study(_file(arguments.study))
    if study is None and Ledger.read(ledger).study is None:
        raise UsageError(
            f"{arguments.run}: this run was entered in no study, so a stop would save nothing, and it is not stopped; "
            "private.stop() of a PrivateTraining, or account.stop(), ends such a run for good all the same"
        )
    stopped = stop_run(ledger, study)
    print(f"{stopped}.")
    if not stopped.finished:
        print(WARNING)
    return OK


def _is_study(file: Path) -> bool:
    with file.open("rb") as lines:
        return lines.readline().startswith(b'{"study":')


def _file(word: str) -> Path:
    file = place_of(word)
    if not file.is_file():
        raise UsageError(f"--study {word}: expected the file of a study, as in studies/census.jsonl")
    return file
