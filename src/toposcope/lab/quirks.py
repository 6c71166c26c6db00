"""What the released scripts of the coupling paper do differently, each as a switch of its own; all off by default.

The correct counterpart of every switch is the default model, so a reader can see which quirk moves which number.
The scripts' MLA model also has other batch sizes, epochs and dropout than their other models: those are settings of
a run, not of a model, and are left to its profile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace

from toposcope.core.errors import BadValue, did_you_mean


@dataclass(frozen=True)
class Quirks:
    """Switches of the published structure.

    * `sinusoid_beside_rotary`: rotary models also add a sinusoid to the embeddings
    * `learned_beside_mla`: the MLA model also adds a learned table of positions
    * `raw_keys_values`: keys and values of every layer read the raw embeddings; only queries see depth
    * `visible_padding`: padding is neither masked in attention nor left out of the mean
    * `steep_alibi`: slopes e^(-h/H), h = 0 .. H-1, far steeper than ALiBi's
    * `swapped_betas`: AdamW with the two betas interchanged
    * `skip_class_zero`: class 0 counts neither in the loss nor in the accuracy (MLA excepted)
    * `relu_mlp`: ReLU in place of GELU
    * `no_final_norm`: no norm before the mean
    * `mla_apart`: the MLA model keeps self-attention, mask, GELU and final norm: it is spared raw_keys_values,
      visible_padding, relu_mlp and no_final_norm
    * `mla_misread`: MLA's [sin.. | cos..] table is read with stride 2, so its rotary part is no rotation
    * `colliding_fillers`: fillers may be trigger tokens, which makes some sentences ambiguous
    """

    sinusoid_beside_rotary: bool = False
    learned_beside_mla: bool = False
    raw_keys_values: bool = False
    visible_padding: bool = False
    steep_alibi: bool = False
    swapped_betas: bool = False
    skip_class_zero: bool = False
    relu_mlp: bool = False
    no_final_norm: bool = False
    mla_apart: bool = False
    mla_misread: bool = False
    colliding_fillers: bool = False

    @classmethod
    def published(cls) -> Quirks:
        """All of them, as in the released scripts."""
        return cls(**{each.name: True for each in fields(cls)})

    def changed(self, names: Iterable[str]) -> Quirks:
        """The same with some switched on ('raw_keys_values') or off ('-raw_keys_values')."""
        known = [each.name for each in fields(self)]
        result = self
        for name in names:
            bare = name.removeprefix("-").replace("-", "_")
            if bare not in known:
                raise BadValue(f"'{name}' is no quirk of the published scripts. {did_you_mean(bare, known)}")
            result = replace(result, **{bare: not name.startswith("-")})
        return result

    def names(self) -> tuple[str, ...]:
        """Those that are on."""
        return tuple(name for name, on in asdict(self).items() if on)
