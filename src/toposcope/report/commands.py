"""Commands that a reader can paste: the model as he named it, and what it was run on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from toposcope.checkpoints.installed import installed_texts
from toposcope.core.files import present
from toposcope.core.result import Result, Subject

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


def command(result: Result, verb: str, options: Sequence[str] = ()) -> list[str]:
    """The words of a command on the same model, quoted for a shell; of these options those that were given."""
    words = ["toposcope", verb, model_word(result)]
    for name in options:
        value = result.provenance.options.get(name)
        if value is True:
            words.append(f"--{name}")
        elif value not in (None, False, 0, ""):
            words += [f"--{name}", shlex.quote(str(value))]
    return words


def model_word(result: Result) -> str:
    """The model as it was named: a name, or the path where its name is only the last part of that."""
    if not result.provenance.subjects:
        return "MODEL"
    subject = result.provenance.subjects[0]
    return shlex.quote(subject.path if subject.name == Path(subject.path).name else subject.name)


def loss_line(result: Result) -> str | None:
    """The command that runs a model on a text with plain RoPE and as it is; None where it could not be run here."""
    if not result.provenance.subjects or not _runs(result.provenance.subjects[0]):
        return None
    texts = [item.name for item in installed_texts()]
    text = "wiki" if "wiki" in texts else (texts or ["FILE"])[0]
    return f"{' '.join(command(result, 'loss'))} --text {text} --encoding rope"


def live_line(result: Result) -> str | None:
    """The command that checks a model as it runs; None where its files do not run, or not as they were read."""
    read_as = any(result.provenance.options.get(name) for name in ("family", "num_heads", "adapter"))
    if read_as or not result.provenance.subjects or not _complete(result.provenance.subjects[0], tokenizer=False):
        return None
    return f"{' '.join(command(result, 'check'))} --live"


def _runs(subject: Subject) -> bool:
    """Whether a model's files are complete, and what runs them is installed."""
    from toposcope.models.load import runs_here

    return _complete(subject) and runs_here()


def _complete(subject: Subject, *, tokenizer: bool = True) -> bool:
    """Whether what a model needs to run lies where it was found: weights, configuration, and its `tokenizer`."""
    from toposcope.models.load import TOKENIZER_FILES

    path = Path(subject.path)
    if subject.adapter is not None or not present(path):
        return False
    if path.suffix == ".gguf":
        return path.is_file()  # its tokenizer is in it
    place = path if path.is_dir() else path.parent
    try:
        names = {entry.name for entry in place.iterdir()}
    except OSError:
        return False
    told = path.name != "config.json" and "config.json" in names and any(name.endswith(_WEIGHTS) for name in names)
    return told and (not tokenizer or any(name in names for name in TOKENIZER_FILES))
