"""A configuration without weights, as a source of tensors that holds none.

What an adapter reads from the configuration it describes all the same. What it would look up among the tensors (the
vectors of a learned table, which layers of a hybrid are attention) a configuration alone cannot tell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from toposcope.checkpoints.decode import Ledger
from toposcope.checkpoints.source import Rows, Stored, TensorInfo
from toposcope.core.errors import MissingTensor
from toposcope.core.printable import printable
from toposcope.encodings.record import Array, Encoding, InputTable

FORMAT = "config"


class ConfigSource:
    """The tensors of a lone config.json: none."""

    format = FORMAT

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self.metadata: Mapping[str, Any] = {}
        self.files: tuple[Path, ...] = ()
        self.ledger = Ledger()
        self._config = config

    @property
    def width(self) -> int:
        """The width of the model, where the configuration says it under a usual name."""
        said = [self._config.get(name) for name in ("hidden_size", "n_embd", "d_model", "dim")]
        return next((each for each in said if isinstance(each, int)), 0)

    def names(self) -> Collection[str]:
        return ()

    def info(self, name: str) -> TensorInfo:
        self._none(name)

    def read(self, name: str) -> Stored:
        self._none(name)

    def read_rows(self, name: str, rows: Rows) -> Stored:
        self._none(name)

    def _none(self, name: str) -> NoReturn:
        raise MissingTensor(
            f"{printable(self.path)} is a configuration without weights, so there is no tensor '{printable(name)}'. "
            "Give the whole model; 'toposcope check' alone can do with the configuration."
        )

    def digest(self) -> str:
        """sha256 of the configuration: it is all that was read."""
        text = json.dumps(self._config, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def close(self) -> None:
        """Nothing to close."""


def unread_table(source: Any, name: str) -> Encoding:
    """A learned table of which a configuration tells that it is there, and no more."""

    def vectors_at(at_N: Array) -> Array:
        raise MissingTensor(f"{printable(source.path)} is a configuration without the table '{printable(name)}'.")

    return Encoding(
        name="learned",
        title="learned vectors (in the weights)",
        input=InputTable(source.width, vectors_at),
        notes=("how many vectors there are, and whether they were trained, only the weights can tell.",),
    )


def without_weights(source: Any) -> bool:
    """Whether a source is a configuration alone."""
    return bool(source.format == FORMAT)
