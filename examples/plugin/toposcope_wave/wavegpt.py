"""A family: checkpoints whose configuration says model_type wavegpt."""

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.common import Sizes
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec
from toposcope.encodings import Sizes as EncodingSizes
from toposcope.encodings import parse


def describe(config, source):
    sizes = Sizes.of(config)
    made = parse(f"wave:period={config.number('period', default=16.0):g}")
    context = config.integer("max_position_embeddings", default=64)
    encoding = made.build(EncodingSizes(sizes.width, sizes.heads, sizes.head_dim, context))

    def layer(i):
        q, k, v, o = (Linear(f"block.{i}.{name}") for name in ("query", "key", "value", "out"))
        return LayerSpec(
            stack="decoder",
            index=i,
            width=sizes.width,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            causal=True,
            encoding=encoding,
            q=q,
            k=k,
            v=v,
            o=o,
        )

    return ModelSpec("wavegpt", tuple(layer(i) for i in range(sizes.layers)), context=context)


WAVEGPT = Family("wavegpt", ("wavegpt",), describe, "an example")
