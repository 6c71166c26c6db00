from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertForMaskedLM, AlbertModel

import toposcope
from toposcope.checkpoints.attention import attention, output, project
from toposcope.core.errors import BadConfig

from .encoders import TINY, reconfigured
from .harness import array, check_output, compare, far_from_uniform, randomise


def record(model: nn.Module) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """What entered each attention, what it added and what left it, in the order of the calls: modules repeat."""
    entered: list[np.ndarray] = []
    added: list[np.ndarray] = []
    left: list[np.ndarray] = []
    for module in model.modules():
        if type(module).__name__ == "AlbertAttention":
            module.register_forward_pre_hook(lambda m, args: entered.append(array(args[0][0])))
            module.dense.register_forward_hook(lambda m, args, out: added.append(array(out[0])))
            module.register_forward_hook(lambda m, args, out: left.append(array(out[0][0])))
    return entered, added, left


@pytest.mark.parametrize(
    ("setting", "kind", "options", "shared"),
    [
        ("one shared layer", AlbertModel, {}, [None, 0, 0, 0]),
        ("with a head", AlbertForMaskedLM, {}, [None, 0, 0, 0]),
        ("two groups", AlbertModel, {"num_hidden_groups": 2}, [None, 0, None, 2]),
        ("two inner layers", AlbertModel, {"inner_group_num": 2}, [None, None, 0, 1, 0, 1, 0, 1]),
        (
            "uneven groups of two",
            AlbertModel,
            {"num_hidden_groups": 3, "inner_group_num": 2},
            [None, None, 0, 1, None, None, None, None],
        ),
        ("equal widths", AlbertModel, {"embedding_size": 32}, [None, 0, 0, 0]),
    ],
)
def test_albert(saved: Path, setting: str, kind: Any, options: dict[str, Any], shared: list[int | None]) -> None:
    settings = {**TINY, "num_hidden_layers": 4, "embedding_size": 16, **options}
    model = kind(AlbertConfig(**settings)).eval()
    randomise(model)
    model.save_pretrained(saved)
    entered, added, left = record(model)
    positions: list[np.ndarray] = []
    embeddings = getattr(model, "albert", model).embeddings
    embeddings.position_embeddings.register_forward_hook(lambda m, args, out: positions.append(array(out)))
    with torch.no_grad():
        out = model(torch.arange(5, 17)[None], output_attentions=True)
    assert any(far_from_uniform(array(theirs[0])) for theirs in out.attentions)
    with toposcope.load(saved) as ours:
        assert ours.family == "albert"
        assert not ours.skipped
        assert [layer.spec.shared_with for layer in ours.layers] == shared
        assert len(out.attentions) == len(entered) == len(ours.layers)
        for i, (layer, theirs) in enumerate(zip(ours.layers, out.attentions, strict=True)):
            compare("albert", setting, attention(layer, entered[i]), array(theirs[0]))
            check_output(layer, entered[i], added[i])
            _, _, values = project(layer, entered[i])
            norm = layer.weights.residual_norm
            assert norm is not None
            after = norm(entered[i] + output(layer, attention(layer, entered[i]), values))
            np.testing.assert_allclose(after, left[i], atol=2e-5)
        table = ours.layers[0].encoding.input
        assert table is not None
        assert table.width == settings["embedding_size"]
        np.testing.assert_allclose(table.vectors(np.arange(12)), positions[0].reshape(12, -1), atol=1e-6)


def test_more_groups_than_layers_is_refused(saved: Path) -> None:
    AlbertModel(AlbertConfig(**TINY, embedding_size=16)).save_pretrained(saved)
    load = reconfigured(lambda config: {**config, "num_hidden_groups": 9})
    with pytest.raises(BadConfig, match="9 groups"):
        load(saved)
