"""Types that docs/models.md says are read are still read, and none is read wrongly."""

from __future__ import annotations

import pytest

from tests.architectures import page, types
from tests.architectures.judge import READ, Outcome, judge
from tests.architectures.probes import BROKEN, probe

SAID = page.read(page.PAGE.read_text())
CASES = [(kind, group) for (group, kind), outcome in SAID.items() if outcome in READ]


@pytest.mark.sample(25)
@pytest.mark.parametrize(("kind", "group"), CASES, ids=[f"{group}-{kind}" for kind, group in CASES])
def test_read_and_equal(kind: str, group: str) -> None:
    said, judged = SAID[group, kind], judge(kind, group)
    assert judged.outcome in READ, judged.why
    assert said is Outcome.PARTLY or judged.outcome is not Outcome.PARTLY, judged.why


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("kind", "group"), [(kind, group) for (group, kind), outcome in SAID.items() if outcome is Outcome.REFUSED]
)
def test_refused_is_never_different(kind: str, group: str) -> None:
    assert judge(kind, group).outcome is not Outcome.DIFFERENT


def test_the_page_lists_every_type_and_no_difference() -> None:
    from tests.architectures import GROUPS

    assert {(group, kind) for group in GROUPS for kind in types(group)} == set(SAID)
    assert Outcome.DIFFERENT not in SAID.values()


def test_the_comparison_notices_what_is_broken() -> None:
    noticed = probe("gpt_oss") | probe("llama")
    assert set(noticed) >= {"the sinks, left out", "the window, wider by 1", "the rotation, of twice the base"}
    assert set(noticed) <= set(BROKEN)
    assert all(noticed.values())
