"""Small trained models whose settings are known: of the laboratory's tasks, and on a text, byte by byte.

`trained(model, directory)` makes one, or finds it where an earlier call left it. Thresholds were chosen on
`CHOSEN_ON`; `HELD_BACK` took no part in that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HELD_OUT = 100  # seeds from here on took no part in choosing a threshold
ROOT = Path(__file__).resolve().parents[2]
STEPS, LENGTH, TOKENS, RATE = 400, 64, 2048, 3e-3


@dataclass(frozen=True)
class Trained:
    """A sound model: what it learned, how it encodes position, and its seed."""

    task: str  # a task of the laboratory, or "text"
    encoding: str
    seed: int
    causal: bool = True

    @property
    def name(self) -> str:
        plain = "".join(letter if letter.isalnum() else "-" for letter in self.encoding)
        return f"{self.task}-{plain}-{'causal' if self.causal else 'both-ways'}-{self.seed}"

    @property
    def held_out(self) -> bool:
        return self.seed >= HELD_OUT


_ROTARY = (
    "rope:base=1e2,pairing=half",
    "rope:base=1e3,pairing=half",
    "rope:base=1e4,pairing=half",
    "rope:base=1e5,pairing=half",
    "rope:base=1e6,pairing=half",
    "rope:base=1e4,pairing=interleaved",
    "rope:base=1e4,pairing=half,partial=0.5",
    "rope:base=1e4,pairing=half,scaling=linear,factor=4",
)
_TASKS = (
    ("distance", "rope:base=1e2,pairing=interleaved", False),
    ("previous", "rope:base=1e4,pairing=half", True),
    ("distance", "learned", False),
    ("index", "learned", False),
)


def _of_seed(seed: int) -> tuple[Trained, ...]:
    return (
        *(Trained("text", encoding, seed) for encoding in (*_ROTARY, "learned")),
        *(Trained(task, encoding, seed, causal) for task, encoding, causal in _TASKS),
    )


CHOSEN_ON = _of_seed(0)
HELD_BACK = (
    *_of_seed(HELD_OUT),
    *(Trained("text", _ROTARY[i], HELD_OUT + 1) for i in (1, 3, 5, 6)),
    *(Trained("text", encoding, HELD_OUT + 1) for encoding in ("learned", "alibi", "sinusoidal")),
)


def trained(model: Trained, directory: Path) -> Path:
    """The directory of the trained model, made unless it is there."""
    place = directory / model.name
    if not (place / "model" / "config.json").exists():
        (_on_a_text if model.task == "text" else _on_a_task)(model, place)
    return place / "model"


def _on_a_task(model: Trained, place: Path) -> None:
    from toposcope.lab.config import RunConfig
    from toposcope.lab.train import train

    train(
        RunConfig(
            task=model.task,
            encoding=model.encoding,
            seed=model.seed,
            causal=model.causal,
            heads=4,
            head_dim=32,
            probes=False,
        ),
        place,
    )


def _on_a_text(model: Trained, place: Path) -> None:
    """The next byte of this project's documentation, by the laboratory's model."""
    import torch
    import torch.nn.functional as F

    from toposcope.lab.export import export
    from toposcope.lab.model import ModelConfig, Transformer
    from toposcope.lab.train import TRAINING, schedule, stream

    text = torch.tensor(list(b"\n".join(path.read_bytes() for path in sorted(ROOT.glob("docs/*.md")))))
    made = Transformer(
        ModelConfig(
            vocabulary=256, classes=256, length=LENGTH, encoding=model.encoding, reads="token", width=64, layers=2,
            heads=4, head_dim=32, ff=128, causal=model.causal, seed=model.seed,
        )
    )  # fmt: skip
    made.train()
    optimizer = torch.optim.AdamW(made.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    generator = stream(model.seed, TRAINING)
    for step in range(STEPS):
        start_B = torch.randint(0, len(text) - LENGTH - 1, (TOKENS // LENGTH,), generator=generator)
        ids_BN = text[start_B[:, None] + torch.arange(LENGTH + 1)]
        loss = F.cross_entropy(made(ids_BN[:, :-1]).flatten(0, 1), ids_BN[:, 1:].flatten())
        for group in optimizer.param_groups:
            group["lr"] = RATE * schedule(step, STEPS)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    export(made.eval(), place / "model", task="text", run=model.name)
