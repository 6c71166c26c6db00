"""A model that holds quantised weights in memory is read like its file."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.reference.quantised.make import COLUMNS, HERE, REFERENCE, ROWS, K
from toposcope.checkpoints.live import view, view_of
from toposcope.checkpoints.safetensors_file import SafetensorsFile
from toposcope.core.errors import BadFile

GROUPS = 4


def tiny() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=COLUMNS,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2 * GROUPS,
        num_key_value_heads=GROUPS,
        vocab_size=16,
    )
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("name", ["nf4_nested", "bnb_int8", "gptq4_reordered", "awq", "ct_int4", "hqq3_axis0"])
def test_tensors_of_a_quantised_model(name: str) -> None:
    """As the packages put them into a state dict, the names are those of their files."""
    model = tiny()
    model.config.quantization_config = json.loads(SafetensorsFile(HERE / f"{name}.safetensors").metadata["settings"])
    tensors = {key: value for key, value in model.state_dict().items() if not key.startswith(f"{K}.")}
    held = load_file(HERE / f"{name}.safetensors")
    reference = held.pop(REFERENCE).double().numpy()
    found = view_of(model, tensors | held)
    keys = found.layers[0].weights.k_GRD.reshape(ROWS, COLUMNS)
    assert np.abs(keys - reference).max() <= 2.0**-23 * np.abs(reference).max()


class Coded(torch.Tensor):
    """Looks like floats, holds codes: as torchao and quanto do it."""

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor) -> Coded:
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)
        made.codes, made.scale = codes, scale
        return made

    def dequantize(self) -> torch.Tensor:
        return self.codes * self.scale

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        raise NotImplementedError(str(function))


def test_tensors_that_stand_for_floats() -> None:
    model = tiny()
    codes = torch.randint(-128, 128, (ROWS, COLUMNS), dtype=torch.int8)
    scale = torch.rand(ROWS, 1)
    model.model.layers[0].self_attn.k_proj.weight = torch.nn.Parameter(Coded(codes, scale), requires_grad=False)
    keys = view(model).layers[0].weights.k_GRD.reshape(ROWS, COLUMNS)
    np.testing.assert_array_equal(keys, (codes * scale).numpy())


def test_codes_in_memory_are_no_weights() -> None:
    model = tiny()
    tensors = model.state_dict() | {f"{K}.weight": torch.ones(ROWS, COLUMNS, dtype=torch.int8)}
    with pytest.raises(BadFile, match="int8"):
        _ = view_of(model, tensors).layers[0].weights
