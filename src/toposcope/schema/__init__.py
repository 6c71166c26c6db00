"""The JSON Schema of every result, made from the dataclasses that the results are made of.

`document(name)` gives the schema of `toposcope/<name>/1` as plain data; `NAMES` lists the names. Objects are closed:
what a command writes and a schema does not name is a fault of one of them, and tests look for it.
"""

from __future__ import annotations

from typing import Any

from toposcope.core.errors import BadValue, MissingExtra, did_you_mean
from toposcope.schema import of_runs, of_texts, of_weights, types

_OF = {
    "scan": of_weights.scan,
    "compare": of_weights.compare,
    "trace": of_texts.trace,
    "ablate": of_texts.ablate,
    "ablate-check": of_texts.ablate_check,
    "lab-ablate": of_runs.lab_ablate,
    "beside": of_texts.beside,
    "refine": of_texts.refine,
    "train": of_runs.train,
    "sweep": of_runs.sweep,
    "runs": of_runs.runs,
    "run": of_runs.run,
    "reproduce": of_runs.reproduce,
}
NAMES = tuple(_OF)
WRITTEN_BY = {
    "ablate-check": "ablate --check",
    "lab-ablate": "ablate RUN/model",
    "run": "runs show KEY",
}  # schemas that are not named after the command


def document(name: str) -> dict[str, Any]:
    """The schema of one kind of result; `name` may be given as scan or as toposcope/scan/1."""
    short = name.removeprefix("toposcope/").removesuffix("/1")
    if short not in _OF:
        raise BadValue(f"'{name}' is not the schema of a result. {did_you_mean(short, NAMES)}")
    full = f"toposcope/{short}/1"
    try:
        shape = _OF[short](full)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"the schema of '{short}' is made from code that needs {error.name}: pip install 'toposcope[torch]'."
        ) from error
    return types.document(full, f"toposcope {WRITTEN_BY.get(short, short)} --json", shape)
