"""`dpgen dossier` writes a page or a registry entry of a release that is consistent, and refuses any other in one line."""

import json

import pytest
from contracts.sealed import rewrite

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_page_and_an_entry_are_printed_or_written(dpgen, trained, tmp_path):
    status, page, err = dpgen("dossier", trained)
    assert status == 0 and not err and page.startswith("# Dossier") and "CONSISTENT" in page and "not signed" in page
    assert dpgen("dossier", trained / "release")[1] == page
    assert dpgen("dossier", trained, "-o", tmp_path / "a.md") == (0, f"written: {tmp_path / 'a.md'}\n", "")
    assert (tmp_path / "a.md").read_text() == page
    status, entry, _ = dpgen("dossier", trained, "--registry")
    assert status == 0 and json.loads(entry)["deployment"]["dp_variant"]["variant_name"] == "Approximate DP"
    status, out, _ = dpgen("dossier", trained, "--registry", "-o", tmp_path / "a.json")
    assert status == 0 and "for you to fill in: url_slug, tier, deployment.basic.name" in out
    assert (tmp_path / "a.json").read_text() == entry
    assert dpgen("verify", trained)[0] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(private=False), "says that it is not a private release"),
        (lambda c: c["noise"].update(seeded=True), "says that it is not a private release"),
        (lambda c: c.update(epsilon=c["epsilon"] / 2), "dpgen verify refuses it"),
        (lambda c: c.update(unit=""), "dpgen verify refuses it: unit"),
    ],
    ids=["a twin", "a seed", "another epsilon", "no unit"],
)
def test_no_other_release_has_one(dpgen, release, tmp_path, change, words):
    rewrite(release, change)
    status, out, err = dpgen("dossier", release, "-o", tmp_path / "a.md")
    assert status == 2 and not out and err.count("\n") == 1 and words in err
    assert not (tmp_path / "a.md").exists()


def test_places_that_are_refused(dpgen, release, tmp_path):
    (tmp_path / "there.md").write_text("mine")
    cases = {
        ("-o", tmp_path / "there.md"): "exists already",
        ("-o", tmp_path / "a.txt"): "ends in .md",
        ("-o", tmp_path / "a.md", "--registry"): "ends in .json",
        ("-o", tmp_path / "none" / "a.md"): "there is no folder",
        ("-o", release / "a.md"): "lies in a release",
    }
    for words, said in cases.items():
        status, out, err = dpgen("dossier", release, *words)
        assert status == 2 and not out and said in err and err.count("\n") == 1
    assert (tmp_path / "there.md").read_text() == "mine"
    assert dpgen("dossier", tmp_path / "none")[0] == 2
