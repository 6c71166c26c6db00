"""Real models: every head has a verdict, and five of them, drawn at random, agree with dense float64 algebra."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import toposcope
from tests.unit.dynamics.systems import logit_matrix, sym, turn_matrix
from toposcope.checkpoints.installed import find
from toposcope.checkpoints.view import Head
from toposcope.core.errors import NotFound
from toposcope.core.fields import plain
from toposcope.dynamics.heads import head_dynamics
from toposcope.dynamics.regime import Verdict
from toposcope.scanning.result import ScanResult
from toposcope.scanning.scan import scan

RELATIVE = 1e-8
HEADS = 5


def opened(name: str) -> toposcope.Model:
    """An installed model; the test is skipped, with the package that brings it, where it is not installed."""
    try:
        found = find(name).path()
    except NotFound as missing:
        pytest.skip(str(missing))
    assert found is not None
    return toposcope.load(name)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[toposcope.Model]:
    with opened("smollm2") as model:
        yield model


@pytest.fixture(scope="module")
def scanned(smollm2: toposcope.Model) -> ScanResult:
    return scan(smollm2)


def test_every_head_of_smollm2_has_a_verdict(scanned: ScanResult) -> None:
    assert len(scanned.heads) == 270
    assert len(scanned.layers) == 30
    words = {verdict.value for verdict in Verdict}
    for row in scanned.heads:
        assert row.verdict in words
        assert row.causal
        assert row.symU.inertia == row.symW.inertia == (64, 64, 448)
        assert row.exact == (row.verdict != "indeterminate")  # RMSNorm without biases
        assert row.rule in (None, "T5", "T6")
        assert row.rope is not None
        assert row.rope.tau_uniform >= -min(row.rope.lmin_by_offset.values())
    assert all(layer.scope in ("first_token", None) for layer in scanned.layers)
    assert sum(scanned.model.counts.values()) == 270
    assert ScanResult.from_dict(json.loads(scanned.json())) == scanned


def folded(model: toposcope.Model, layer: int, head: int) -> Head:
    """Q, K and V with the norm's gain, straight from the file."""
    gain = model.source.read(f"blk.{layer}.attn_norm.weight").astype(np.float64)
    own = model.layers[layer].heads[head]
    return replace(own, q=own.q * gain, k=own.k * gain, v=own.v * gain)


@pytest.mark.slow
def test_five_random_heads_agree_with_dense_algebra(smollm2: toposcope.Model, scanned: ScanResult) -> None:
    random = np.random.default_rng(20)
    for number in random.choice(270, HEADS, replace=False):
        row = plain(scanned.heads[number])
        layer = smollm2.layers[row["layer"]]
        head, rotary = folded(smollm2, row["layer"], row["head"]), layer.encoding.rotary
        assert rotary is not None
        u, w = head.o @ head.v, logit_matrix(head, rotary)  # 576 x 576
        values = np.linalg.eigvals(u)
        real = values[np.argsort(-np.abs(values))][:64].real
        own = head.o.T @ w @ head.o
        low = np.linalg.eigvalsh(sym(own))
        a = np.linalg.eigvalsh(sym((head.v @ head.o).T @ own))
        us, ws = np.linalg.eigvalsh(sym(u)), np.linalg.eigvalsh(sym(w))
        product = u @ w.T
        offsets = [int(k) for k in row["rope"]["lmin_by_offset"]]
        turned = {k: head.scale * head.q.T @ turn_matrix(rotary, k) @ head.k for k in offsets}
        expected = {
            "alpha": (row["alpha"], real.max(), np.abs(real).max()),
            "omega": (row["omega"], real.min(), np.abs(real).max()),
            "symU.min": (row["symU"]["min"], us[0], np.abs(us).max()),
            "symU.max": (row["symU"]["max"], us[-1], np.abs(us).max()),
            "symW.min": (row["symW"]["min"], ws[0], np.abs(ws).max()),
            "symW.max": (row["symW"]["max"], ws[-1], np.abs(ws).max()),
            "w_min": (row["w_min"], low[0], np.abs(low).max()),
            "w_max": (row["w_max"], low[-1], np.abs(low).max()),
            "a_min": (row["a_min"], a[0], np.abs(a).max()),
            "a_max": (row["a_max"], a[-1], np.abs(a).max()),
            "ov_positivity": (row["ov_positivity"], values.sum().real / np.abs(values).sum(), 1.0),
            "pair_index": (row["pair_index"], np.trace(product) / np.linalg.norm(product, "nuc"), 1.0),
            "rho": (
                row["rope"]["rho"],
                max(np.linalg.norm(turned[k] - turned[0], 2) for k in offsets),
                np.abs(ws).max(),
            ),
        }
        for k in offsets:
            expected[f"lmin[{k}]"] = (
                row["rope"]["lmin_by_offset"][str(k)],
                np.linalg.eigvalsh(sym(turned[k]))[0],
                np.abs(ws).max(),
            )
        for name, (ours, theirs, size) in expected.items():
            assert abs(ours - theirs) <= RELATIVE * size, (row["layer"], row["head"], name, ours, theirs)


def test_the_random_baseline_of_a_layer(smollm2: toposcope.Model) -> None:
    found = scan(smollm2, layers="7", random_baseline=True)
    assert found.random_baseline is not None
    assert len(found.heads) == found.random_baseline.heads == 9


def test_minilm_is_outside_the_theorems() -> None:
    with opened("minilm") as model:
        rows = [
            head_dynamics(layer, h, storage_error=0.0).as_dict()
            for layer in model.layers
            for h in range(layer.spec.heads)
        ]
        (whole,) = scan(model, layers="5").layers  # one is enough: its matrix is 384 x 384
    assert len(rows) == 72
    for row in rows:
        assert (row["exact"], row["causal"]) == (False, False)
        assert "post_norm" in row["warnings"]
    assert not whole.exact
    assert whole.verdict is not Verdict.CONVERGES
