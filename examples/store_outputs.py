"""Run the notebooks and keep what they show: python examples/store_outputs.py [NAME...]

Needs nbclient and ipykernel, the [hf] extra and the installed models ('toposcope ls models').
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

HERE = Path(__file__).parent


def stored(path: Path) -> None:
    """Run one notebook in an empty directory, and keep its outputs: of a result its page, not its repr as well."""
    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as place:
        nbclient.NotebookClient(book, timeout=1200, resources={"metadata": {"path": place}}).execute()
    for cell in book.cells:
        cell.metadata = nbformat.NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]  # progress
            for output in cell.outputs:
                if "text/html" in output.get("data", {}):
                    output.data.pop("text/plain", None)
    book.metadata["language_info"] = {"name": "python"}
    path.write_text(nbformat.writes(book, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    for name in sys.argv[1:] or sorted(each.name for each in HERE.glob("*.ipynb")):
        stored(HERE / name)
        print(name)
