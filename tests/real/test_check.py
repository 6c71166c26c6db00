"""`check` on trained models: each encoding is named rightly and no good model is blamed; spoilt copies are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import toposcope
from toposcope.checkpoints.installed import find
from toposcope.checkpoints.view import Model
from toposcope.checks import CheckResult, Finding, check_model
from toposcope.checks.tables import look_at, order_of
from toposcope.core.errors import NotFound


def opened(name: str) -> Model:
    try:
        path = find(name).path()
    except NotFound as missing:
        pytest.skip(str(missing))
    if path is None:
        pytest.skip(f"the package of {name} is not installed")
    if name.startswith(("rxnfp", "rxnmapper", "ruaccent")):
        pytest.importorskip("torch")
    return toposcope.load(name)


def report_of(name: str) -> CheckResult:
    with opened(name) as model:
        return check_model(model)


def found(report: CheckResult, id: str) -> Finding:
    finding = report.find(id)
    assert finding is not None, [each.id for each in report.findings]
    return finding


def clean(report: CheckResult) -> None:
    assert report.worst == "ok", [(each.id, each.explanation) for each in report.findings if each.status != "ok"]


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Model]:
    with opened("smollm2") as model:
        yield model


def test_smollm2(smollm2: Model) -> None:
    report = check_model(smollm2)
    clean(report)
    assert found(report, "mechanisms").evidence["mechanisms"] == ["rotary"]
    assert found(report, "rotary-settings").evidence["base"] == 100000.0
    pairing = found(report, "pairing")
    assert pairing.evidence["z_declared"] > 25
    assert pairing.evidence["z_other"] < 6
    assert found(report, "direction").evidence["z"] > 8
    assert 0.5 < found(report, "base").evidence["turn"] < 2
    assert {found(report, id).status for id in ("direction", "base", "initial-values")} == {"ok"}


def test_smollm2_without_undoing_the_row_order(smollm2: Model) -> None:
    """What a reader gets wrong who forgets llama.cpp's permutation: the weights themselves tell."""
    layers = tuple(replace(layer, ggml_permuted=False) for layer in smollm2.spec.layers)
    spoilt = Model(replace(smollm2.spec, layers=layers), smollm2.source, smollm2.config, smollm2._read_layer)
    report = check_model(spoilt)
    pairing = found(report, "pairing")
    assert pairing.status == "fault"
    assert (pairing.evidence["weights"], pairing.evidence["rotation"]) == ("interleaved", "half-split")
    assert pairing.evidence["z_other"] > 25
    assert len(pairing.layers or ()) == 30


def test_smollm2_declared_interleaved(smollm2: Model) -> None:
    """The other way round: rows in half-split order, and a family that turns neighbours."""
    encoding = smollm2.layers[0].encoding
    assert encoding.rotary is not None
    pairs = np.arange(64).reshape(32, 2)
    other = replace(encoding, rotary=replace(encoding.rotary, pairs_F2=pairs, pairing="interleaved"))
    layers = tuple(replace(layer, encoding=other) for layer in smollm2.spec.layers)
    spoilt = Model(replace(smollm2.spec, layers=layers), smollm2.source, smollm2.config, smollm2._read_layer)
    pairing = found(check_model(spoilt), "pairing")
    assert (pairing.evidence["weights"], pairing.evidence["rotation"]) == ("half-split", "interleaved")


def test_smollm2_layer_in_a_module_of_ones_own(smollm2: Model) -> None:
    """One layer in somebody's own module: right, and with rows in the other order, which the weights alone tell."""
    torch: Any = pytest.importorskip("torch")
    from tests.unit.live.modules import Attention, angles

    layer = smollm2.layers[9]

    def rotate(v: Any, positions: Any) -> Any:
        angle = angles(positions, 32, v.dtype, base=100000.0)
        a, b = v.chunk(2, dim=-1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)

    def filled(*, reorder: bool) -> Any:
        module = Attention(576, 9, 3, rotate=rotate, causal=True, linear_bias=False)
        w = layer.weights
        q, k = w.q_HRD, w.k_GRD
        if reorder:
            q, k = (part.reshape(len(part), 2, 32, 576).swapaxes(1, 2).reshape(part.shape) for part in (q, k))
        for linear, rows in ((module.q_proj, q), (module.k_proj, k), (module.v_proj, w.v_GVD)):
            linear.weight.data = torch.from_numpy(np.ascontiguousarray(rows.reshape(-1, 576), dtype=np.float32))
        out = w.o_HDV.transpose(1, 0, 2).reshape(576, -1)
        module.o_proj.weight.data = torch.from_numpy(np.ascontiguousarray(out, dtype=np.float32))
        module.o_proj.bias.data.zero_()
        return module

    good = toposcope.check_module(filled(reorder=False), reference=layer)
    assert good.worst == "ok", [finding.title for finding in good.faults]
    assert {"reference", "pairing", "rotation"} <= {finding.id for finding in good.findings}
    pairs = ("interleaved", "half-split")
    wrong = toposcope.check_module(filled(reorder=True), reference=layer)
    assert {(each.id, each.evidence["weights"], each.evidence["rotation"]) for each in wrong.faults} == {
        ("reference", *pairs),
        ("pairing", *pairs),
    }


def test_minilm_is_trained_though_its_spread_is_that_of_a_fresh_table() -> None:
    report = report_of("minilm")
    clean(report)
    table = found(report, "position-table")
    assert table.evidence["state"] == "trained"
    assert 0.02 < table.evidence["std"] < 0.03
    assert table.evidence["z"] > 40
    assert found(report, "first-row").status == "ok"


def test_rxnmapper_shares_one_layer() -> None:
    report = report_of("rxnmapper")
    clean(report)
    assert found(report, "position-table").evidence["state"] == "trained"
    assert found(report, "shared-layers").evidence == {"own": 1, "layers": 12}


@pytest.mark.parametrize("name", ["rxnfp/bert_pretrained", "rxnfp/bert_ft", "rxnfp/bert_ft_10k_25s"])
def test_rxnfp(name: str) -> None:
    report = report_of(name)
    clean(report)
    assert found(report, "position-table").evidence["state"] == "trained"


def test_ruaccent_has_a_sinusoid() -> None:
    report = report_of("ruaccent")
    clean(report)
    table = found(report, "position-table")
    assert table.evidence["state"] == "sinusoid"
    assert table.evidence["sinusoid"] == "interleaved, base 10000, size 1"


@pytest.mark.parametrize("name", ["minilm", "rxnmapper", "rxnfp/bert_ft"])
def test_shuffled_rows_are_no_order(name: str) -> None:
    """The control: the same numbers, rows in random order, have lost what made them a table of positions."""
    with opened(name) as model:
        table = model.layers[0].encoding.input
        assert table is not None
        assert table.length is not None
        rows = table.vectors(np.arange(table.length))
    shuffled = np.random.default_rng(0).permutation(rows)
    assert order_of(rows).z > 40
    assert order_of(shuffled).z < 5
    noise = np.random.default_rng(1).standard_normal(rows.shape) * rows.std()
    spoilt = np.concatenate([rows[:200], noise[200:]])
    (finding,) = look_at(spoilt, (0,))
    assert finding.status == "warning"
    assert abs(finding.evidence["untrained_from"] - 200) <= 3
