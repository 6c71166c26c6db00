"""`python -m bench.screening [TEXT ...]`: how much of the true top tenth of SmolLM2's heads the screen chooses.

Every head is measured on every text (some minutes each; stopped, it goes on), and the screen is asked as well. The
texts are those on which nothing about the screen was settled; `models.ablation.screen.RECALL` comes from here.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.core.journal import Journal
from toposcope.core.statistics import least_share
from toposcope.models.ablation.runner import ESTIMATES, ablation_runner, texts_of
from toposcope.models.ablation.screen import RECALL, TOP, choose, estimates
from toposcope.models.corpus import cut
from toposcope.models.load import Reference, load_reference, read_text

KEPT = Path("out/screening")
BEGIN = 1000


@dataclass(frozen=True)
class Seen:
    """One text: heads of the true top tenth, those chosen, their damage that was missed, and processor seconds.

    `full` is a run of the whole model, `estimating` the screen's passes, `measuring` the exact runs of what it chose.
    """

    text: str
    looked_for: int
    found: int
    lost: float
    full: float
    estimating: float
    measuring: float
    heads: int

    @property
    def ratio(self) -> float:
        """Of a full run for each head to the screen."""
        return self.heads * self.full / (self.estimating + self.measuring)


def screened(reference: Reference, text: str, kept: Path = KEPT) -> Seen:
    """Measure all heads on one text, and screen them."""
    import torch

    corpus = cut(reference, read_text(text), tokens=RECALL.tokens, count=RECALL.sequences, name=text, begin=BEGIN)
    texts = texts_of(reference, corpus, ["text"])
    about = {"text": text, "begin": BEGIN, "tokens": RECALL.tokens, "sequences": RECALL.sequences}
    kept.mkdir(parents=True, exist_ok=True)
    with (
        Journal(kept / f"{text}.jsonl", about) as journal,
        ablation_runner(reference.model, texts, journal=journal) as runner,
        ablation_runner(reference.model, texts) as fresh,
    ):
        heads = runner.all_heads()
        runner.measure(heads)
        true_H = np.array([runner.damage(each) for each in heads])
        estimating, guess_H = _timed(lambda: estimates(fresh, heads))
        chosen, _ = choose(heads, guess_H, sample=0, seed=0)
        full = []
        for each in texts[0].trials:  # beside what it is compared with, since the machine's pace changes
            with torch.no_grad():
                full.append(_timed(lambda each=each: reference.model(**each.inputs))[0])
        measuring, _ = _timed(lambda: fresh.measure(chosen))
        with torch.no_grad():
            full += [_timed(lambda each=each: reference.model(**each.inputs))[0] for each in texts[0].trials]
        assert fresh.known(ESTIMATES, "text", 0) is not None
    top = [heads[number] for number in np.argsort(-true_H, kind="stable")[: math.ceil(TOP * len(heads))]]
    found = [each for each in top if each in set(chosen)]
    damages = {each: runner.damage(each) for each in top}
    lost = 1 - sum(damages[each] for each in found) / sum(damages.values())
    return Seen(text, len(top), len(found), lost, sum(full) / 2, estimating, measuring, len(heads))


def _timed(work: Any) -> tuple[float, Any]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def main(texts: list[str]) -> None:
    """Print a line for each text, and the recall over all of them."""
    import torch

    torch.set_num_threads(1)
    reference = load_reference("smollm2", head=True, attention="sdpa")
    seen = []
    for text in texts:
        each = screened(reference, text)
        seen.append(each)
        print(
            f"{text}: {each.found} of {each.looked_for}, {each.lost:.1%} of the damage missed; {each.ratio:.1f}x "
            f"(a run {each.full:.2f} s, the estimates {each.estimating:.1f} s, the chosen {each.measuring:.1f} s)",
            flush=True,
        )
    found, of = sum(each.found for each in seen), sum(each.looked_for for each in seen)
    lost = float(np.mean([each.lost for each in seen]))
    print(f"found {found} of {of}: {found / of:.3f}, at least {least_share(found, of):.3f} (95%); lost {lost:.3f}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(RECALL.texts))
