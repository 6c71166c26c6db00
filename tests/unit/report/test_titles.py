"""What reports are called: two of one model that ask for other things have other titles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.unit.report.making import loss, traced
from tests.unit.tiny import write_llama
from toposcope.core.result import Provenance, Result, Subject
from toposcope.report.drawing import in_order, page, page_of
from toposcope.report.titles import LONGEST, title_of

MODEL = Subject("m", "/models/m", "safetensors", "llama", "")


def of(result: Result, model: Subject = MODEL, **options: Any) -> Result:
    """The same result, of this model, asked for with these options."""
    return replace(result, provenance=Provenance((model,), options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text": "wiki"}, ["wiki"]),
        ({"text": "/home/me/letter.txt"}, ["letter.txt"]),
        ({"text": "code", "layers": "0-3"}, ["code", "layers 0-3"]),
        ({"text": "code", "layers": "3"}, ["layer 3"]),
        ({"text": "wiki", "heads": "2.1,3.0"}, ["heads 2.1,3.0"]),
        ({"text": "wiki", "heads": "positional"}, ["positional heads"]),
        ({"text": "wiki", "encoding": ["none", "alibi"]}, ["none, alibi"]),
        ({"text": "wiki", "encoding": "none"}, ["none"]),
        ({"text": "wiki", "depth_encoding": ["alibi"]}, ["alibi"]),
    ],
)
def test_a_title_says_what_was_done_to_which_model_and_what_was_asked_for(
    options: dict[str, Any], words: list[str]
) -> None:
    title = title_of([of(traced(), **options)])
    assert title is not None
    assert title.startswith("Trace of m")
    assert all(word in title for word in words)
    assert "/home" not in title


def test_reports_on_one_model_have_titles_of_their_own(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "model")
    results = [
        toposcope.check(model), toposcope.inspect(model), toposcope.scan(model), toposcope.scan(model, layers="0"),
        of(traced(), text="wiki"), of(traced(), text="code"), of(loss(), text="wiki"),
    ]  # fmt: skip
    titles = [page_of([each]).title for each in results]
    assert len(set(titles)) == len(titles)
    assert f"<title>{titles[3]}</title>" in page([results[3]])


def test_a_report_on_several_results_names_each_and_does_not_grow_without_end() -> None:
    two = [of(traced(), text="wiki"), of(loss(), text="code")]
    assert title_of(two) == "m: trace on wiki; loss on code"
    many = [of(traced(), text=f"text{number}") for number in range(40)]
    title = title_of(many)
    assert title is not None
    assert len(title) <= LONGEST
    assert "40" in title
    models = [of(traced(), replace(MODEL, name=f"a{number}"), text="wiki") for number in range(9)]
    assert "9 models" in (title_of(models) or "")


def test_a_title_that_was_given_stands() -> None:
    assert page_of([of(traced(), text="wiki")], "mine").title == "mine"


def test_words_of_a_file_stay_short_and_command_nothing() -> None:
    title = title_of([of(traced(), text="x\x1b[31m" * 100, heads="1.2," * 500)])
    assert title is not None
    assert title.isprintable()
    assert len(title) < 2 * LONGEST


def test_a_result_without_a_model_is_named_by_its_view() -> None:
    result = toposcope.spectrum("rope", context=64)
    assert title_of([result]) is None
    assert "rope" in page_of([result]).title


def test_a_check_stands_first_only_where_something_is_wrong(tmp_path: Path) -> None:
    sound = write_llama(tmp_path / "sound", vocab_size=8)
    scan = toposcope.scan(sound, layers="0")
    check = toposcope.check(sound)
    wrong, fine = replace(check, worst="fault"), replace(check, worst="ok")
    assert [each.kind for each in in_order([scan, wrong])] == ["check", "scan"]
    assert [each.kind for each in in_order([fine, scan])] == ["scan", "check"]
    assert [each.kind for each in in_order([fine, scan, wrong])] == ["check", "check", "scan"]
    assert page_of([fine, scan]).sections[-1].title == page_of([wrong, scan]).sections[0].title
