"""Commands that a reader can paste: the model as he named it, and what it was run on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from toposcope.core.result import Result


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
