"""`dpgen`: picks the subcommand, and turns every mistake into one line and an exit status.

Exit status: 0 done, 1 a fault of ours, 2 a mistake of the user's, 3 the budget does not suffice, 75 one of several
devices was lost, 130 interrupted.
Nothing heavy is imported before the subcommand is known.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from importlib import import_module

from lightning_dpgen.cli.arguments import VERBOSE_HELP, HelpPrinted, loading, verbose_logging, without_verbose
from lightning_dpgen.common import pace
from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.privacy.errors import BudgetTooSmall, DamagedState, LedgerError, NotInstalled
from lightning_dpgen.privacy.extras import needing
from lightning_dpgen.privacy.software import installed_version, launched_as
from lightning_dpgen.specs.usage_error import FAULT, INTERRUPTED, MISTAKE, OK, OVERSPENT, UsageError, describe_os_error

# Nothing is garbage any more at the end, and looking for some would keep a user waiting for a second or more.
atexit.register(gc.freeze)

COMMANDS = {
    "train": "learn a generative model privately and release it",
    "project": "release every row of a table, projected and perturbed",
    "budget": "print the budget table that train would print, reading no data",
    "stop": "stop an unfinished run for good; its study has back what it has not drawn",
    "audit": "attack the mechanisms and a run on made-up records: at least how much epsilon?",
    "schema": "draft the public description of a table",
    "check": "list what a schema would refuse or move of a table (the result is private)",
    "sample": "draw synthetic records from a release",
    "verify": "recompute a release's epsilon and check its files",
    "dossier": "write what an impact assessment asks of a release, from its certificate alone",
    "sign": "sign a release with your key, so that others can check whose it is",
    "push": "publish a release on the Hugging Face Hub, with your own token",
    "predict": "write the labels of records by a release's classifier (the result is private)",
    "encode": "write the codes of real records by a release's encoder (the result is private)",
    "evaluate": "compare a release with real data (the result is private)",
    "studio": "open the way from a file to a release in a browser, on this machine alone",
    "completion": "print a script that completes commands, settings and their values in bash, zsh or fish",
}
# Mistakes of users, each with the module of its class, which whatever has raised it has imported.
_MISTAKES = {
    "lightning_dpgen.data.files.text": "MissingData",
    "lightning_dpgen.data.tables.column": "BadSchema",
    "lightning_dpgen.release.files": "NotARelease",
    "lightning_dpgen.sampling.errors": "BadRecords",
}
# They ask for a password, which nothing is written over.
_ASKING = ("sign", "push")


def usage() -> str:
    lines = ["usage: dpgen COMMAND ...", "", "Private records in, a generative model with a privacy certificate out.", ""]
    lines += [f"  {name:<12}{what}" for name, what in COMMANDS.items()]
    return "\n".join([*lines, "", "dpgen COMMAND --help tells more. With each command goes:", VERBOSE_HELP])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; gives its exit status."""
    argv, asked = without_verbose(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return OK if argv else MISTAKE
    if argv[0] not in (*COMMANDS, "--version"):
        near = suggest(argv[0], COMMANDS, "dpgen {}", shortened=True)
        return _complain(f"unknown command {argv[0]!r}: expected one of {', '.join(COMMANDS)}{near}", MISTAKE)
    try:
        # Asked first: a certificate that cannot name it would be found out once a budget is spent.
        version = installed_version()
        if argv[0] == "--version":
            print(f"dpgen {version}")
            return OK
        # One of several devices speaks for all.
        shown_on = None if argv[0] in _ASKING or launched_as() else sys.stderr
        name = f"dpgen {argv[0]}"
        with pace.show_progress(shown_on), pace.stage(name), verbose_logging(asked), needing(name):
            with loading():
                command = import_module(f"lightning_dpgen.cli.{argv[0]}")
            return command.run(argv[1:])
    except HelpPrinted:
        return OK
    except SystemExit as end:
        # Code of the user's has asked for it.
        return _complain(f"ended by SystemExit({end.code!r}) before it was done", MISTAKE)
    except KeyboardInterrupt:
        return _complain("interrupted; nothing was released", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        return FAULT
    except Exception as error:
        status = _status(error)
        if status == FAULT:
            from lightning_dpgen.runs.memory import ADVICE, is_out_of_memory

            if is_out_of_memory(error):
                return _complain(ADVICE, MISTAKE)
            raise
        return _complain(describe_os_error(error) if isinstance(error, OSError) else str(error), status)


def _status(error: Exception) -> int:
    if isinstance(error, UsageError):
        return error.status
    if isinstance(error, BudgetTooSmall):
        return OVERSPENT
    # A full disk or a folder that cannot be written is not a fault of ours, and a traceback does not help.
    imported = [vars(sys.modules[module])[name] for module, name in _MISTAKES.items() if module in sys.modules]
    return MISTAKE if isinstance(error, (DamagedState, LedgerError, NotInstalled, OSError, *imported)) else FAULT


def _complain(text: str, status: int) -> int:
    print(f"dpgen: {without_passwords(' '.join(text.split()))}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
