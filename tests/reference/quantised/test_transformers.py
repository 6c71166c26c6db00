"""What transformers dequantises by itself is read as it does: MXFP4, FP8 in blocks, MXFP8, BitNet, Metal (MLX)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import save_file  # noqa: E402

from toposcope.checkpoints.locate import open_checkpoint  # noqa: E402

Q = "model.layers.0.self_attn.q_proj"


def ours(place: Path, tensors: dict[str, Any], config: dict[str, Any], name: str = f"{Q}.weight") -> np.ndarray:
    save_file({key: value.contiguous() for key, value in tensors.items()}, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps(config))
    source = open_checkpoint(place).source
    found = source.read(name)
    assert source.info(name).shape == found.shape
    assert name in source.names()
    assert not set(tensors) - {name} & set(source.names())
    source.close()
    return found


def test_mxfp4_of_gpt_oss(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    torch.manual_seed(0)
    blocks = torch.randint(0, 256, (3, 24, 2, 16), dtype=torch.uint8)
    scales = torch.randint(110, 130, (3, 24, 2), dtype=torch.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    config = {"quantization_config": {"quant_method": "mxfp4"}}
    found = ours(tmp_path, {f"{name}_blocks": blocks, f"{name}_scales": scales}, config, name)
    np.testing.assert_array_equal(found, convert_moe_packed_tensors(blocks, scales).float().numpy())


@pytest.mark.parametrize(("block", "said"), [((128, 128), None), ((64, 32), [64, 32]), ((1, 32), [1, 32])])
def test_fp8_in_blocks(tmp_path: Path, block: tuple[int, int], said: list[int] | None) -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    torch.manual_seed(1)
    weight = torch.randn(256, 128).to(torch.float8_e4m3fn)
    scale = torch.rand(256 // block[0], 128 // block[1])
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": said}}
    found = ours(tmp_path, {f"{Q}.weight": weight, f"{Q}.weight_scale_inv": scale}, config)
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scale, output_dtype=torch.float32)
    np.testing.assert_array_equal(found, theirs.numpy())


def test_mxfp8_exponents_are_no_factors(tmp_path: Path) -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    torch.manual_seed(2)
    weight = torch.randn(16, 64).to(torch.float8_e4m3fn)
    scale = torch.randint(110, 130, (16, 2), dtype=torch.uint8)
    config = {"quantization_config": {"quant_method": "mxfp8"}}
    found = ours(tmp_path, {f"{Q}.weight": weight, f"{Q}.weight_scale_inv": scale}, config)
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scale, output_dtype=torch.float32)
    np.testing.assert_array_equal(found, theirs.numpy())


@pytest.mark.parametrize("linear", ["bitlinear", "autobitlinear"])
def test_bitnet_divides_in_one_class_and_multiplies_in_the_other(tmp_path: Path, linear: str) -> None:
    from transformers.integrations.bitnet import pack_weights

    torch.manual_seed(3)
    ternary = torch.randint(-1, 2, (32, 16)).float()
    scale = torch.tensor([1.75])
    settings = {"quant_method": "bitnet", "linear_class": linear, "quantization_mode": "offline"}
    tensors = {f"{Q}.weight": pack_weights(ternary.clone()), f"{Q}.weight_scale": scale}
    found = ours(tmp_path, tensors, {"quantization_config": settings})
    theirs = (
        ternary / scale if linear == "bitlinear" else ternary * scale
    )  # post_quant_process; AutoBitLinear.forward
    np.testing.assert_array_equal(found, theirs.numpy())


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("leaf", ["biases", "qbiases"])
def test_affine_groups_of_mlx(tmp_path: Path, bits: int, leaf: str) -> None:
    from transformers.integrations import metal_quantization as metal

    torch.manual_seed(4)
    packed, scales, biases = metal._affine_quantize_tensor(torch.randn(24, 128), 64, bits)
    tensors = {f"{Q}.weight": packed, f"{Q}.scales": scales, f"{Q}.{leaf}": biases}
    said = {"bits": bits, "group_size": 64}
    config = (
        {"quantization": said} if leaf == "biases" else {"quantization_config": {"quant_method": "metal", **said}}
    )
    theirs = metal._affine_dequantize_tensor(packed, scales, biases, 64, bits)
    np.testing.assert_array_equal(ours(tmp_path, tensors, config), theirs.numpy())
