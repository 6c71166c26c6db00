"""Rotations by row and column against the modules of transformers that compute them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.dinov3_vit.configuration_dinov3_vit import DINOv3ViTConfig
from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTRopePositionEmbedding
from transformers.models.pixtral.configuration_pixtral import PixtralVisionConfig
from transformers.models.pixtral.modeling_pixtral import PixtralVisionRotaryEmbedding, apply_rotary_pos_emb

from toposcope.core.errors import BadEncoding
from toposcope.encodings.record import Encoding
from toposcope.encodings.rotary_plane import centred_rope, numbered_rope, patches

ROWS, COLUMNS, HEADS, WIDE = 3, 5, 2, 16


def turned(encoding: Encoding, x: np.ndarray) -> np.ndarray:
    assert encoding.rotary is not None
    return encoding.rotary.rotate(x, patches(encoding, ROWS, COLUMNS), side="query")


def theirs(cos: torch.Tensor, sin: torch.Tensor, x: np.ndarray) -> np.ndarray:
    given = torch.from_numpy(x).float()[None]
    return apply_rotary_pos_emb(given, given, cos, sin, unsqueeze_dim=0)[0][0].numpy()


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((HEADS, ROWS * COLUMNS, WIDE))


@pytest.mark.parametrize("base", [100.0, 37.0])
def test_dinov3(x: np.ndarray, base: float) -> None:
    config = DINOv3ViTConfig(hidden_size=HEADS * WIDE, num_attention_heads=HEADS, patch_size=4, rope_theta=base)
    made = DINOv3ViTRopePositionEmbedding(config).eval()
    cos, sin = made(torch.zeros(1, 3, 4 * ROWS, 4 * COLUMNS))
    np.testing.assert_allclose(turned(centred_rope(WIDE, base=base), x), theirs(cos, sin, x), atol=1e-5)


@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_pixtral(x: np.ndarray, base: float) -> None:
    config = PixtralVisionConfig(
        hidden_size=HEADS * WIDE,
        num_attention_heads=HEADS,
        rope_parameters={"rope_type": "axial", "rope_theta": base},
    )
    at = torch.stack(torch.meshgrid(torch.arange(ROWS), torch.arange(COLUMNS), indexing="ij"), dim=-1).reshape(-1, 2)
    cos, sin = PixtralVisionRotaryEmbedding(config)(torch.zeros(1), at)
    np.testing.assert_allclose(turned(numbered_rope(WIDE, base=base), x), theirs(cos, sin, x), atol=1e-5)


def test_tokens_that_are_no_patches_are_not_turned(x: np.ndarray) -> None:
    encoding = centred_rope(WIDE)
    at = patches(encoding, ROWS, COLUMNS - 1, others=ROWS)
    assert encoding.rotary is not None
    found = encoding.rotary.rotate(x, at, side="key")
    np.testing.assert_array_equal(found[:, :ROWS], x[:, :ROWS])
    assert np.abs(found[:, ROWS:] - x[:, ROWS:]).max() > 0.1


def test_widths_that_cannot_be_shared_out() -> None:
    for head_dim in (0, 6, 18):
        with pytest.raises(BadEncoding, match=str(head_dim)):
            centred_rope(head_dim)
