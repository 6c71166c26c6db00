"""Log-probabilities of given tokens, one by one: of a model that runs, or from a file that any engine wrote.

The file is JSON lines in UTF-8, one text a line:

    {"ids": [504, 2365, 282], "logprobs": [null, -7.214, -0.803]}

`logprobs[i]` is the natural logarithm of the probability that the engine gave token `ids[i]` after `ids[:i]`; nothing
comes before the first, so it is null. A first line without "ids" may say {"engine": "name", "dtype": "bfloat16"}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadFile, BadValue
from toposcope.core.printable import printable
from toposcope.core.untrusted import MEGABYTE, parse_json, read_bytes
from toposcope.models.load import Reference
from toposcope.models.score import token_losses, trial

Array = NDArray[np.float64]
Ids = NDArray[np.int64]
SUFFIX = ".jsonl"
DTYPES = ("float64", "float32", "float16", "bfloat16")
LARGEST_FILE = 256 * MEGABYTE
MOST_TEXTS, MOST_TOKENS = 10_000, 4_000_000  # of a file
LARGEST_ID = 2**31 - 1


@dataclass(frozen=True, eq=False)
class LogProbabilities:
    """Texts as token ids, and what an engine gave each token after those before it (one number fewer than ids)."""

    texts: tuple[Ids, ...]
    values: tuple[Array, ...]
    engine: str
    dtype: str | None = None


def log_probabilities(reference: Reference, ids_N: Ids, positions_N: NDArray[np.int64] | None = None) -> Array:
    """log p(ids[q + 1] | ids[: q + 1]) for q = 0 ... N - 2, in nats, as the model gives them in one pass."""
    import torch

    rows = int(reference.model.get_input_embeddings().weight.shape[0])
    if ids_N.max(initial=0) >= rows or ids_N.min(initial=0) < 0:
        wrong = int(ids_N.max() if ids_N.max() >= rows else ids_N.min())
        raise BadValue(
            f"token {wrong} is none of {type(reference.model).__name__}, which knows 0 to {rows - 1}: the two "
            "engines do not have the same vocabulary."
        )
    asked = trial(reference, ids_N)
    if asked.kind != "next token":
        raise BadValue(
            f"{type(reference.model).__name__} does not predict the next token, so it gives texts no probability "
            "token by token. Give a causal language model."
        )
    device = reference.model.get_input_embeddings().weight.device
    given = {name: each.to(device) if torch.is_tensor(each) else each for name, each in asked.inputs.items()}
    if positions_N is not None:
        given["position_ids"] = torch.from_numpy(positions_N)[None].to(device)
        given["attention_mask"] = torch.ones_like(given["input_ids"])  # else positions that jump begin a new text
    with torch.no_grad():
        output = reference.model(**given)
    output.logits = output.logits.cpu()
    found: Array = -token_losses(asked, output).numpy()
    if not np.isfinite(found).all():
        at = int(np.flatnonzero(~np.isfinite(found))[0])
        raise BadValue(
            f"{type(reference.model).__name__} gives the token after position {at} the log-probability {found[at]}: "
            "its numbers hold NaN or infinity."
        )
    return found


# ------------------------------------------------------------------ files
def read_log_probabilities(path: str | Path) -> LogProbabilities:
    """The texts and log-probabilities in a file, hostile until parsed."""
    shown = printable(path)
    content = read_bytes(path, most=LARGEST_FILE)
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
    if len(lines) > MOST_TEXTS + 1:
        raise BadFile(f"{shown} holds {len(lines):,} lines; at most {MOST_TEXTS:,} texts are compared. Write fewer.")
    engine, dtype, tokens = Path(shown).name, None, 0
    texts: list[Ids] = []
    values: list[Array] = []
    for number, line in lines:
        where = f"line {number} of {shown}"
        row = parse_json(line, where, nodes=2 * MOST_TOKENS, finite=True)
        if not isinstance(row, Mapping):
            raise BadFile(f"{where} holds {type(row).__name__}; expected an object with ids and logprobs.")
        if "ids" not in row and not texts and number == lines[0][0]:
            engine, dtype = _engine(row, engine, where)
            continue
        ids_N, values_Q = _row(row, where)
        tokens += len(ids_N)
        if tokens > MOST_TOKENS:
            raise BadFile(f"{shown} holds more than {MOST_TOKENS:,} tokens. Write fewer or shorter texts.")
        texts.append(ids_N)
        values.append(values_Q)
    if not texts:
        raise BadFile(
            f"{shown} holds no text: expected lines such as " + '{"ids": [5, 9], "logprobs": [null, -2.1]}.'
        )
    return LogProbabilities(tuple(texts), tuple(values), engine, dtype)


def _engine(row: Mapping[str, Any], name: str, where: str) -> tuple[str, str | None]:
    dtype = row.get("dtype")
    if dtype is not None and dtype not in DTYPES:
        raise BadFile(f"{where}: dtype is {printable(dtype, 40)}; expected one of {', '.join(DTYPES)}, or none.")
    said = row.get("engine")
    return (printable(said, 80) if isinstance(said, str) and said else name), dtype


def _row(row: Mapping[str, Any], where: str) -> tuple[Ids, Array]:
    ids, given = row.get("ids"), row.get("logprobs")
    if not isinstance(ids, list) or not isinstance(given, list):
        raise BadFile(f"{where} needs two lists, ids and logprobs.")
    if len(ids) < 2:
        raise BadFile(f"{where} holds {len(ids)} tokens; a text needs at least 2.")
    if len(given) != len(ids):
        raise BadFile(f"{where} holds {len(ids)} ids and {len(given)} logprobs; expected one each, the first null.")
    for each in ids:
        if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each <= LARGEST_ID:
            raise BadFile(f"{where}: {printable(each, 40)} is no token id; expected whole numbers from 0 on.")
    if given[0] is not None and not _is_number(given[0]):
        raise BadFile(f"{where}: the first of logprobs must be null: no token comes before it.")
    for at, each in enumerate(given[1:], 1):
        if not _is_number(each):
            raise BadFile(
                f"{where}: logprobs[{at}] is {printable(each, 40)}; expected a number. NaN and infinity are not "
                "numbers: see what the engine does at that token."
            )
        if each > 1e-3:
            raise BadFile(
                f"{where}: logprobs[{at}] is {each:g}; the logarithm of a probability is at most 0. Write natural "
                "logarithms of probabilities, not logits."
            )
    return np.array(ids, dtype=np.int64), np.array(given[1:], dtype=np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
