"""Run the tutorials of the book in place: `python docs/run_notebooks.py [NAME...]`, all of them without a name.

Each notebook runs in a folder of its own that is thrown away, beside copies of the files of docs/start that it reads. A
notebook keeps the outputs of its last run. The rest of it (ids, metadata, paths) is the same after every run, so that a
second run changes nothing but numbers that depend on noise.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).resolve().parent
TUTORIALS = DOCS / "tutorials"
# A cell that takes this long (in seconds) hangs.
PATIENCE = 600


def run_notebook(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of a fresh run.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell fails.
        ValueError: if a cell writes to stderr: a reader would see a warning, so its cause is to be removed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for file in (DOCS / "start").iterdir():
            if file.suffix in (".py", ".yaml"):
                shutil.copy(file, folder)
        # `!dpgen` is the program of the Python that runs this, and its output is as wide as a page.
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        surroundings = {**os.environ, "PATH": programs, "COLUMNS": "110", "TERM": "dumb"}
        # torch announces its own renames from inside Lightning.
        surroundings["PYTHONWARNINGS"] = "ignore::FutureWarning,ignore::DeprecationWarning"
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=PATIENCE,
            record_timing=False,
            coalesce_streams=True,
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute(env=surroundings)
        normalise(notebook, folder)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                raise ValueError(f"{cell.source}\nwrites to stderr: {output.text}")
    return notebook


def normalise(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Remove what differs from one run to the next: ids, metadata, and the folder that it ran in."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
    }
    count = 0
    for number, cell in enumerate(notebook.cells, 1):
        cell.id, cell.metadata = f"cell-{number:02}", {}
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
            if "metadata" in output:
                output.metadata = {}
            if "text" in output:
                output.text = _without(folder, output.text)
            for kind, shown in output.get("data", {}).items():
                if kind.startswith("text/"):
                    output.data[kind] = _without(folder, shown)


def _without(folder: Path, text: str) -> str:
    """Return a text in which paths begin in the folder of the notebook, and lines end as in a file."""
    return text.replace(f"{folder}/", "").replace(str(folder), ".").replace("\r\n", "\n")


def main(names: list[str]) -> None:
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        if not names or path.stem in names:
            print(path.relative_to(DOCS.parent), flush=True)
            nbformat.write(run_notebook(nbformat.read(path, as_version=4)), path)


if __name__ == "__main__":
    main([Path(name).stem for name in sys.argv[1:]])
