"""What an encoding does to attention logits: Toeplitz parts, kernels, contraction, the content-position split."""

from __future__ import annotations

from toposcope.spectra.anova import Shares, decompose
from toposcope.spectra.contraction import Contraction, contraction
from toposcope.spectra.encoding_spectrum import EncodingSpectrum, spectrum_of
from toposcope.spectra.head_kernel import HeadKernel, kernel
from toposcope.spectra.toeplitz import diagonal_means, toeplitz_share

__all__ = [
    "Contraction",
    "EncodingSpectrum",
    "HeadKernel",
    "Shares",
    "contraction",
    "decompose",
    "diagonal_means",
    "kernel",
    "spectrum_of",
    "toeplitz_share",
]
