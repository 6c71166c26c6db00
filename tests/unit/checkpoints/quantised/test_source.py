"""Codes never pass for weights; the ledger, the identity and the names of a source whose weights are in parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.checkpoints.making import safetensors_of, written
from tests.unit.checkpoints.quantised.packing import Arrays, Gptq, W, opened
from toposcope.checkpoints.identity import difference
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.checkpoints.quantised import QuantisedSource
from toposcope.checkpoints.source import headers
from toposcope.core import memory
from toposcope.core.errors import BadConfig, BadFile, BadValue, MissingTensor

GPTQ = {"quant_method": "gptq", "group_size": 32}
INTEGERS = {"U8": "<u1", "I8": "<i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8"}
SMALL = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


@pytest.mark.parametrize("shape", [(4,), (4, 4), (2, 2, 2)])
@pytest.mark.parametrize("kind", [*INTEGERS, *SMALL])
def test_codes_without_a_scale_are_refused(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    dtype: Any = INTEGERS.get(kind) or SMALL[kind]
    source = opened(tmp_path, {W: (kind, np.ones(shape, dtype))})
    with pytest.raises(BadFile, match=kind):
        source.read(W)
    with pytest.raises(BadFile, match=kind):
        source.read_rows(W, np.array([1]))


@pytest.mark.parametrize("method", ["aqlm", "vptq", "quark", "eetq", "auto_round", "something_new"])
def test_other_methods_are_refused_by_name(tmp_path: Path, method: str) -> None:
    arrays: Arrays = {"l.q.codes": ("I8", np.ones((4, 4), np.int8)), "l.k.weight": ("F32", np.ones((2, 2), "<f4"))}
    with pytest.raises(BadFile, match=method.replace("_", "-")):
        opened(tmp_path, arrays, {"quant_method": method})
    del arrays["l.q.codes"]
    assert opened(tmp_path, arrays, {"quant_method": method}).read("l.k.weight").tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("leaf", "name"), [("codebooks", "AQLM"), ("trellis", "EXL3"), ("weight._shift", "quanto"), ("Qidxs", "QuIP#")]
)
def test_other_methods_are_known_by_their_tensors(tmp_path: Path, leaf: str, name: str) -> None:
    with pytest.raises(BadFile, match=name):
        opened(tmp_path, {f"l.q.{leaf}": ("I16", np.ones((4, 4), "<i2"))})


def test_small_floats_are_weights_where_the_configuration_says_so(tmp_path: Path) -> None:
    stored = np.arange(4).reshape(2, 2).astype(ml_dtypes.float8_e4m3fn)
    written(tmp_path / "model.safetensors", safetensors_of({W: ("F8_E4M3", stored)}))
    for said, fine in (("float8_e4m3fn", True), ("float8_e5m2", False), ("bfloat16", False)):
        (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": said}))
        if fine:
            assert open_checkpoint(tmp_path).source.read(W).tolist() == [[0, 1], [2, 3]]
        else:
            with pytest.raises(BadFile):
                open_checkpoint(tmp_path).source.read(W)


def two_layers() -> Arrays:
    first, second = Gptq(4, seed=1).arrays(), Gptq(4, seed=2).arrays()
    return {
        **first,
        **{name.replace("l.q", "l.k"): array for name, array in second.items()},
        "l.q.bias": ("F32", np.ones(32, "<f4")),
        "embed": ("F32", np.arange(12, dtype="<f4").reshape(4, 3)),
    }


def test_weights_are_shown_and_their_parts_are_not(tmp_path: Path) -> None:
    arrays = two_layers()
    source = opened(tmp_path, arrays, GPTQ)
    assert isinstance(source, QuantisedSource)
    assert set(source.names()) == {W, "l.k.weight", "l.q.bias", "embed"}
    assert set(source.parts(W)) == {f"l.q.{leaf}" for leaf in ("qweight", "qzeros", "scales", "g_idx")}
    assert source.parts("embed") == ("embed",)
    assert source.info(W).nbytes == sum(
        array.nbytes for name, (_, array) in arrays.items() if name in source.parts(W)
    )
    assert {info.name for info in headers(source)} == set(source.names())
    assert {info.name for info in headers(source, stored=True)} == set(arrays)
    with pytest.raises(MissingTensor):
        source.read("l.v.weight")


def test_some_rows_of_a_quantised_weight(tmp_path: Path) -> None:
    source = opened(tmp_path, two_layers(), GPTQ)
    rows = np.array([3, 0, 3])
    np.testing.assert_array_equal(source.read_rows(W, rows), source.read(W)[rows])
    assert source.read_rows("embed", np.array([1])).tolist() == [[3, 4, 5]]


def test_the_digest_is_of_all_parts_and_of_nothing_else(tmp_path: Path) -> None:
    def digest(place: str, changed: str | None, *read: str) -> str:
        arrays = two_layers()
        if changed is not None:
            kind, array = arrays[changed]
            copy = array.copy()
            copy.reshape(-1)[0] += 1 if changed != "l.q.g_idx" else 0
            if changed == "l.q.g_idx":
                copy = copy[::-1].copy()
            arrays[changed] = kind, copy
        (tmp_path / place).mkdir(exist_ok=True)
        source = opened(tmp_path / place, arrays, GPTQ | {"desc_act": True})
        for name in read:
            source.read(name)
        return source.digest()

    plain = digest("a", None, W)
    assert digest("b", None, W) == plain
    assert digest("c", None, W, "l.k.weight") == digest("c", None, "l.k.weight", W) != plain
    for leaf in ("qweight", "qzeros", "scales", "g_idx"):
        assert digest(leaf, f"l.q.{leaf}", W) != plain
        assert digest(leaf, f"l.q.{leaf}", "l.k.weight") == digest("a", None, "l.k.weight")
    assert digest("d", "embed", W) == plain


def test_what_was_read_is_recognised_and_a_change_is_noticed(tmp_path: Path) -> None:
    arrays = two_layers()
    source = opened(tmp_path, arrays, GPTQ)
    with source.ledger.noted() as lines:
        source.read(W)
        source.read_rows("embed", np.array([0, 2]))
    assert len(lines) == 2
    assert difference(opened(tmp_path, arrays, GPTQ), lines) is None
    kind, scales = arrays["l.q.scales"]
    changed = arrays | {"l.q.scales": (kind, scales * np.float16(2))}
    assert difference(opened(tmp_path, changed, GPTQ), lines) == W


def test_memory_is_foretold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "UNNOTICED", 0)
    monkeypatch.setattr(memory, "available", lambda: 10_000)
    source = opened(tmp_path, two_layers(), GPTQ)
    assert source.info(W).shape == (32, 64)
    with pytest.raises(BadValue):
        source.read(W)


def test_a_weight_whose_form_is_not_read_spoils_no_others(tmp_path: Path) -> None:
    arrays = two_layers() | {"l.k.g_idx": ("I32", np.zeros(3, "<i4"))}
    source = opened(tmp_path, arrays, GPTQ)
    assert source.read(W).shape == (32, 64)
    with pytest.raises(BadFile):
        source.info("l.k.weight")
    assert {info.name for info in headers(source)} >= {W, "l.k.g_idx", "l.k.qweight"}


def test_a_weight_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile):
        opened(tmp_path, two_layers() | {W: ("F32", np.ones((32, 64), "<f4"))}, GPTQ)


def test_settings_of_a_text_tower(tmp_path: Path) -> None:
    packed = Gptq(4)
    written(tmp_path / "model.safetensors", safetensors_of(packed.arrays()))
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"quantization_config": GPTQ}}))
    np.testing.assert_allclose(open_checkpoint(tmp_path).source.read(W), packed.weight, rtol=1e-7)


def test_settings_that_are_no_json_object(tmp_path: Path) -> None:
    with pytest.raises(BadConfig):
        opened(tmp_path, two_layers(), GPTQ, quantize_config=[1])
