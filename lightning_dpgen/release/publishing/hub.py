"""A release on the Hugging Face Hub: copied, checked as the copy, and sent in one commit by `huggingface_hub`.

Nothing is sent before all is checked. The copy is both what is checked and what is sent, so a file that changes meanwhile
does no harm.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.common.passwords import without_passwords
from lightning_dpgen.data.files.kinds import needs
from lightning_dpgen.privacy.ledger import FILE_NAME
from lightning_dpgen.privacy.software import installed_version
from lightning_dpgen.release.bounds import MOST_FILES, check_written
from lightning_dpgen.release.drawing.opened import open_ordinary
from lightning_dpgen.release.files import CARD, CERTIFICATE, PROJECTED, RELEASE, SYNTHETIC, read_certificate
from lightning_dpgen.release.verdict import Verdict

if TYPE_CHECKING:
    from huggingface_hub import HfApi, RepoCard
    from huggingface_hub.errors import HfHubHTTPError

MODEL, DATASET = "model", "dataset"
# The Hub puts it into each repository that it makes.
_OF_THE_HUB = {".gitattributes"}
_LONGEST = 300
_REFUSED = {
    401: "it does not know the token, or there is no such user: make a token in the settings of your account there",
    403: "the token may not write there: expected one with the role write, for a name of your own or of your organisation",
    404: "it has no such user or organisation",
    409: "another change was made at the same time: run the same command again",
    413: "a file is too large for it",
    429: "it has had too many requests: wait a while, and run the same command again",
}


class NotPushed(Exception):
    """A release is not on the Hub; the message says why in one line."""


def push(
    folder: str | Path, repo: str, check: Callable[[Path], Verdict], *, kind: str | None = None, private: bool = False
) -> str:
    """Publish a release as a new repository of the Hub, in one commit, and return its address.

    The token is the user's own: HF_TOKEN, or that of `hf auth login`. It is no argument, so no list of processes and no
    history of a shell shows it.

    Args:
        folder: the release itself, and not the folder of the run that made it.
        repo: USER/NAME. It may exist if it holds no files, as after a push that broke off.
        check: `verification.verify.verify`, which a copy of the release must pass.
        kind: `model` or `dataset`; None for a data set if the release holds records.
        private: whether the repository is for its owner, or its organisation, alone; one that exists must not be public.

    Raises:
        NotPushed: if the release is refused, or the Hub refuses it, or cannot be reached.
        NotARelease: if the folder holds no certificate.
        BadRecords: if `huggingface_hub` is not installed.
        OSError: if the release cannot be copied.
    """
    folder = place_of(folder)
    check_folder(folder)
    needs("huggingface_hub", "hub", "dpgen push")
    check_name(repo)
    token = _token()
    with tempfile.TemporaryDirectory(prefix="dpgen-push-") as name:
        copy = Path(name)
        _copy(folder, copy)
        statement = _check(folder, copy, check)
        if kind is None:
            kind = DATASET if any((copy / name).exists() for name in (SYNTHETIC, PROJECTED)) else MODEL
        return _send(copy, repo, kind, private, token, _card(copy / CARD, kind), statement)


def check_folder(folder: Path) -> None:
    """Raise NotPushed for a folder of a run, or one in its private part; NotARelease for any other that is no release."""
    if (folder / RELEASE).is_dir() and not (folder / CERTIFICATE).exists():
        raise NotPushed(
            f"{folder} is the folder of a run, and a part of it must not be published: expected its release, "
            f"{folder / RELEASE}"
        )
    # A trial of a selection is a release of its own there, whose certificate leaves out the other trials.
    within = [parent for parent in folder.resolve().parents if (parent / FILE_NAME).exists()]
    if within:
        raise NotPushed(f"{folder} lies in {within[0]}, which holds the ledger of a run and must not be published")
    read_certificate(folder)


def check_name(repo: str) -> None:
    """Raise NotPushed for anything but USER/NAME in letters that the Hub takes."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
        wrong = "" if repo.count("/") == 1 else "it has no name of a user or an organisation"
    except HFValidationError as error:
        wrong = str(error)
    if wrong:
        raise NotPushed(f"--repo {repo}: expected USER/NAME, such as ann/visits ({wrong})")


def _token() -> str:
    from huggingface_hub import get_token
    from huggingface_hub.errors import OIDCError

    try:
        token = get_token()
    except OIDCError as error:
        raise NotPushed(f"HF_OIDC_RESOURCE is set, and gives no token: {_line(error)}") from None
    if token is None:
        raise NotPushed("there is no token of the Hub: set HF_TOKEN, or run hf auth login")
    return token


