"""Refinements that choose where attention drives its tokens: parts for any model, to train with or to add afterwards.

    from toposcope import refinements as refine

    refine.apply(model, kind="head", regime="negative")      # held at every step of training
    optimizer = torch.optim.AdamW(refine.parameter_groups(model, weight_decay=0.1), lr=1e-3)
    ...
    refine.materialise(model).save_pretrained("out")          # plain weights; `toposcope scan out` says the same

    with refine.with_diagonal(model, form="slice") as added:       # x_i^T D x_j in every logit
        ...

`definite` holds regimes, `diagonal` adds D, `tune` measures what D buys on a trained model.
"""

from __future__ import annotations

from toposcope.refinements.definite import Applied, apply, materialise
from toposcope.refinements.diagonal import Diagonal, Installed, install, load, with_diagonal
from toposcope.refinements.groups import parameter_groups

__all__ = [
    "Applied",
    "Diagonal",
    "Installed",
    "apply",
    "install",
    "load",
    "materialise",
    "parameter_groups",
    "with_diagonal",
]
