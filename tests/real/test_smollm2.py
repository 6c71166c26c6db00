"""SmolLM2, a real model in a quantised GGUF file: our heads and our attention against transformers' own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toposcope
from toposcope.checkpoints.attention import attention
from toposcope.checkpoints.installed import find, find_text
from toposcope.core.errors import NotFound

TOKENS = 160


@pytest.fixture(scope="module")
def file() -> Path:
    try:
        path = find("smollm2").path()
    except NotFound as missing:
        pytest.skip(str(missing))
    assert path is not None
    return path


@pytest.fixture(scope="module")
def ours(file: Path) -> Iterator[toposcope.Model]:
    with toposcope.load(file) as model:
        yield model


@pytest.fixture(scope="module")
def theirs(file: Path) -> Any:
    for package in ("torch", "transformers", "accelerate"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the comparison needs {package}: pip install {package}")
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="module")
def tokens(file: Path, theirs: Any) -> Any:
    from transformers import AutoTokenizer

    try:
        text = find_text("wiki").read_text(encoding="utf-8")[:4000]
    except NotFound as missing:
        pytest.skip(str(missing))
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    found = tokenizer(text, return_tensors="pt").input_ids[:, :TOKENS]
    assert found.shape == (1, TOKENS)
    assert len(set(found[0].tolist())) > TOKENS // 3
    return found


def as_array(tensor: Any) -> np.ndarray:
    return tensor.detach().double().numpy()


@pytest.mark.slow
def test_every_head_equals_theirs(ours: toposcope.Model, theirs: Any) -> None:
    config = theirs.config
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    for layer, module in zip(ours.layers, theirs.model.layers, strict=True):
        block = module.self_attn
        q, k, v = (as_array(part.weight) for part in (block.q_proj, block.k_proj, block.v_proj))
        o = as_array(block.o_proj.weight)
        wide = layer.spec.head_dim
        for head in layer.heads:
            rows = slice(head.head * wide, (head.head + 1) * wide)
            shared = slice(head.kv_group * wide, (head.kv_group + 1) * wide)
            np.testing.assert_array_equal(head.q, q[rows])
            np.testing.assert_array_equal(head.k, k[shared])
            np.testing.assert_array_equal(head.v, v[shared])
            np.testing.assert_array_equal(head.o, o[:, rows])


@pytest.mark.slow
def test_attention_on_a_real_text_equals_theirs(ours: toposcope.Model, theirs: Any, tokens: Any) -> None:
    import torch

    inputs: list[np.ndarray] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, given: inputs.append(as_array(given[0][0])))
        for module in theirs.model.layers
    ]
    with torch.no_grad():
        seen = theirs(input_ids=tokens, output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    assert len(inputs) == len(ours.layers) == len(seen) == 30
    for layer, x, probabilities in zip(ours.layers, inputs, seen, strict=True):
        difference = np.abs(attention(layer, x) - as_array(probabilities[0])).max()
        assert difference <= 1e-5, f"layer {layer.number} differs by {difference:.1e}"


def test_stored_rows_are_permuted(ours: toposcope.Model) -> None:
    """The comparison above would fail without the re-ordering: the file's own rows are not the heads'."""
    layer = ours.layers[0]
    stored = ours.source.read("blk.0.attn_q.weight")
    wide = layer.spec.head_dim
    assert layer.spec.ggml_permuted
    assert not np.array_equal(layer.heads[0].q, stored[:wide])
    np.testing.assert_array_equal(layer.heads[0].q[: wide // 2], stored[:wide:2])
    np.testing.assert_array_equal(layer.heads[0].q[wide // 2 :], stored[1:wide:2])


@pytest.mark.usefixtures("file")
def test_loads_by_name_without_torch() -> None:
    program = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "import toposcope\n"
        "with toposcope.load('smollm2') as model:\n"
        "    head = model.layers[29].heads[8]\n"
        "    print(model.family, len(model.layers), head.q.shape, model.layers[0].encoding.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["gguf-llama", "30", "(64,", "576)", "rope"]