def _copy(folder: Path, target: Path) -> None:
    """Copy the files of a release, and refuse whatever is no ordinary and visible file."""
    try:
        check_written(folder)
        paths = sorted(itertools.islice(folder.iterdir(), MOST_FILES + 3))
        for path in paths:
            if path.name.startswith("."):
                raise ValueError(f"{path.name} is hidden")
            with open_ordinary(path) as source, open(target / path.name, "xb") as copy:
                shutil.copyfileobj(source, copy)
    except ValueError as error:
        raise NotPushed(f"{folder}: {error}; a release has ordinary, visible files alone, and nothing was sent") from None


def _check(folder: Path, copy: Path, check: Callable[[Path], Verdict]) -> str:
    """Refuse a copy that does not pass a check, and return the statement of its certificate."""
    verdict = check(copy)
    if not verdict.good:
        problem = _line(verdict.reason.replace(str(copy), str(folder)))
        raise NotPushed(f"{folder}: is not sent, since dpgen verify refuses it: {problem}")
    return read_certificate(copy)["statement"]


def _card(path: Path, kind: str) -> RepoCard:
    """Return the card with its metadata, as the library of the Hub reads and checks them without a network."""
    from huggingface_hub import DatasetCard, ModelCard

    try:
        return {MODEL: ModelCard, DATASET: DatasetCard}[kind](path.read_text(encoding="utf-8"))
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise NotPushed(f"{path.name}: its metadata are not those of a {kind} of the Hub: {_line(error)}") from None


def _send(folder: Path, repo: str, kind: str, private: bool, token: str, card: RepoCard, statement: str) -> str:
    """Make the repository, send all files in one commit, and return the address."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.utils import disable_progress_bars

    api = HfApi(token=token, library_name="lightning_dpgen", library_version=installed_version())
    files = [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
    bars = nullcontext() if sys.stderr.isatty() else disable_progress_bars()
    with _told(api, repo, token), warnings.catch_warnings(), bars:
        # It warns of tables in a repository of a model, which is what its user has asked for.
        warnings.simplefilter("ignore")
        # The Hub's own check, before anything is made there.
        card.validate(kind)
        _make_repository(api, repo, kind, private)
        api.create_commit(
            repo,
            files,
            repo_type=kind,
            commit_message=f"Release made by lightning_dpgen {installed_version()}",
            commit_description=statement,
        )
    return f"{api.endpoint}/{'datasets/' if kind == DATASET else ''}{repo}"


def _make_repository(api: HfApi, repo: str, kind: str, private: bool) -> None:
    """Make the repository; one that exists is taken if it holds nothing, since a release is never put over other files."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        api.create_repo(repo, repo_type=kind, private=private or None)
        return
    except HfHubHTTPError as error:
        if error.response.status_code != 409:
            raise
    about: Any = api.repo_info(repo, repo_type=kind)
    names = sorted({file.rfilename for file in about.siblings or ()} - _OF_THE_HUB)
    if names:
        raise NotPushed(
            f"--repo {repo}: the {kind} exists already and holds {names[0][:_LONGEST]!r}: a release never overwrites other "
            "files; choose another name"
        )
    if private and not about.private:
        raise NotPushed(
            f"--private: {repo} exists already and is public: make it private on its page, or choose another name"
        )


@contextmanager
def _told(api: HfApi, repo: str, token: str) -> Iterator[None]:
    """Turn what goes wrong between here and the Hub into one line without the token."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

    where = without_passwords(api.endpoint)
    try:
        yield
    except OfflineModeIsEnabled:
        raise NotPushed("HF_HUB_OFFLINE is set, so nothing may be sent: unset it") from None
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        # A fault while one of several files is sent is wrapped.
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error
        if isinstance(cause, HfHubHTTPError):
            problem = _refusal(cause, where)
        elif isinstance(cause, (HTTPError, OSError)):
            why = _line(cause) or type(cause).__name__
            problem = f"{where} cannot be reached, or broke off ({why}): run the same command again"
        else:
            problem = f"{where}: {_line(cause)}"
        raise NotPushed(f"{repo} is not published: {problem}".replace(token, "***")) from None


def _refusal(error: HfHubHTTPError, where: str) -> str:
    status = error.response.status_code
    why = _REFUSED.get(status, "run the same command again later" if status >= 500 else "it gives no other reason")
    said = _line(error.server_message or "")
    return f"{where} answers {status}: {why}{f' (it says: {said})' if said else ''}"


def _line(text: object) -> str:
    return " ".join(str(text).split())[:_LONGEST]
