"""Encodings as tables: the same inside a head, in another process too."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from toposcope.encodings import Sizes, parse
from toposcope.encodings.tabulated import tabulated

N, R = 24, 8
SIZES = Sizes(width=4 * R, heads=4, head_dim=R, context=64, causal=True)


@pytest.mark.parametrize(
    "name",
    ["none", "rope", "rope:base=500000,scaling=yarn,factor=8,original_context=4096", "rope-partial:partial=0.5",
     "xpos", "alibi", "t5", "kerple", "sinusoidal"],
)  # fmt: skip
def test_tables_say_the_same(name: str) -> None:
    whole = parse(name).build(SIZES)
    tables = tabulated(whole, N)
    assert tables is not None
    tables = pickle.loads(pickle.dumps(tables))
    at = np.arange(N)
    vectors = np.random.default_rng(0).standard_normal((N, R))
    for side in ("query", "key"):
        if whole.rotary is not None:
            ours, theirs = (each.rotary.rotate(vectors, at, side=side, context=N) for each in (tables, whole))
            assert (ours == theirs).all()
    assert (tables.rotary is None, tables.bias is None) == (whole.rotary is None, whole.bias is None)
    if whole.bias is not None:
        assert tables.bias.table(at, at) == pytest.approx(whole.bias.table(at, at), rel=1e-12)
        assert tables.bias.by_offset(at) == pytest.approx(whole.bias.by_offset(at), rel=1e-12)


@pytest.mark.parametrize("name", ["fire", "rope:scaling=dynamic,factor=4,original_context=8"])
def test_what_depends_on_more_than_offsets_stays_here(name: str) -> None:
    assert tabulated(parse(name).build(SIZES), N) is None
