"""The tutorials hold the outputs of a run that went well, are small and on the site, and run again."""

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.book

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
SIZE, PICTURE = 200_000, 60_000  # in bytes, as a file; a picture as its characters in base64
# A path of a machine, and an error of the program, whose message follows its name.
PATH = re.compile(r"(?<![\w.:/<])/(?:tmp|home|root|work|usr|opt|Users|private|var)/\w")
REFUSED = re.compile(r"^dpgen: (?!warning: )", re.MULTILINE)


def _code(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def _complaints(cells: list[dict]) -> list[str]:
    """Return what a reader should not see in the outputs of these cells."""
    found = [] if any(cell["outputs"] for cell in cells) else ["it has no outputs"]
    for cell in cells:
        for output in cell["outputs"]:
            texts = {"text": output.get("text", ""), **output.get("data", {})}
            said = {kind: "".join(text) for kind, text in texts.items() if isinstance(text, str | list)}
            if output["output_type"] == "error":
                found.append("a cell failed")
            if output.get("name") == "stderr":
                found.append(f"stderr: {said['text'][:80]}")
            found += [f"a {kind} of {len(text):,} characters" for kind, text in said.items() if len(text) > PICTURE]
            words = "\n".join(text for kind, text in said.items() if kind.startswith("text"))
            found += [f"a path: {path[0]}" for path in PATH.finditer(words)]
            found += ["the program refused what a cell asks" for _ in REFUSED.finditer(words)]
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_the_outputs_of_a_good_run(path):
    assert not _complaints(_code(path))
    assert path.stat().st_size < SIZE


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_explains_its_cells(path):
    """A notebook has a title, and no more than two cells of code follow each other without a word."""
    kinds = [cell["cell_type"] for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    assert kinds[0] == "markdown" and "code code code" not in " ".join(kinds)


def test_every_notebook_is_in_the_table_of_contents():
    listed = re.findall(r"^tutorials/(\w+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(["index", *(path.stem for path in NOTEBOOKS)])


def test_the_first_page_says_when_to_read_each():
    page = (DOCS / "tutorials" / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\((\w+)\.ipynb\)", page)) == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        ({"output_type": "stream", "name": "stdout", "text": ["kept in runs/visits/release"]}, ""),
        ({"output_type": "stream", "name": "stdout", "text": "dpgen: warning: little is left"}, ""),
        ({"output_type": "stream", "name": "stdout", "text": "dpgen: data.n=0: expected"}, "refused"),
        ({"output_type": "stream", "name": "stdout", "text": "in /home/ann/runs"}, "a path"),
        ({"output_type": "display_data", "data": {"text/html": "<code>/tmp/x1/runs</code>"}}, "a path"),
        ({"output_type": "display_data", "data": {"image/png": "x" * 70_000}}, "a image/png"),
        ({"output_type": "stream", "name": "stderr", "text": "UserWarning"}, "stderr"),
        ({"output_type": "error", "ename": "ValueError"}, "failed"),
    ],
)
def test_a_complaint_is_found(output, complaint):
    found = _complaints([{"outputs": [output]}])
    assert bool(found) == bool(complaint) and complaint in "".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    from run_notebooks import run_notebook

    notebook = run_notebook(nbformat.read(path, as_version=4))
    assert not _complaints([cell for cell in notebook.cells if cell.cell_type == "code"])
