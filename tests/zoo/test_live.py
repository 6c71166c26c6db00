"""What docs/zoo.md says of plants and sound models still holds: a sample in `make test`, all of it in `make zoo`."""

from __future__ import annotations

import pytest

from tests.sampling import ALL
from tests.zoo import page
from tests.zoo.judge import Case, Record, Said, cases, judge
from toposcope.live.bugs import BUGS

TEXT = page.PAGE.read_text() if page.PAGE.is_file() else ""
CASES = list(cases([], ["float32", "bfloat16"], sound=True))
_SLOW = ("trained",)
elsewhere = pytest.mark.skipif(ALL, reason="make zoo, a part of make test-all, judges every case")


@elsewhere
@pytest.mark.sample(4)
@pytest.mark.parametrize("case", [each for each in CASES if each[0] == "plant"], ids=":".join)
def test_a_plant_is_found_and_named(case: Case) -> None:
    record = judge(case)
    assert page.listed(record, TEXT) or (record.found and record.named), (record.said, record.error)


@elsewhere
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "case", [each for each in CASES if each[0] == "sound" and not each[1].startswith(_SLOW)], ids=":".join
)
def test_a_sound_model_has_no_fault(case: Case) -> None:
    record = judge(case)
    assert not record.faults or page.reference_own(record) or page.listed(record, TEXT), record.faults
    assert not record.error.startswith("crash"), record.error


def test_the_page_has_every_bug() -> None:
    for bug in BUGS:
        assert f'<a id="{bug.key}"></a>' in TEXT
        assert all(link in TEXT for link in bug.links)


def test_the_page_counts_what_it_is_given() -> None:
    fault = Said("fit", "fault", BUGS[0].key, "fit", "a title", "an explanation")
    own = Said("lengths", "warning", BUGS[13].key, "lengths", "a title", "an explanation", own=True)
    records = [
        Record("plant", BUGS[0].key, "llama", "first", "float32", (fault,)),
        Record("plant", BUGS[0].key, "llama", "second", "float32"),
        Record("plant", BUGS[1].key, "llama", "first", "float32", (fault,)),
        Record("families", "", "causal llama", "", "float32", (fault,)),
        Record("families", "", "causal phi3", "", "float32", (own,)),
        Record("families", "", "causal gpt2", "", "float32"),
        Record("families", "", "causal odd", "", "float32", error="BadValue: no"),
    ]
    text = page.write(records, "5")
    assert f"| 1 | [{BUGS[0].key}](#{BUGS[0].key}) | 2 | 1 of 2 | 1 of 2 | fit |" in text
    assert f"| 2 | [{BUGS[1].key}](#{BUGS[1].key}) | 1 | 1 of 1 | 0 of 1 | fit |" in text
    assert "| float32 | 4 | 1 | 1 | 1 | 1 |" in text
    assert [page.listed(each, text) for each in records] == [False, True, True, True, False, False, False]
    assert (records[4].found, records[4].faults, page.reference_own(records[4])) == (False, (), True)
