"""One server for all tests of its pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.unit.web.making import make_client, make_shelf
from toposcope.web import explore_flow
from toposcope.web.models import Shelf


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Previews go as far as their evaluations allow, however busy the machine that runs the tests is."""
    monkeypatch.setattr(explore_flow, "HASTE", float("inf"))


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    made = make_shelf(tmp_path_factory.mktemp("models"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory, shelf: Shelf) -> Iterator[TestClient]:
    with make_client(tmp_path_factory.mktemp("server"), shelf) as made:
        yield made
