"""Where the tokens of a flow come from: a text, token numbers, tokens drawn from the vocabulary, or random clouds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.installed import read_text
from toposcope.checkpoints.locate import require_sound_files
from toposcope.checkpoints.view import Model
from toposcope.core.arrays import read_npy
from toposcope.core.errors import BadFile, BadValue, MissingExtra, did_you_mean
from toposcope.core.memory import require_memory
from toposcope.core.printable import printable
from toposcope.core.tokenizer import unknown_share

Array = NDArray[np.float64]
Cloud = Literal["vocabulary", "covariance", "isotropic"]
COUNT = 32  # tokens where no number is asked for


def check_start(text: Any, token_ids: Any, start: Any, cloud: str, count: int | None) -> None:
    """Refuse what says twice, or wrongly, where tokens come from."""
    options = {"--text": text, "--token-ids": token_ids, "--start": start}
    chosen = [name for name, value in options.items() if value is not None]
    if len(chosen) > 1:
        raise BadValue(f"{' and '.join(chosen)} are given; tokens come from one of them. Leave one out.")
    if count is not None and count < 1:
        raise BadValue(f"a flow needs at least one token, got {count}.")
    known = get_args(Cloud)
    if not chosen and cloud not in known:
        raise BadValue(f"unknown cloud '{cloud}'. {did_you_mean(cloud, known)}")


def starting_tokens(
    model: Model,
    text: str | Path | None,
    token_ids: str | Sequence[int] | None,
    start: Any,
    cloud: Cloud,
    count: int | None,
    seed: int,
) -> tuple[Array, str]:
    """The tokens that a model's flow starts from, and words for them."""
    check_start(text, token_ids, start, cloud, count)
    count = COUNT if count is None else count
    if text is not None:
        ids = text_ids(model, str(text), count)
        return embeddings(model, ids), f"the first {len(ids)} tokens of {text}"
    if token_ids is not None:
        ids = read_ids(token_ids) if isinstance(token_ids, str) else np.asarray(token_ids, dtype=np.int64)
        return embeddings(model, ids), f"{len(ids)} tokens as given"
    if start is not None:
        where = f" from {start}" if isinstance(start, str | Path) else ""
        return given_array(start, "tokens in rows"), f"tokens{where} as given"
    if cloud == "vocabulary":
        return drawn_tokens(model, count, seed), f"{count} random tokens of the vocabulary, seed {seed}"
    if cloud == "covariance":
        words = f"{count} random vectors with the embedding's covariance, seed {seed}"
        return gaussian_tokens(model, count, seed), words
    width = model.layers[0].spec.width
    return isotropic(count, width, seed), f"{count} random vectors, seed {seed}"


def embeddings(model: Model, token_ids: NDArray[np.int64]) -> Array:
    """The token embedding's rows for these token numbers, as the checkpoint stores them."""
    table = model.token_embedding()
    if table is None:
        raise BadValue(f"{model.path.name} has no token embedding. Use --cloud isotropic, or --start FILE.npy.")
    ids = np.asarray(token_ids, dtype=np.int64).ravel()
    if not len(ids):
        raise BadValue("there are no tokens. Give at least one.")
    if ids.min() < 0 or ids.max() >= len(table):
        wrong = int(ids.max() if ids.max() >= len(table) else ids.min())
        raise BadValue(f"token {wrong} does not exist: the vocabulary has tokens 0 to {len(table) - 1}.")
    return np.asarray(table[ids], dtype=np.float64)


def drawn_tokens(model: Model, count: int, seed: int) -> Array:
    """Embeddings of tokens drawn from the vocabulary, each as likely as any other."""
    table = model.token_embedding()
    if table is None:
        raise BadValue(f"{model.path.name} has no token embedding. Use --cloud isotropic, or --start FILE.npy.")
    ids = generator(seed).choice(len(table), size=_some(count, table.shape[1]), replace=count > len(table))
    return np.asarray(table[ids], dtype=np.float64)


def gaussian_tokens(model: Model, count: int, seed: int) -> Array:
    """A cloud with the mean and covariance of the model's token embedding, and nothing else of it."""
    table = model.token_embedding()
    if table is None:
        raise BadValue(f"{model.path.name} has no token embedding. Use --cloud isotropic, or --start FILE.npy.")
    mean = table.mean(axis=0)
    factor = np.linalg.cholesky(np.cov(table.T) + 1e-12 * np.trace(np.cov(table.T)) * np.eye(table.shape[1]))
    return mean + generator(seed).standard_normal((_some(count, table.shape[1]), table.shape[1])) @ factor.T


def isotropic(count: int, width: int, seed: int) -> Array:
    """A cloud of independent standard normal entries."""
    return generator(seed).standard_normal((_some(count, width), width))


def read_ids(text: str) -> NDArray[np.int64]:
    """Token numbers as written on the command line: 12,7,7,400."""
    try:
        return np.array([int(part) for part in text.replace(",", " ").split()], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise BadValue(f"'{text[:80]}' is not a list of token numbers. Write them as 12,7,400.") from error


def text_ids(model: Model, text: str, count: int) -> NDArray[np.int64]:
    """The first `count` token numbers of a text by the model's own tokenizer, which the [hf] extra reads.

    `text` is a file, or the name of an installed text ('toposcope ls texts').
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtra(
            "a text needs the model's tokenizer: pip install 'toposcope[hf]'. "
            "Without it, use --token-ids, or leave --text out for tokens drawn from the vocabulary."
        ) from error
    content = read_text(text)
    path = Path(model.path) if model.hub is None else model.hub.tokenizer()
    where = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    place = path.parent if path.is_file() else path
    require_sound_files(place, weights=False)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(place), local_files_only=True, trust_remote_code=False, **where)
        ids = tokenizer(content[: 40 * count + 200], add_special_tokens=False)["input_ids"]
    except Exception as error:  # the tokenizer libraries raise anything
        raise BadFile(
            f"no tokenizer could be read beside {path.name} ({type(error).__name__}: {error}). Use --token-ids."
        ) from error
    if not ids:
        raise BadValue(f"{text} holds no text.")
    chosen = np.array(ids[:count], dtype=np.int64)
    unknown_share(tokenizer, [chosen], content[: 40 * count + 200], text, framed=False)
    return chosen


def read_array(path: str, what: str) -> Array:
    """A table of numbers from a .npy file; pickled objects are refused."""
    array = read_npy(path, what)
    if array.dtype.kind not in "fiu":
        raise BadFile(f"{path} does not hold a table of real numbers; expected {what}.")
    return array.astype(np.float64)


def given_array(given: Any, what: str) -> Array:
    """A table of numbers as users give it: the name of a .npy file, or the numbers themselves."""
    if isinstance(given, str | Path):
        return read_array(str(given), what)
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadValue(f"{what}: not a table of real numbers ({error}).") from error


def generator(seed: int) -> np.random.Generator:
    """The source of random numbers that a seed stands for."""
    if seed < 0:
        raise BadValue(f"a seed is a whole number from 0 on, got {seed}.")
    return np.random.default_rng(seed)


def _some(count: int, width: int) -> int:
    if count < 1:
        raise BadValue(f"a flow needs at least one token, got {count}.")
    shown = printable(f"{count:,}", 40)
    require_memory(8 * count * (2 * count + 4 * width), f"a flow of {shown} tokens", "Use fewer tokens.")
    return count
