"""One server for all tests of its pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.unit.web.making import make_client, make_registry
from toposcope.web import explore_flow
from toposcope.web.models import ModelRegistry


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Previews go as far as their evaluations allow, however busy the machine that runs the tests is."""
    monkeypatch.setattr(explore_flow, "HASTE", float("inf"))


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelRegistry]:
    made = make_registry(tmp_path_factory.mktemp("models"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory, registry: ModelRegistry) -> Iterator[TestClient]:
    with make_client(tmp_path_factory.mktemp("server"), registry) as made:
        yield made
