"""Which checkpoint is this? Told from headers and file dates, without reading the weights of a giant."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from toposcope.checkpoints.mapped import readable
from toposcope.checkpoints.view import Model


def identity(model: Model) -> dict[str, str]:
    """Hashes of three things that change whenever the weights, or how they are read, do.

    `tensors`: name, shape, type and size of every tensor; `config`: the configuration and the family it was read as;
    `files`: name, size and date of every file, which tell weights apart that look alike.
    """
    infos = (model.source.info(name) for name in sorted(model.source.names()))
    tensors = (f"{info.name}\0{info.shape}\0{info.dtype}\0{info.nbytes}" for info in infos)
    files = []
    for path in model.source.files:
        with readable(path):
            found = path.stat()
        files.append(f"{path.name}\0{found.st_size}\0{found.st_mtime_ns}")
    config = json.dumps([model.family, model.config], sort_keys=True, default=str)
    return {"tensors": _hash(tensors), "config": _hash([config]), "files": _hash(files)}


def _hash(lines: Iterable[str]) -> str:
    total = hashlib.sha256()
    for line in lines:
        total.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return total.hexdigest()
