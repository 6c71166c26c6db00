"""What a finished run of the language-model probe must hold; without torch, as stores are listed without it."""

from __future__ import annotations

from toposcope.core.sealed import COUNT, SHARE, SIZE, Expected, Number

KIND = "toposcope.studies.language.probe:work"  # for the run store
RESULT, SCHEMA = "result.json", "toposcope/probe/1"
EXPECTED: Expected = {
    "schema": SCHEMA,
    "config": {},
    "finished": True,
    **dict.fromkeys(("steps", "parameters"), COUNT),
    "accuracy": SHARE,
    **dict.fromkeys(("bits_held", "bits_other", "seconds", "step_seconds"), SIZE),
    "noise_cost": Number(),
    "longer_cost": Number(missing=True),
    **{name: [Number(missing=True)] for name in ("cosine", "rank", "radial", "dispersion")},
    "curve": [{"step": COUNT, "loss": SIZE}],
}
