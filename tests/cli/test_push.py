"""`dpgen push` against a local stand-in of the Hub's HTTP interface, which is not the Hub itself (`hub_stand_in`)."""

import shutil
import sys

import numpy as np
import pytest
import torch
from contracts.sealed import rewrite
from release.released import account, released
from release.test_synthetic_pages import PEOPLE, SCHEMAS

from cli.hub_stand_in import Hub, problems_of_card
from lightning_dpgen import release_weights, verify
from lightning_dpgen.release.drawing.opened import file_hash
from lightning_dpgen.release.publishing.signature import new_key

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.filterwarnings("ignore")
TOKEN = "hf_secret_of_ann"
TO = ("--repo", "ann/visits")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Return a stand-in to which the library of the Hub talks, with a token in the environment and no login."""
    from huggingface_hub import constants

    own = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", own.address)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "login"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    yield own
    own.close()


def _files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _refused(result, told):
    status, out, err = result
    assert status == 2 and not out and err.startswith("dpgen: ") and len(err.splitlines()) == 1 and told in err, err
    assert "hf_" not in err


@pytest.mark.parametrize("kind", ["dataset", "model"])
def test_the_files_of_a_release_arrive_in_one_commit_and_verify(dpgen, hub, release, tmp_path, kind):
    new_key(tmp_path / "own", None)
    assert dpgen("sign", release, "--key", tmp_path / "own")[0] == 0
    more = ["--type", "model", "--private"] if kind == "model" else []
    status, out, err = dpgen("push", release, *TO, *more)
    assert status == 0 and not err and TOKEN not in out
    address = f"{hub.address}/{'datasets/' if kind == 'dataset' else ''}ann/visits"
    assert out.splitlines()[0] == f"published{' as private' if more else ''}: {address}"
    ((known, repo),) = hub.repos.items()
    assert known == (kind, "ann/visits") and repo["private"] == bool(more) and len(hub.commits) == 1
    assert repo["files"] == _files(release) | {".gitattributes": b""} and "privacy.json.sig" in repo["files"]
    # The reader's way: without what the Hub adds.
    (tmp_path / "there").mkdir()
    for name, content in repo["files"].items():
        if name != ".gitattributes":
            (tmp_path / "there" / name).write_bytes(content)
    assert verify(tmp_path / "there", tmp_path / "own.pub").good
    # The token goes to the Hub alone, and not where files are stored.
    assert {token for method, _, token in hub.asked if method == "PUT"} == {""}
    _refused(dpgen("push", release, *TO, *more), "exists already and holds 'README.md'")
    assert len(hub.commits) == 1


def _link(release):
    (release / "report.html").rename(release.parent / "report.html")
    (release / "report.html").symlink_to(release.parent / "report.html")


SPOILED = {
    "a file too many": (lambda r: (r / "more.csv").write_text("a"), "more.csv is not in the certificate"),
    "a changed file": (lambda r: (r / "report.html").write_text("a"), "file changed: report.html"),
    "a hidden file": (lambda r: (r / ".env").write_text("a"), ".env is hidden"),
    "a link": (_link, "report.html"),
    "a folder": (lambda r: (r / "private").mkdir(), "private is not an ordinary file"),
    "a forged epsilon": (
        lambda r: rewrite(r, lambda certificate: certificate.__setitem__("epsilon", 0.1)),
        "dpgen verify refuses it",
    ),
    "a twin": (lambda r: _in_its_place(r, paid=account(float("inf"))), "it was made without privacy"),
    "noise of a known seed": (lambda r: _in_its_place(r, paid=account(seed=1)), "came from a debugging seed"),
    "no certificate": (lambda r: (r / "privacy.json").unlink(), "holds no privacy.json"),
    "a card that is none": (
        lambda r: _with_card(r, "---\ntags: [\n---\n"),
        "README.md: its metadata are not those of a dataset",
    ),
}  # fmt: skip


def _with_card(release, front):
    """Give a release other metadata, and the certificate the new hash."""
    card = release / "README.md"
    card.write_text(front + card.read_text(encoding="utf-8").split("---\n", 2)[2], encoding="utf-8")
    found = file_hash(card)
    rewrite(release, lambda certificate: certificate["files"].__setitem__("README.md", found))


def _in_its_place(release, **settings):
    shutil.rmtree(release)
    released(release, PEOPLE, **settings)


@pytest.mark.parametrize("spoiled", SPOILED)
def test_nothing_is_sent_of_what_is_no_good_release(dpgen, hub, release, spoiled):
    spoil, told = SPOILED[spoiled]
    spoil(release)
    _refused(dpgen("push", release, *TO), told)
    assert hub.asked == []


def test_the_folder_of_a_run_and_what_lies_in_its_private_part_are_refused(dpgen, hub, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    _refused(dpgen("push", run, *TO), f"expected its release, {run / 'release'}")
    trial = shutil.copytree(run / "release", run / "private" / "trials" / "1" / "release")
    _refused(dpgen("push", trial, *TO), "which holds the ledger of a run")
    _refused(dpgen("push", run / "private", *TO), "holds no privacy.json")
    assert hub.asked == []
    assert dpgen("push", run / "release", *TO)[0] == 0


@pytest.mark.parametrize("name", ["visits", "ann/visits/more", "ann/a b", "ann/a..b", "ann/x.git", "/visits", "ann/"])
def test_a_wrong_name_is_refused(dpgen, hub, release, name):
    _refused(dpgen("push", release, "--repo", name), f"--repo {name}: expected USER/NAME")
    assert hub.asked == []


def test_without_a_token_or_the_library_nothing_is_sent(dpgen, hub, release, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    _refused(dpgen("push", release, *TO), "set HF_TOKEN, or run")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("lightning_dpgen.data.files.kinds.find_spec", lambda name: None)
    _refused(dpgen("push", release, *TO), "pip install 'lightning_dpgen[hub]'")
    assert hub.asked == []


def test_the_token_of_a_login_is_taken(dpgen, hub, release, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "login").write_text(TOKEN)
    assert dpgen("push", release, *TO)[0] == 0 and len(hub.commits) == 1


def test_the_token_is_no_argument(dpgen, hub, release):
    _refused(dpgen("push", release, *TO, "--token", "secret"), "unrecognized arguments: --token")


@pytest.mark.parametrize(
    ("token", "repo", "told"),
    [("hf_unknown", "ann/visits", "answers 401"), ("hf_reader_of_ann", "ann/visits", "answers 403"),
     (TOKEN, "bob/visits", "answers 403")],
)  # fmt: skip
def test_a_token_that_may_not_is_told(dpgen, hub, release, monkeypatch, token, repo, told):
    monkeypatch.setenv("HF_TOKEN", token)
    _refused(dpgen("push", release, "--repo", repo), told)
    assert not hub.repos and not hub.commits


@pytest.mark.parametrize(
    ("where", "status"), [("create", 401), ("create", 403), ("preupload", 403), ("lfs", 403), ("commit", 409),
                          ("commit", 413), ("commit", 429), ("commit", 500)],
)  # fmt: skip
def test_a_refusal_is_one_line_without_the_token_and_the_same_command_goes_on(dpgen, hub, release, where, status):
    """The stand-in puts the token into its answer, as a server that writes of a request might."""
    hub.answers[where] = status
    result = dpgen("push", release, *TO)
    _refused(result, f"answers {status}")
    assert not hub.commits
    hub.answers.clear()
    assert dpgen("push", release, *TO)[0] == 0 and len(hub.commits) == 1


def test_a_card_that_the_hub_refuses_is_told(dpgen, hub, release):
    _with_card(release, "---\nsize_categories: [many]\n---\n")
    _refused(dpgen("push", release, *TO), "size_categories: 'many' is unknown")
    assert not hub.repos


def test_a_public_repository_is_not_taken_for_a_private_one(dpgen, hub, release):
    hub.repos["dataset", "ann/visits"] = {"files": {".gitattributes": b""}, "private": False}
    _refused(dpgen("push", release, *TO, "--private"), "exists already and is public")
    assert not hub.commits


def test_no_network_is_one_line(dpgen, hub, release, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    _refused(dpgen("push", release, *TO), "http://127.0.0.1:9 cannot be reached")


def test_verbose_lines_hold_no_token(dpgen, hub, release):
    hub.answers["commit"] = 403
    status, out, err = dpgen("-v", "push", release, *TO)
    assert status == 2 and TOKEN not in out + err and "Traceback" in err


NAME = 'records of "Ann": [a] # \N{GRINNING FACE}\\n'


def _projected(dpgen, folder):
    np.save(folder / "rows.npy", np.random.default_rng(0).normal(size=(60, 5)))
    words = [
        "data=array",
        f"data.path={folder / 'rows.npy'}",
        "project.radius=3",
        "project.k=2",
        "privacy.epsilon=2",
        "license=odbl",
    ]
    assert dpgen("project", *words, f"run_dir={folder / 'run'}")[0] == 0
    return folder / "run" / "release"


def _made(kind, dpgen, folder):
    """Make a release of a kind and return its folder."""
    if kind == "rows":
        return _projected(dpgen, folder)
    if kind == "weights":
        release_weights(torch.nn.Linear(2, 1), account(), folder / "r", data=NAME, n=90, declared={"license": "odbl"})
    else:
        released(folder / "r", SCHEMAS[kind][0], data=NAME, license="odbl")
    return folder / "r"


@pytest.mark.parametrize("kind", ["table", "grey pictures", "baskets", "series", "rows", "weights"])
def test_the_card_of_each_kind_is_read_by_the_library_of_the_hub(dpgen, tmp_path, kind):
    """Offline it is read as a card of both types; the check that the Hub makes itself is the stand-in's."""
    from huggingface_hub import DatasetCard, ModelCard

    text = (_made(kind, dpgen, tmp_path) / "README.md").read_text(encoding="utf-8")
    for card in (ModelCard(text), DatasetCard(text)):
        about = card.data.to_dict()
        assert about["library_name"] == "lightning_dpgen" and "differential-privacy" in about["tags"]
        assert about["license"] == "odbl"
        if kind != "weights":
            assert about["size_categories"] == ["n<1K"] and about["configs"][0]["data_files"][0]["path"].endswith(
                ".parquet"
            )
            assert kind == "rows" or about["pretty_name"] == f"Synthetic records: {NAME}"
        assert type(card)(str(card)).data.to_dict() == about
    assert problems_of_card(text) == []


@pytest.mark.parametrize(
    "front", ["size_categories: [9]", "task_categories: [none]", "pretty_name: 3", "tags: [1]", "a: [", "configs: [{}]"]
)
def test_the_stand_in_refuses_wrong_cards(front):
    assert problems_of_card("---\nlibrary_name: a\n---\n") == [] and problems_of_card("a card without metadata")
    assert problems_of_card(f"---\n{front}\n---\n")
