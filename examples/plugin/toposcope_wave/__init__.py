"""An encoding: a bias that rises and falls with distance."""

import numpy as np

from toposcope.encodings import Encoding, Kind, LogitBias, Parameter


def build(sizes, given):
    period = given.get("period", 16.0)

    def bias_at(query_N, key_M):
        wave_NM = np.cos(2 * np.pi * (query_N[:, None] - key_M) / period)
        return np.repeat(wave_NM[None], sizes.heads, axis=0)

    bias = LogitBias(sizes.heads, bias_at, toeplitz=True)
    return Encoding("wave", f"a wave of {period:g} tokens", {"period": period}, bias=bias)


WAVE = Kind("wave", "rises and falls", "bias", build, (Parameter("period", "float", 16.0, "in tokens", above=0),))
