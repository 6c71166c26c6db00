"""Where position enters a model: which mechanisms act, in which layers, and whether one is enough."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from toposcope.checkpoints.families.state_dict import MAY_CARRY_POSITION, SPEAKS_OF_POSITION
from toposcope.checkpoints.spec import Skipped
from toposcope.checkpoints.view import Layer, Model
from toposcope.checks.findings import Finding, say_layers

WORDS = {
    "input": "vectors added to the input",
    "rotary": "rotation of queries and keys",
    "bias": "a bias added to the logits",
    "content": "position that depends on content",
    "query_scale": "queries that grow with their position",
}
_TABLE = re.compile(r"(^|[._])(wpe|embed_positions|position_embeddings?|pos_embed|pos_emb|position_embd)(\.weight)?$")
# families whose files hold a table that the model's own code never reads
_KNOWN_UNUSED = ("esm",)


def mechanisms(model: Model) -> Iterator[Finding]:
    """Say what acts where; two at once, or none, is worth a look."""
    layers = [layer for layer in model.layers if layer.spec.kind == "self"]
    by_kind: dict[tuple[str, ...], list[Layer]] = defaultdict(list)
    for layer in layers:
        by_kind[_encoding(layer.encoding.mechanisms)].append(layer)
    for kinds, members in by_kind.items():
        numbers = tuple(layer.number for layer in members)
        titles = sorted({layer.encoding.title for layer in members})
        where = say_layers(numbers, len(model.layers))
        if len(kinds) > 1:
            yield _several(kinds, where, titles, numbers)
        elif kinds:
            yield Finding(
                "mechanisms",
                "ok",
                f"position enters by {WORDS[kinds[0]]}",
                f"In {where}: {'; '.join(titles)}.",
                layers=numbers,
                evidence={"mechanisms": list(kinds), "encodings": titles},
            )
    unknown = [each for each in model.skipped if each.why in (SPEAKS_OF_POSITION, MAY_CARRY_POSITION)]
    if unknown:
        yield _not_understood(unknown, found=len(by_kind.get((), ())) < len(layers))
    if () in by_kind and not (unknown and len(by_kind[()]) == len(layers)):
        yield _none(model, by_kind[()], total=len(layers))
    yield from _unread_table(model, layers)


def _encoding(found: tuple[str, ...]) -> tuple[str, ...]:
    """The mechanisms that tell positions apart: a query scale beside another is no second encoding."""
    return tuple(each for each in found if each != "query_scale") or found


def _several(kinds: tuple[str, ...], where: str, titles: list[str], numbers: tuple[int, ...]) -> Finding:
    both = " and ".join(WORDS[kind] for kind in kinds)
    lost = " Relative positions are then no longer blind to where a text starts." if "input" in kinds else ""
    return Finding(
        "mechanisms",
        "warning",
        f"two encodings act at once: {both}",
        f"In {where}: {'; '.join(titles)}.{lost}",
        "If that is not meant, leave one out: most often an added table is left from an earlier design. Results "
        "about 'the' encoding of this model are about both together.",
        layers=numbers,
        evidence={"mechanisms": list(kinds), "encodings": titles},
    )


def _not_understood(unknown: list[Skipped], *, found: bool) -> Finding:
    names = [each.what for each in unknown]
    shown = ", ".join(f"'{name}'" for name in names[:4]) + (", ..." if len(names) > 4 else "")
    return Finding(
        "position-unknown",
        "warning",
        "tensors that may carry position are not understood",
        f"{shown}: what the model's code does with them is not in the file. "
        + ("The encoding that was found may not be all." if found else "No positional encoding was found otherwise."),
        "Look at the model's code; name a table as 'position_table' in a config.json beside the file.",
        evidence={"tensors": [name for each in unknown for name in each.tensors]},
    )


def _none(model: Model, members: list[Layer], total: int) -> Finding:
    numbers = tuple(layer.number for layer in members)
    where = say_layers(numbers, len(model.layers))
    if len(members) < total:
        return Finding(
            "no-position",
            "ok",
            "some layers have no positional encoding of their own",
            f"It is so by design in {where}; the other {total - len(members)} tell the order.",
            layers=numbers,
        )
    if all(layer.spec.causal for layer in members):
        return Finding(
            "no-position",
            "warning",
            "no positional encoding: only the causal mask tells the order",
            f"None was found in {where}. A causal mask alone lets a model infer position from how many tokens it "
            "sees.",
            "Right for a model designed without positions. Otherwise the table or the rotary settings were lost.",
            layers=numbers,
        )
    return Finding(
        "no-position",
        "fault",
        "no positional encoding, and no mask that could replace it",
        f"None was found in {where}, which see both directions: the model cannot tell the order of its tokens.",
        "Look for a position table among the skipped tensors ('toposcope inspect'), or add what the model adds in "
        "code.",
        layers=numbers,
    )


def _unread_table(model: Model, layers: list[Layer]) -> Iterator[Finding]:
    """A position table in the file that no layer's encoding uses, beside another encoding."""
    if any(layer.encoding.input is not None for layer in layers) or model.family in _KNOWN_UNUSED:
        return
    known = set(model.spec.accounted)
    for name in sorted(model.source.names()):
        if _TABLE.search(name) and name not in known and len(model.source.info(name).shape) >= 2:
            yield Finding(
                "unread-table",
                "warning",
                "the file holds a position table that this family does not use",
                f"Tensor '{name}' of shape {tuple(model.source.info(name).shape)} looks like positions added to the "
                f"input, but models of family '{model.family}' do not read it.",
                "If your code adds it, two encodings act at once. If it does not, the tensor can go.",
                evidence={"tensor": name},
            )
