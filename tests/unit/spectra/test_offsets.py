from __future__ import annotations

import numpy as np
import pytest

from toposcope.encodings import NONE, alibi, fire_init, rope, sinusoidal, t5_init, xpos
from toposcope.spectra.offsets import kernel_at, symbol_range


def test_the_rotary_kernel_is_the_mean_logit_of_constant_content() -> None:
    encoding = rope(16, base=100.0)
    assert encoding.rotary is not None
    ones = np.ones((1, 16)) / 4
    logits = [
        float(encoding.rotary.rotate(ones, [t], side="query")[0] @ encoding.rotary.rotate(ones, [0], side="key")[0])
        for t in (0, 1, 5)
    ]
    np.testing.assert_allclose(kernel_at(encoding, (0, 1, 5)), logits, atol=1e-12)


@pytest.mark.parametrize("encoding", [alibi(4), t5_init(4)])
def test_a_bias_is_seen_as_a_factor(encoding: object) -> None:
    found = kernel_at(encoding, (0, 3), head=2)  # type: ignore[arg-type]
    assert found is not None
    table = encoding.bias.table([3.0], [0.0, 3.0])[2, 0]  # type: ignore[attr-defined]
    np.testing.assert_allclose(found, [1.0, np.exp(table[0] - table[1])])


def test_what_has_no_kernel_over_offsets() -> None:
    assert kernel_at(NONE, (0, 9)) == pytest.approx([1.0, 1.0])
    for encoding in (sinusoidal(8), fire_init(2), xpos(8)):
        assert kernel_at(encoding) is None


def test_the_symbol_bounds_the_dense_eigenvalues() -> None:
    bounds = symbol_range(alibi(8), head=1)
    assert bounds is not None
    offset = np.abs(np.subtract.outer(np.arange(200), np.arange(200)))
    values = np.linalg.eigvalsh(np.exp(-0.25 * offset))
    assert bounds[0] < values[0] < values[-1] < bounds[1]
    assert values[-1] == pytest.approx(bounds[1], rel=0.01)
    assert symbol_range(rope(8)) is None
    assert symbol_range(alibi(8, symmetric=False)) is None
