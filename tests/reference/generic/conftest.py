"""Nothing is kept from one test to the next."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _measured_anew(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("TOPOSCOPE_CACHE", str(tmp_path_factory.mktemp("cache")))
