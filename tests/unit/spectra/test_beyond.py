"""What training has not shown: against a plain count over all offsets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toposcope
from toposcope.encodings import Encoding, Sizes, parse, rope
from toposcope.spectra.beyond import Beyond, beyond_training


def counted(before_F: np.ndarray, used_F: np.ndarray, trained: int, context: int) -> tuple[int, int | None]:
    """Pairs that have not turned once, and the first offset with an angle beyond theirs: offset by offset."""
    unturned = [f for f in range(len(before_F)) if before_F[f] * trained < 2 * math.pi]
    new = [t for t in range(context) if any(used_F[f] * t >= before_F[f] * trained * (1 - 1e-9) for f in unturned)]
    return len(unturned), new[0] if new else None


def asked(spec: str, context: int, trained: int | None = None, **sizes: int) -> Beyond:
    found = toposcope.spectrum(spec, context, trained=trained, **{"head_dim": 16, **sizes}).encodings[0].beyond
    assert found is not None
    return found


@given(
    base=st.floats(50, 1e6),
    trained=st.integers(8, 400),
    stretch=st.floats(1, 8),
    scaling=st.sampled_from(["default", "linear", "ntk", "yarn", "llama3", "dynamic"]),
)
def test_unturned_pairs_and_the_first_new_angle(base: float, trained: int, stretch: float, scaling: str) -> None:
    context = 3 * trained
    how = {} if scaling == "default" else {"scaling": scaling, "factor": stretch}
    if scaling in ("yarn", "llama3", "dynamic"):
        how["original_context"] = trained
    used = rope(16, base=base, **how)
    before = rope(16, base=base)
    found = beyond_training(used, before, context, trained)
    assert used.rotary is not None
    assert before.rotary is not None
    if scaling == "dynamic":  # every text by its own frequencies
        texts = (counted(before.rotary.frequencies(), used.rotary.frequencies(n), trained, n)[1]
                 for n in range(trained, context + 1))  # fmt: skip
        first = next((t for t in texts if t is not None), None)
    else:
        unturned, first = counted(before.rotary.frequencies(), used.rotary.frequencies(), trained, context)
        assert found.unturned == unturned
    within = found.new_from if found.new_from is not None and found.new_from < context else None
    assert within == first
    assert (found.verdict == "bad") == (first is not None)
    assert found.step == pytest.approx(1 / stretch if scaling == "linear" else 1)


def test_a_scaling_is_put_in_after_training_unless_training_went_further() -> None:
    scaled = "rope:scaling=linear,factor=4"
    assert asked(scaled, 4096, 1024).new_from == 4 * 1024
    assert (asked(scaled, 4096, 1024).verdict, asked(scaled, 4097, 1024).verdict) == ("after training", "bad")
    yarn = "rope:scaling=yarn,factor=4,original_context=1024"
    assert (asked(yarn, 4096).trained, asked(yarn, 4096).verdict) == (1024, "good")
    longer = asked(yarn, 8192, 4096)  # trained under the scaling: its own angles are the known ones
    assert (longer.new_from, longer.verdict) == (4096, "bad")
    assert asked("rope", 4096).assumed
    assert asked("rope", 4096).verdict == "good"  # within the assumed context
    plain = toposcope.spectrum("yarn:factor=4", 4096, trained=1024, head_dim=16).encodings[0]
    assert plain.parameters["original_context"] == 1024


@pytest.mark.parametrize(
    ("spec", "verdict", "reason", "new_from"),
    [
        ("none", "cannot tell", "no position", None),
        ("alibi", "cannot tell", "new values", 256),
        ("kerple", "cannot tell", "new values", 256),
        ("t5", "good", "nothing new", None),
        ("t5:max_distance=512", "cannot tell", "new values", 268),  # where the next bucket begins
        ("fire", "cannot tell", "not by distance", None),
        ("learned", "bad", "new positions", 256),
        ("learned:length=128", "bad", "new positions", 128),
        ("sinusoidal", "bad", "new phases", 256),
        ("xpos", "bad", "new phases", 256),
        ("mla", "bad", "new phases", 256),
    ],
)
def test_what_is_new_in_other_encodings(spec: str, verdict: str, reason: str, new_from: int | None) -> None:
    found = asked(spec, 1024, 256, num_heads=2)
    assert (found.verdict, found.reason, found.new_from) == (verdict, reason, new_from)
    if spec not in ("learned:length=128",):
        assert asked(spec, 256, 256, num_heads=2).verdict == "good"


def test_heads_and_pairs_that_stand_still() -> None:
    sizes = Sizes(32, 2, 16, 1024, causal=True)
    partly: Encoding = parse("rope-partial:heads=1").build(sizes)
    assert beyond_training(partly, partly, 1024, 64, head=0).verdict == "bad"
    assert beyond_training(partly, partly, 1024, 64, head=1).reason == "no position"
    fast = rope(16, base=1.5)
    assert beyond_training(fast, fast, 10**9, 64).new_from is None  # every pair has turned
    assert beyond_training(fast, fast, 10**9, 64).unturned == 0
