"""A quantised model on the hub: the same numbers as from its path, and its parts in few answers."""

from __future__ import annotations

from pathlib import Path

import pytest

import toposcope
from tests.hub import Hub, used
from tests.reference.quantised.test_packages import model_of


@pytest.mark.parametrize("name", ["gptq4_reordered", "nf4_nested", "hqq4_axis1", "ct_int4_zeros"])
def test_a_scan_by_name_equals_that_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place = tmp_path / "served/org/tiny"
    place.mkdir(parents=True)
    model_of(name, place)
    with Hub(tmp_path / "served") as server, used(server, tmp_path, monkeypatch):
        by_name = toposcope.scan("org/tiny")
        assert len(server.requests) < 12
        assert server.twice("quantised.safetensors") == 0
    by_path = toposcope.scan(place)
    assert by_name.heads == by_path.heads
    assert by_name.provenance.subjects[0].sha256 == by_path.provenance.subjects[0].sha256
