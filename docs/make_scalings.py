"""Measures what `toposcope spectrum` can only guess: the loss of SmolLM2 at far distances, under five scalings.

    python docs/make_scalings.py [STRETCHES]

A stretch of 256 tokens is read in two halves. The second stands behind a gap, as far from the first as in a text with
that many tokens between them, which are left out: so distances beyond the trained context cost a minute instead of
an hour. Printed is the loss of the second half, in nats per token, behind a gap within the trained context and behind
one beyond it, and the difference, paired, with half of Student's 95% interval over the stretches.
docs/spectrum.md has the table of 16 stretches.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

import numpy as np
import torch

import toposcope
from toposcope.core.statistics import half_width
from toposcope.models.running import on_text

TOKENS = 256
GAPS = (4096, 10240)  # within the trained context of 8,192, and beyond it
SCALINGS = {
    "none (RoPE as trained)": None,
    "linear x2": "rope:scaling=linear,factor=2",
    "dynamic x2": "rope:scaling=dynamic,factor=2",
    "yarn x2": "rope:scaling=yarn,factor=2",
    "llama3 x2": "rope:scaling=llama3,factor=2",
}


def losses_behind(model: torch.nn.Module, ids_BN: torch.Tensor, gap: int) -> list[float]:
    """The mean loss of the second half of each stretch, which stands `gap` positions further on."""
    half, every = ids_BN.shape[1] // 2, torch.arange(ids_BN.shape[1])
    positions_BN = (every + gap * (every >= half)).expand_as(ids_BN)
    seen = torch.ones_like(ids_BN)  # given, so that the gap is not taken for the beginning of another text
    with torch.no_grad():
        output = model(input_ids=ids_BN, position_ids=positions_BN, attention_mask=seen, use_cache=False)
    logits_BNW, targets_BN = output.logits[:, half:-1].double(), ids_BN[:, half + 1 :]
    return torch.nn.functional.cross_entropy(logits_BNW.mT, targets_BN, reduction="none").mean(1).tolist()


def main(stretches: int = 4) -> None:
    """Print the table, a row as soon as it is there."""
    reference, corpus = on_text("smollm2", "wiki", tokens=TOKENS, sequences=stretches, head=True)
    ids_BN = torch.from_numpy(np.stack(corpus.sequences))
    print("| scaling |" + "".join(f" {gap:,} apart |" for gap in GAPS) + " difference |", flush=True)
    print("|---|" + "---|" * (len(GAPS) + 1), flush=True)
    for name, encoding in SCALINGS.items():
        with nullcontext() if encoding is None else toposcope.swap_encoding(reference.model, encoding):
            near, far = (losses_behind(reference.model, ids_BN, gap) for gap in GAPS)
        less = [b - a for a, b in zip(near, far, strict=True)]
        cells = [f"{np.mean(near):.3f}", f"{np.mean(far):.3f}", f"{np.mean(less):+.3f} ± {half_width(less) or 0:.3f}"]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
