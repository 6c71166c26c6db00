"""Length bucketing: the same gradient as the padded batch (theory-spectra, test 11)."""

from __future__ import annotations

import pytest
import torch

from tests.unit.lab.making import model
from toposcope.lab.batches import accuracy, asked, loss_sum, parts, parts_worth, without_class_zero
from toposcope.lab.tasks import Batch, find


def drawn(reads: str, count: int = 24, length: int = 10) -> Batch:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, length + 1, (count,), generator=generator)
    valid = torch.arange(length) < lengths[:, None]
    ids = torch.randint(1, 12, (count, length), generator=generator) * valid
    labels = torch.randint(0, 5, (count, length), generator=generator)
    skipped = torch.rand(count, length, generator=generator) < 0.4
    return Batch(ids, lengths, labels[:, 0] if reads == "pooled" else labels.masked_fill(~valid | skipped, -1))


def gradient(made: torch.nn.Module, batch: Batch, count: int) -> torch.Tensor:
    made.zero_grad()
    for part in parts(batch, count):
        (loss_sum(made(part.ids_BN, part.lengths_B), part.labels) / asked(batch.labels)).backward()
    return torch.cat([p.grad.reshape(-1) for p in made.parameters() if p.grad is not None])


@pytest.mark.parametrize("reads", ["pooled", "token"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("encoding", ["none", "rope", "t5", "learned", "mla", "cope:positions=4", "fire"])
def test_cutting_by_length_keeps_the_gradient(encoding: str, causal: bool, reads: str) -> None:
    made, batch = model(encoding, causal=causal, reads=reads), drawn(reads)
    whole = gradient(made, batch, 1)
    cut = gradient(made, batch, 4)
    assert whole.norm() > 1e-3
    assert (whole - cut).norm() / whole.norm() < 1e-5


@pytest.mark.parametrize("reads", ["pooled", "token"])
def test_parts_hold_every_sentence_once_without_needless_padding(reads: str) -> None:
    batch = drawn(reads)
    found = list(parts(batch, 4))
    assert len(found) == 4
    assert sorted(torch.cat([part.lengths_B for part in found]).tolist()) == sorted(batch.lengths_B.tolist())
    assert all(part.ids_BN.shape[1] == int(part.lengths_B.max()) for part in found)
    assert sum(asked(part.labels) for part in found) == asked(batch.labels)
    assert sum(part.ids_BN.numel() for part in found) < batch.ids_BN.numel()


def test_sentences_of_one_length_are_not_cut() -> None:
    batch = find("count").generate(8, torch.Generator().manual_seed(0))
    assert [part is batch for part in parts(batch, 4)] == [True]


def test_larger_batches_are_cut_into_more_parts() -> None:
    assert [parts_worth(64, 32, 64), parts_worth(64, 48, 64), parts_worth(512, 128, 256)] == [2, 3, 8]
    assert parts_worth(4, 8, 16) == 1


@pytest.mark.parametrize("reads", ["pooled", "token"])
def test_accuracy_counts_what_is_asked(reads: str) -> None:
    made, batch = model("rope", reads=reads).train(), drawn(reads)
    right, loss = accuracy(made, batch, cuts=3, size=7)
    assert made.training
    scores = made.eval()(batch.ids_BN, batch.lengths_B)
    counted = batch.labels != -1
    assert right == pytest.approx(float((scores.argmax(-1) == batch.labels)[counted].float().mean()))
    theirs = -scores.detach().log_softmax(-1)[counted].gather(-1, batch.labels[counted][:, None]).mean()
    assert loss == pytest.approx(float(theirs), rel=1e-5)


def test_class_zero_can_be_left_out() -> None:
    batch = drawn("pooled")
    assert without_class_zero(batch).labels.tolist() == [x if x else -1 for x in batch.labels.tolist()]
