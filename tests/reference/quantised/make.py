"""Writes the files of this directory: a weight each, quantised and dequantised by the package that made the format.

`python -m tests.reference.quantised.make`, where these are installed (they are needed for nothing else, and some come
without a wheel for every machine, so the files are kept): bitsandbytes 0.50.2, compressed-tensors 0.20.0, hqq 0.2.8,
optimum-quanto 0.2.7, torchao 0.18.0, nvidia-modelopt 0.47.0, auto-gptq 0.7.1, autoawq 0.2.9, auto-round 0.16.1. The
last three are used without their own __init__, which asks for CUDA or for more packages. A file holds the tensors as
the package names them, below K, and REFERENCE, the weight as the package itself dequantises it; its remarks hold the
configuration and who made it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
K = "model.layers.0.self_attn.k_proj"
REFERENCE = "reference"
ROWS, COLUMNS = 32, 64  # 4 groups of heads of width 8, in a model of width 64


def main() -> None:
    torch.manual_seed(17)
    weight = torch.randn(ROWS, COLUMNS)
    for make in (bitsandbytes, hqq, quanto, torchao, compressed, modelopt, gptq, awq, auto_round):
        make(weight.clone())


def keep(
    name: str, package: str, tensors: Mapping[str, Any], reference: torch.Tensor, settings: Mapping[str, Any]
) -> None:
    """Write one file; a package's remarks of its own are dropped."""
    held = {f"{K}.{leaf}": value.detach().contiguous() for leaf, value in tensors.items() if value is not None}
    made_by = f"{package} {importlib.metadata.version(package)}"
    said = {"settings": json.dumps(settings), "made_by": made_by}
    save_file(held | {REFERENCE: reference.detach().contiguous()}, HERE / f"{name}.safetensors", metadata=said)
    print(f"{name:24} {made_by}")


def bitsandbytes(weight: torch.Tensor) -> None:
    from bitsandbytes import functional

    settings = {"quant_method": "bitsandbytes"}
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            codes, state = functional.quantize_4bit(
                weight, quant_type=kind, compress_statistics=nested, blocksize=32 if nested else 64
            )
            tensors = {"weight": codes} | {f"weight.{key}": part for key, part in state.as_dict(packed=True).items()}
            found = functional.dequantize_4bit(codes, state)
            keep(f"{kind}{'_nested' if nested else ''}", "bitsandbytes", tensors, found, settings)
    codes, maxima, _ = functional.int8_vectorwise_quant(weight.half())
    tensors = {"weight": codes, "SCB": maxima, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    keep("bnb_int8", "bitsandbytes", tensors, functional.int8_vectorwise_dequant(codes, maxima), settings)


def hqq(weight: torch.Tensor) -> None:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    for bits, axis, group in ((8, 1, 32), (4, 1, 64), (4, 0, 32), (3, 1, 32), (3, 0, 32), (2, 1, 16), (1, 0, 16)):
        layer = linear(weight)
        said = BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis)
        made = HQQLinear(layer, said, compute_dtype=torch.float32, device="cpu", del_orig=False)
        keep(f"hqq{bits}_axis{axis}", "hqq", made.state_dict(), made.dequantize(), {"quant_method": "hqq"})


def quanto(weight: torch.Tensor) -> None:
    from optimum.quanto import freeze, qfloat8, qint8, quantize

    for kind in (qint8, qfloat8):
        holder = torch.nn.ModuleDict({"k": linear(weight)})
        quantize(holder, weights=kind)
        freeze(holder)
        tensors = {name.removeprefix("k."): value for name, value in holder.state_dict().items()}
        found = holder["k"].weight.dequantize()
        keep(f"quanto_{kind.name}", "optimum-quanto", tensors, found, {"quant_method": "quanto"})


def torchao(weight: torch.Tensor) -> None:
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    for name, said in (("int8", Int8WeightOnlyConfig(version=2)), ("float8", Float8WeightOnlyConfig())):
        holder = torch.nn.ModuleDict({"k": linear(weight)})
        quantize_(holder, said, filter_fn=lambda module, _: isinstance(module, torch.nn.Linear))
        tensors, _ = flatten_tensor_state_dict(dict(holder.state_dict()))
        held = {leaf.removeprefix("k."): value for leaf, value in tensors.items()}
        found = holder["k"].weight.dequantize()
        keep(f"torchao_{name}", "torchao", held, found, {"quant_method": "torchao"})


