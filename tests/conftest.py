"""What all tests share: how much of the long ones is run, and what is said at the end of the run."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import settings

from tests import sampling

os.environ.setdefault("TOPOSCOPE_TRACEBACK", "1")  # a bug must look like one in tests
# No test asks the network or looks into the user's own models; those of tests/hub.py use a server of their own.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = os.environ["HF_HUB_CACHE"] = f"{tempfile.gettempdir()}/toposcope-tests-without-models"
for secret in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
    os.environ.pop(secret, None)

# The same examples in every run, so that a failure is the change's and not the draw's; to look further, run
# pytest --hypothesis-profile explore.
settings.register_profile("repeatable", derandomize=True, max_examples=sampling.examples(100), deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("repeatable")

ROWS: dict[str, dict[str, float]] = defaultdict(dict)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        _fewer_examples(item)
    if not any("::" in str(each) for each in config.args):  # a test that is asked for by name is run whole
        _drawn(config, items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # first, so that no process is left with them at the end


def _fewer_examples(item: pytest.Item) -> None:
    """A property that names its own number of examples is tried on fewer of them in a sample, like all others."""
    test = getattr(item, "obj", None)
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is not None and own is not settings.default and not hasattr(test, "_asked_examples"):
        test._asked_examples = own.max_examples  # cases of one test share the function
        test._hypothesis_internal_use_settings = settings(own, max_examples=sampling.examples(own.max_examples))


def _drawn(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the sample does not hold of tests that are marked with it."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    shares: dict[str, float] = {}
    for item in items:
        marker = item.get_closest_marker("sample")
        if marker is not None:
            name = marker.kwargs.get("of") or item.nodeid.partition("[")[0].partition("@")[0]
            cases[name].append(item)
            shares[name] = marker.args[0]
    left = {each for name, own in cases.items() for each in {*own} - {*sampling.sample(own, shares[name], of=name)}}
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tests may run in several processes; what each compared travels with its report to the one that prints."""
    if report.when == "teardown":
        for name, value in report.user_properties:
            if name == "compared":
                family, setting, worst = value
                ROWS[family][setting] = max(worst, ROWS[family].get(setting, 0.0))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    held = "every case of every test" if sampling.ALL else "a sample of the long tests (all: every case)"
    terminalreporter.write_line(f"{sampling.VARIABLE}={os.environ[sampling.VARIABLE]}: {held}")
    if not ROWS:
        return
    terminalreporter.section("families whose attention equals the model's own")
    for family in sorted(ROWS):
        settings = ROWS[family]
        terminalreporter.write_line(f"{family:20s} worst {max(settings.values()):.1e}  {', '.join(settings)}")
    terminalreporter.write_line(f"{len(ROWS)} families, {sum(map(len, ROWS.values()))} settings")
