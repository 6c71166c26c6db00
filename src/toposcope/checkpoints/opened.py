"""Whatever a user calls a model, opened: a name, a path, a `Model`, or one that torch already holds in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toposcope.checkpoints import load
from toposcope.checkpoints.view import Model
from toposcope.core.errors import BadValue
from toposcope.core.printable import printable
from toposcope.core.result import Subject

NOTHING = hashlib.sha256().hexdigest()  # of a source of which no tensor was read
ModelLike = Any  # str | Path | Model | a model of transformers or TransformerLens


@contextmanager
def opened(
    model: ModelLike,
    *,
    family: str | None = None,
    num_heads: int | None = None,
    adapter: str | Path | None = None,
) -> Iterator[Model]:
    """The model for as long as it is worked on; what was opened here is closed here.

    `family` forces a family's adapter, `num_heads` says how many heads there are, `adapter` is one of PEFT that is
    merged as tensors are read; all three speak of files.
    """
    if isinstance(model, str | Path):
        with load(model, family=family, num_heads=num_heads, adapter=adapter) as found:
            yield found
        return
    if family is not None or num_heads is not None or adapter is not None:
        raise BadValue("family, num_heads and adapter say how a file is to be read; this model is open already.")
    yield model if isinstance(model, Model) else live(model)


def said(adapter: str | Path | None) -> str | None:
    """An adapter as provenance tells it."""
    return None if adapter is None else str(adapter)


def live(model: Any) -> Model:
    """The view of a model in memory: of TransformerLens if it looks like one, else of transformers."""
    if getattr(model, "peft_config", None):
        raise BadValue(
            f"a {type(model).__name__} with an adapter of PEFT in it: give model.merge_and_unload(), or the base's "
            "path and adapter=DIR."
        )
    if hasattr(model, "original_model") or (hasattr(model, "cfg") and hasattr(model, "blocks")):
        from toposcope.checkpoints.live_lens import view_lens

        return view_lens(model)
    if hasattr(model, "state_dict") and hasattr(model, "config"):
        from toposcope.checkpoints.live import view

        return view(model)
    raise BadValue(
        f"{type(model).__name__} cannot be opened as a model: expected a name, a path, a toposcope.Model, or a model "
        "that transformers or TransformerLens has loaded."
    )


def subject(model: Model, given: ModelLike = None, *, sha256: str | None = None) -> Subject:
    """What was analysed, for a result's provenance; `given` is what the user called it."""
    return Subject(
        name=name_of(model, given),
        path=str(model.path),
        format=model.source.format,
        family=model.family,
        sha256="" if (content := sha256 or model.source.digest()) == NOTHING else content,
        encodings=tuple(sorted({layer.encoding.title for layer in model.layers})),
        adapter=model.adapter,
        remarks=model.remarks,
        commit=model.commit,
    )


def name_of(model: Model, given: ModelLike = None) -> str:
    """What to call a model: the user's own name for it, and that of the adapter merged into it."""
    name = called(given, model.path)
    if model.adapter is None:
        return name
    place = Path(model.adapter)
    return f"{name} + {printable(place.resolve().name if place.exists() else model.adapter.partition('@')[0], 80)}"


def called(given: ModelLike, path: Path) -> str:
    """The name that the user knows a model by: its own where that is no path."""
    name = str(given) if isinstance(given, str) else ""
    return name if name and not Path(name).exists() else path.name or str(path)
