"""Every verb from Python, on tiny inputs: its result prints, saves, reads back, frames, draws and shows itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.unit.models.making import TEXT, write_llama_lm
from tests.unit.results import holds
from toposcope.core.result import Result

pytest.importorskip("transformers", reason="running models on texts needs transformers")
pytest.importorskip("torch", reason="the laboratory needs torch")

SMALL = {"steps": 4, "batch": 8, "width": 16, "heads": 2, "ff": 16}
CUT = {"tokens": 12, "sequences": 2}
# Each in the words of a user; `model`, `other` and `text` are paths of what the fixture has written.
CALLS = {
    "check": "toposcope.check(model)",
    "check-live": "toposcope.check(model, live=True, probes=['fit'])",
    "check-against": f"toposcope.against(model, other, text=text, **{CUT})",
    "inspect": "toposcope.inspect(model)",
    "scan": "toposcope.scan(model, encoding='none')",
    "spectrum": "toposcope.spectrum(['rope', 'alibi'], context='1k', head_dim=16)",
    "flow": "toposcope.flow(preset='clusters', tokens=5)",
    "compare": "toposcope.compare(model, other)",
    "trace": f"toposcope.trace(model, text, **{CUT})",
    "ablate": f"toposcope.ablate(model, text, **{CUT})",
    "loss": f"toposcope.loss(model, text, **{CUT}, encoding='none')",
    "refine": "toposcope.refine(model, text=text, out='refined', tokens=12, steps=2, held_out=2)",
    "train": f"toposcope.train('copy', 'rope', settings={SMALL})",
    "sweep": f"toposcope.sweep('copy', 'rope', seeds=1, jobs=1, settings={SMALL})",
    "reproduce": "toposcope.reproduce('dynamics', size='facts')",
}
WITH_FIGURE = {"scan", "spectrum", "flow", "compare", "trace", "ablate", "loss", "sweep"}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("verbs")
    for name in ("model", "other"):
        (place / name).mkdir()
        write_llama_lm(place / name)
    (place / "text.txt").write_text(TEXT * 12)
    return {name: str(place / name) for name in ("model", "other")} | {"text": str(place / "text.txt")}


@pytest.fixture
def made(given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Result]:
    monkeypatch.chdir(tmp_path)
    return lambda verb: eval(CALLS[verb], {"toposcope": toposcope, **given})


@pytest.mark.parametrize("verb", CALLS)
def test_a_result_does_all_that_results_do(verb: str, made: Callable[[str], Result], tmp_path: Path) -> None:
    result = made(verb)
    assert result.kind == verb
    assert result.provenance.options or verb in ("check", "inspect", "reproduce")
    holds(result, tmp_path, figure=verb in WITH_FIGURE)


def test_a_verb_tells_how_far_it_is(given: dict[str, Any]) -> None:
    told: list[tuple[str, int, int]] = []
    toposcope.scan(given["model"], progress=lambda *each: told.append(each))
    assert told[0][1] == 0
    assert told[-1][1] == told[-1][2] > 1


def test_verbs_show_themselves_in_a_notebook(given: dict[str, Any], tmp_path: Path) -> None:
    """One cell for each verb, run by Jupyter's own kernel: each shows a line of text and HTML, and no script."""
    nbclient = pytest.importorskip("nbclient", reason="notebooks are run by nbclient")
    nbformat = pytest.importorskip("nbformat", reason="notebooks are run by nbclient")
    book = nbformat.v4.new_notebook()
    names = "\n".join(f"{name} = {value!r}" for name, value in given.items())
    book.cells = [nbformat.v4.new_code_cell(f"import toposcope\n{names}")]
    book.cells += [nbformat.v4.new_code_cell(call) for call in CALLS.values()]
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for verb, cell in zip(CALLS, book.cells[1:], strict=True):
        (shown,) = [each.data for each in cell.outputs if each.output_type == "execute_result"]
        assert shown["text/html"].strip().startswith("<div"), verb
        assert "<script" not in shown["text/html"], verb
        assert shown["text/plain"].startswith("<"), verb
        assert "\n" not in shown["text/plain"], verb
