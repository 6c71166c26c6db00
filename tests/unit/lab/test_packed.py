"""A packed batch: the same scores and gradients as the padded one."""

from __future__ import annotations

import pytest
import torch

from tests.unit.lab.making import ENCODINGS, model
from toposcope.lab.batches import loss_sum
from toposcope.lab.model import Transformer
from toposcope.lab.packed import fitted, pack, passes_worth, scored, share
from toposcope.lab.quirks import Quirks
from toposcope.lab.tasks import NOTHING_ASKED, Batch


def batch(lengths: list[int], *, by_token: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(3)
    lengths_B = torch.tensor(lengths)
    inside = torch.arange(10) < lengths_B[:, None]
    ids = torch.randint(1, 12, (len(lengths), 10), generator=generator) * inside
    labels = torch.randint(0, 5, ids.shape if by_token else (len(lengths),), generator=generator)
    return Batch(ids, lengths_B, labels.masked_fill(~inside, NOTHING_ASKED) if by_token else labels)


def both(made: Transformer, given: Batch, groups: int) -> list[list[torch.Tensor]]:
    """Loss and gradients, padded and packed."""
    found = []
    for scores, labels in ((made(given.ids_BN, given.lengths_B), given.labels), scored(made, given, groups)):
        loss = loss_sum(scores, labels)
        gradients = torch.autograd.grad(loss, list(made.parameters()), allow_unused=True)
        found.append([loss.detach(), *(each for each in gradients if each is not None)])
    return found


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("encoding", [*ENCODINGS, "cope:positions=4", "pope"])
def test_loss_and_gradients_are_those_of_the_padded_batch(encoding: str, groups: int) -> None:
    padded, packed = both(model(encoding), batch([4, 10, 6, 7, 6, 3]), groups)
    assert len(padded) == len(packed) > 10
    for theirs, ours in zip(padded, packed, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "by_token"),
    [
        ({"causal": True}, False),
        ({"reads": "token"}, True),
        ({"reads": "token", "causal": True}, True),
        ({"quirks": Quirks(raw_keys_values=True)}, False),
        ({"quirks": Quirks(visible_padding=True)}, False),
        ({"kv_heads": 2}, False),
    ],
    ids=["causal", "token", "causal-token", "raw", "visible-padding", "grouped"],
)
def test_other_kinds_of_model_are_packed_alike(changes: dict, by_token: bool) -> None:
    padded, packed = both(model("rope", **changes), batch([4, 10, 6, 7, 6, 3], by_token=by_token), 2)
    for theirs, ours in zip(padded, packed, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_padding_is_not_computed_on() -> None:
    packed = pack(batch([4, 10, 6, 7, 6, 3]), 3)
    assert len(packed.ids_T) == len(packed.place_T) == 36
    assert (packed.ids_T > 0).all()
    assert packed.place_T.tolist()[:7] == [0, 1, 2, 0, 1, 2, 3]  # the shortest sentences come first
    assert [group.length for group in packed.groups] == [4, 6, 10]
    assert [group.tokens for group in packed.groups] == [7, 12, 17]


def test_full_sentences_are_neither_masked_nor_moved() -> None:
    (group,) = pack(batch([10, 10, 10]), 3).groups
    assert group.cells_T is None
    assert group.mask is None


def test_sentences_share_rows_and_see_themselves_alone() -> None:
    packed = share(batch([4, 10, 6, 7, 6, 3]))
    (group,) = packed.groups
    assert packed.lengths_S.tolist() == [10, 7, 3, 6, 6, 4]  # row after row
    assert (group.rows, group.length, group.tokens) == (4, 10, 36)
    assert group.at_BN is not None
    assert group.at_BN[1].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert group.at_BN[2].tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0, 0]
    assert group.mask is not None
    seen = group.mask[1, 0]
    assert seen[:7, :7].all()
    assert seen[7:, 7:].all()
    assert not seen[:7, 7:].any()
    assert not seen[7:, :7].any()
    assert group.mask.any(dim=-1).all(), "a cell that sees nothing has no softmax"


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_never_too_full_and_hardly_more_than_needed(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 33, (64,), generator=generator).tolist()
    rows = fitted(lengths, 32)
    assert sorted(number for row in rows for number in row) == list(range(64))
    assert all(0 < sum(lengths[number] for number in row) <= 32 for row in rows)
    least = max(-(-sum(lengths) // 32), sum(length > 16 for length in lengths))
    assert len(rows) <= 11 / 9 * least + 6 / 9  # the bound of first and best fit in falling order


def test_large_batches_are_taken_in_passes() -> None:
    assert passes_worth(64, 32) == 1
    assert passes_worth(512, 128) == 4