COMPRESSED: dict[str, tuple[str, dict[str, Any]]] = {
    "ct_int4": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
    "ct_int4_zeros": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 16, "symmetric": False}),
    "ct_int3": ("pack-quantized", {"num_bits": 3, "strategy": "group", "group_size": 32, "symmetric": False}),
    "ct_int8_packed": ("pack-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
    "ct_int8": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "ct_int8_groups": ("int-quantized", {"num_bits": 8, "strategy": "group", "group_size": 32, "symmetric": False}),
    "ct_fp8_tensor": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "ct_fp8_rows": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "ct_fp8_blocks": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 32]},
    ),
    "ct_mxfp8": (
        "mxfp8-quantized",
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
    ),
    "ct_mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8},
    ),
    "ct_nvfp4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    ),
}


def compressed(weight: torch.Tensor) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    for name, (form, said) in COMPRESSED.items():
        args = QuantizationArgs(**said)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        low, high = _extremes(weight, said)
        largest, state = torch.maximum(-low, high), {"weight": weight}
        if form.startswith("nvfp4"):
            state["weight_global_scale"] = (448 * 6 / weight.abs().max()).reshape(1)
            scale = largest / 6 * state["weight_global_scale"]
            state["weight_scale"] = scale.to(torch.float8_e4m3fn).to(torch.float32)
        elif form.startswith("mx"):
            state["weight_scale"] = 2.0 ** torch.ceil(torch.log2(largest / (6 if "4" in form else 448)))
        else:
            state["weight_scale"], state["weight_zero_point"] = calculate_qparams(low, high, args)
        compressor = BaseCompressor.get_value_from_registry(form)
        stored = compressor.compress(state, scheme)
        group = {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}
        settings = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
        found = compressor.decompress(stored, scheme)["weight"]
        keep(name, "compressed-tensors", stored, found, settings)


