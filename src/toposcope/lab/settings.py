"""Settings of a run, read back from plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from toposcope.core.errors import BadValue, did_you_mean

T = TypeVar("T")
# Settings of a model that came after runs had been kept, and their usual values: left out of what names and describes
# a run where they are usual, so that those runs keep their names.
LATER: Mapping[str, Any] = {"loops": 1, "logit_scale": 1.0, "latent_rank": None, "shared_key": True}


def from_settings(kind: type[T], data: Mapping[str, Any]) -> T:
    """The record of this kind with these settings; names and values that it does not know are complained of."""
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    for name in data:
        if name not in known:
            raise BadValue(f"a run has no setting '{name}'. {did_you_mean(name, known)}")
    try:
        return kind(**data)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadValue(f"these are no settings of a run ({error}). A run's own file holds such settings.") from error
