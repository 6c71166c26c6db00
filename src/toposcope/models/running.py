"""Whatever a user calls a model, ready to run on a text: a name or a path is loaded, a loaded one taken as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from toposcope.checkpoints.live import view
from toposcope.checkpoints.opened import called, subject
from toposcope.core.errors import BadValue, NotFound
from toposcope.core.printable import printable
from toposcope.core.result import Subject
from toposcope.models.about import weights_digest
from toposcope.models.corpus import RANDOM, Corpus, cut
from toposcope.models.device import Placement, placement
from toposcope.models.load import Reference, load_reference, read_text

RunnableLike = Any  # str | Path | Reference | a model of transformers


def running(
    model: RunnableLike,
    *,
    head: bool = False,
    attention: str = "eager",
    tokenizer: Any = None,
    reads_text: bool = True,
    place: Placement | None = None,
) -> Reference:
    """The model as transformers runs it, with its tokenizer.

    A loaded model keeps its dtype, device and attention; its tokenizer is the one given, or that of the files it was
    loaded from. Where it `reads_text` it must have one.
    """
    place = place or placement()
    if isinstance(model, str | Path):
        found = load_reference(
            model, head=head, attention=attention, dtype=place.dtype, device=place.device, device_map=place.device_map
        )
        return found if tokenizer is None else replace(found, tokenizer=tokenizer)
    if place.asked:
        raise BadValue(
            "a loaded model stays where it is, in the precision it has: leave out device, dtype and device_map, or "
            "give the model's name."
        )
    if isinstance(model, Reference):
        return model
    if not (hasattr(model, "config") and callable(model)):
        raise BadValue(
            f"{type(model).__name__} cannot be run on a text: expected a name, a path, or a model of transformers."
        )
    name = str(getattr(model.config, "_name_or_path", "") or "")
    if tokenizer is not None and not callable(tokenizer):
        raise BadValue(f"tokenizer takes a tokenizer of transformers, got {type(tokenizer).__name__}.")
    if tokenizer is None and (name or reads_text):
        tokenizer = _tokenizer(name, model)
    return Reference(Path(name or type(model).__name__), model, tokenizer)


def on_text(
    model: RunnableLike,
    text: str | Path,
    *,
    tokens: int,
    sequences: int,
    begin: int = 0,
    lines: bool = False,
    beyond: bool = False,
    head: bool = False,
    place: Placement | None = None,
    tokenizer: Any = None,
) -> tuple[Reference, Corpus]:
    """The model as it runs, and the sequences cut from a text; what can be wrong with the text is told first."""
    if str(text) == RANDOM and not Path(RANDOM).exists():
        raise BadValue(
            "'random' draws tokens without a text, which only trace takes. Give a text: a file, or 'wiki'."
        )
    content = read_text(text)
    reference = running(model, head=head, attention="sdpa", place=place, tokenizer=tokenizer)
    corpus = cut(
        reference, content, tokens=tokens, count=sequences, name=str(text), begin=begin, lines=lines, beyond=beyond
    )
    known = reference.model.get_input_embeddings().weight.shape[0]
    highest = max(int(ids.max()) for ids in corpus.sequences)
    if highest >= known:
        raise BadValue(
            f"the tokenizer makes token {highest} of {text}, and the model knows {known} tokens: give the tokenizer "
            "that the model was trained with."
        )
    return reference, corpus


def running_subject(model: Any, given: RunnableLike = None, *, sha256: str | None = None) -> Subject:
    """What was run: as for a checkpoint, with the hash of all weights that the model runs with."""
    module = model.model if isinstance(model, Reference) else model
    known = subject(view(module), sha256=sha256 or weights_digest(module))
    path = Path(getattr(model, "path", known.path))
    return replace(known, name=called(given, path), path=str(path), commit=getattr(model, "commit", None))


def _tokenizer(name: str, model: Any) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library behind it raises this very class
        where = f"no tokenizer lies in {printable(name)}" if name else "it was loaded from no files"
        raise NotFound(
            f"this {type(model).__name__} has no tokenizer to read a text with: {where}. Give one (tokenizer=), or "
            "trace the model on random tokens: toposcope.trace(model, 'random')."
        ) from error