def modelopt(weight: torch.Tensor) -> None:
    from modelopt.torch.quantization.qtensor import NVFP4QTensor

    largest = weight.abs().max()
    whole = (largest / (448 * 6)).float()
    scale = (weight.reshape(ROWS, -1, 16).abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
    stored, *_ = NVFP4QTensor.quantize(weight, 16, scale, whole, try_tensorrt=False)
    found = stored.dequantize(torch.float32, scale=scale, double_scale=whole, block_sizes={-1: 16})
    tensors = {"weight": stored._quantized_data, "weight_scale": scale, "weight_scale_2": whole}
    settings = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    keep("modelopt_nvfp4", "nvidia-modelopt", tensors | {"input_scale": torch.ones(())}, found, settings)


def gptq(weight: torch.Tensor) -> None:
    layer_class = without_init("auto_gptq.nn_modules.qlinear", "qlinear_cuda").QuantLinear
    for bits, symmetric, size, reordered in (
        *((4, True, 32, False), (4, False, 32, True), (3, False, 32, False)),
        *((2, True, 32, True), (8, False, -1, False)),
    ):
        most, group = 2**bits - 1, size if size > 0 else COLUMNS
        of = torch.arange(COLUMNS) // group
        of = of[torch.randperm(COLUMNS)] if reordered else of
        scale, zero = torch.zeros(ROWS, COLUMNS // group), torch.zeros(ROWS, COLUMNS // group)
        for number in range(COLUMNS // group):
            low, high = weight[:, of == number].amin(1), weight[:, of == number].amax(1)
            if symmetric:
                scale[:, number], zero[:, number] = 2 * torch.maximum(-low, high) / most, (most + 1) / 2
            else:
                scale[:, number] = (high - low) / most
                zero[:, number] = torch.round(-low / scale[:, number]).clamp(1, most)
        scale = scale.half().float()
        codes = (torch.round(weight / scale[:, of]) + zero[:, of]).clamp(0, most)
        layer = linear((codes - zero[:, of]) * scale[:, of])
        made = layer_class(bits, size, COLUMNS, ROWS, False)
        made.pack(layer, scale, zero, of.to(torch.int32))
        made.autogptq_cuda_available = False
        found = made(torch.eye(COLUMNS)).T
        tensors = {leaf: getattr(made, leaf) for leaf in ("qweight", "qzeros", "g_idx")} | {"scales": scale.T.half()}
        settings = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": reordered, "sym": symmetric}
        keep(f"gptq{bits}{'_reordered' if reordered else ''}", "auto-gptq", tensors, found, settings)


def awq(weight: torch.Tensor) -> None:
    module = without_init("awq.modules.linear", "gemm")
    size = 32
    parts = weight.reshape(ROWS, -1, size)
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scale = ((high - low) / 15).half().float()
    zero = torch.round(-low / scale).clamp(0, 15)
    layer = linear(weight)
    made = module.WQLinear_GEMM.from_linear(layer, 4, size, scales=scale.T, zeros=zero.T)
    unpack = importlib.import_module("awq.utils.packing_utils").dequantize_gemm
    found = unpack(made.qweight, made.qzeros, made.scales.float(), 4, size).T
    tensors = {"qweight": made.qweight, "qzeros": made.qzeros, "scales": made.scales}
    settings = {"quant_method": "awq", "bits": 4, "group_size": size, "version": "gemm", "zero_point": True}
    keep("awq", "autoawq", tensors, found, settings)


def auto_round(weight: torch.Tensor) -> None:
    without_init("auto_round.utils", "bit_packing")
    sys.modules["auto_round.utils"].get_packing_device = lambda device: "cpu"  # type: ignore[attr-defined]
    size = 32
    for name, module, packing, bits in (
        ("auto_round4", "qlinear_torch", "auto_round", 4),
        ("auto_round5", "qlinear_torch", "auto_round", 5),
        ("auto_round4_gptq", "qlinear_torch_zp", "auto_round:auto_gptq", 4),
    ):
        parts, most = weight.reshape(ROWS, -1, size), 2**bits - 1
        low, high = parts.amin(-1), parts.amax(-1)
        scale = ((high - low) / most).half().float()
        zero = torch.round(-low / scale).clamp(1, most)
        made = without_init("auto_round_extension.torch", module).QuantLinear(bits, size, COLUMNS, ROWS, False)
        made.device = "cpu"
        made.pack(linear(weight), scale, zero)
        made.post_init()
        made.scales = made.scales.float()
        tensors = {leaf: getattr(made, leaf) for leaf in ("qweight", "qzeros")} | {"scales": made.scales.half()}
        settings = {"quant_method": "auto-round", "bits": bits, "group_size": size, "sym": False, "data_type": "int"}
        keep(name, "auto-round", tensors, made(torch.eye(COLUMNS)).T, settings | {"packing_format": packing})


def linear(weight: torch.Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    layer.weight.data = weight.clone()
    return layer


def without_init(package: str, module: str) -> Any:
    """A module of a package whose own __init__ is not run: it may ask for CUDA."""
    root = package.partition(".")[0]
    found = importlib.machinery.PathFinder.find_spec(root)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(root)
    place, name = Path(next(iter(found.submodule_search_locations))), root
    for part in ("", *package.split(".")[1:]):
        place, name = (place / part, f"{name}.{part}") if part else (place, name)
        empty = types.ModuleType(name)
        empty.__path__ = [str(place)]
        sys.modules.setdefault(name, empty)
    return importlib.import_module(f"{package}.{module}")


def _extremes(weight: torch.Tensor, said: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    strategy = said["strategy"]
    if strategy == "tensor":
        parts, shape = weight.reshape(1, -1), (1,)
    elif strategy == "channel":
        parts, shape = weight, (ROWS, 1)
    elif strategy == "block":
        high, wide = said["block_structure"]
        parts = weight.reshape(ROWS // high, high, COLUMNS // wide, wide).transpose(1, 2).flatten(2)
        shape = (ROWS // high, COLUMNS // wide)
    else:
        parts = weight.reshape(ROWS, -1, said["group_size"])
        shape = (ROWS, COLUMNS // said["group_size"])
    return parts.amin(-1).reshape(shape), parts.amax(-1).reshape(shape)


if __name__ == "__main__":
    main()
