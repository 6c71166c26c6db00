"""A family: checkpoints whose configuration says model_type wavegpt."""

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.table import Table
from toposcope.encodings import Sizes, parse

TABLE = Table(
    family="wavegpt",
    defaults={"max_position_embeddings": 64},
    layer="block.{}.",
    linear=("query", "key", "value", "out"),
    input_norm=None,
    embedding=None,
)


def describe(config, source):
    draft = TABLE.draft(config, source)
    context = draft.config.integer("max_position_embeddings")
    sizes = Sizes(draft.sizes.width, draft.sizes.heads, draft.sizes.head_dim, context)
    return draft.spec(parse(f"wave:period={config.number('period', default=16.0):g}").build(sizes))


WAVEGPT = Family("wavegpt", ("wavegpt",), describe, "an example")
