"""Which of the adapter's tensors changes which tensor of the base, and how.

PEFT names its tensors after the modules of the model in memory ('base_model.model.' + 'model.layers.0.self_attn.
q_proj' + '.lora_A.weight'). A file may call the same module 'layers.0.self_attn.q_proj', or put a prefix before it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from toposcope.checkpoints.peft.settings import MERGE, AdapterSettings
from toposcope.checkpoints.source import TensorSource
from toposcope.core.errors import BadFile, MissingTensor
from toposcope.core.printable import printable

PREFIX = "base_model.model."
_PARTS = {  # the endings of an adapter's tensors, and what each is
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_B.bias": "b_bias",
    ".lora_embedding_A": "embedding_a",
    ".lora_embedding_B": "embedding_b",
    ".lora_magnitude_vector": "magnitudes",
    ".lora_magnitude_vector.weight": "magnitudes",
    ".token_adapter.trainable_tokens_delta": "token_rows",
}
_OF_AN_ADAPTER = re.compile(r"(^|\.)(lora_|ia3_|hada_|lokr_|oft_|vera_|token_adapter|prompt_|trainable_tokens)")
_TOWER = re.compile(r"vis|image|audio|speech|encoder|decoder|tower|talker", re.IGNORECASE)  # not the language model


@dataclass(frozen=True)
class LowRank:
    """Add scaling * B A; with `magnitudes` (DoRA) every output's row then gets the length that is stored there."""

    a: str
    b: str
    rank: int
    scaling: float
    magnitudes: str | None = None
    embedding: bool = False  # the base is (rows, width) and B A is (width, rows)


@dataclass(frozen=True)
class Change:
    """What becomes of one tensor of the base: another in its place, some rows set, a product or a bias added."""

    module: str  # as the adapter calls it
    replaced: str | None = None
    rows: tuple[str, tuple[int, ...]] | None = None
    low_rank: LowRank | None = None
    added: tuple[str, float] | None = None  # a tensor of the same shape, and its factor

    @property
    def tensors(self) -> tuple[str, ...]:
        """The adapter's tensors behind it."""
        low = () if self.low_rank is None else (self.low_rank.a, self.low_rank.b, self.low_rank.magnitudes)
        pairs = (self.rows[0] if self.rows else None, self.added[0] if self.added else None)
        return tuple(name for name in (self.replaced, *pairs, *low) if name is not None)


@dataclass(frozen=True)
class Changes:
    """All changes by the base's tensor, and the adapter's tensors for which the base has none."""

    by_tensor: Mapping[str, Change]
    homeless: tuple[str, ...] = ()
    fresh: frozenset[str] = field(default=frozenset())  # tensors that the base does not hold and gets by the adapter


def sorted_changes(adapter: TensorSource, settings: AdapterSettings, base: TensorSource) -> Changes:
    """Sort an adapter's tensors by name; what has no place in the base at all, or is not understood, is refused."""
    names = set(base.names())
    find = TensorFinder(names)
    found: dict[str, Change] = {}
    homeless: list[str] = []
    fresh: set[str] = set()
    for module, parts in sorted(_modules(adapter, settings).items()):
        for leaf, change in _of_module(adapter, settings, module, parts):
            name = find(f"{module}.{leaf}")
            if name is None and leaf == "bias" and change.added and (weight := find(f"{module}.weight")):
                name = f"{weight.removesuffix('weight')}bias"  # a bias where there was none
                fresh.add(name)
            if name is None:
                homeless += change.tensors
                continue
            if name in found:
                change = _joined(adapter, found[name], change)
            found[name] = change
    if not found:
        raise MissingTensor(
            f"no tensor of the adapter {printable(settings.place)} belongs to one of {printable(base.path)}: "
            f"there is no '{printable(_plain(homeless[0] if homeless else 'lora_A'))}'. "
            f"{_other_base(settings, base)}"
        )
    return Changes(found, tuple(homeless), frozenset(fresh))


def _modules(adapter: TensorSource, settings: AdapterSettings) -> dict[str, dict[str, str]]:
    """The adapter's tensors by module and part; what stands for a tensor of the base itself has its last name."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name in sorted(adapter.names()):
        plain = _plain(name)
        ending = next((each for each in _PARTS if plain.endswith(each)), None)
        if ending is not None:
            module, part = plain.removesuffix(ending), _PARTS[ending]
        else:
            module, _, part = plain.rpartition(".")
            part = f"={part}"
        if not module or _OF_AN_ADAPTER.search(module if ending else plain):
            raise BadFile(
                f"the adapter {printable(settings.place)} holds a tensor '{printable(name)}', which is no part "
                f"of a LoRA, rsLoRA or DoRA that is known here. {MERGE}"
            )
        if part in found[module]:
            raise BadFile(f"the adapter {printable(settings.place)} holds '{printable(plain)}' twice.")
        found[module][part] = name
    return found


def _plain(name: str) -> str:
    """The name without what PEFT puts before it, and around the modules that it wraps."""
    return name.removeprefix(PREFIX).replace(".base_layer.", ".")


def _of_module(
    adapter: TensorSource, settings: AdapterSettings, module: str, parts: Mapping[str, str]
) -> Iterator[tuple[str, Change]]:
    """The changes of one module's tensors, each with the tensor's last name ('weight', 'bias')."""
    for part, name in parts.items():
        if part.startswith("="):
            yield part[1:], Change(module, replaced=name)
    for a, b, embedding in (("a", "b", False), ("embedding_a", "embedding_b", True)):
        if a not in parts and b not in parts:
            continue
        if a not in parts or b not in parts or ("magnitudes" in parts) != settings.magnitudes:
            held = ", ".join(printable(parts[key]) for key in (a, b, "magnitudes") if key in parts)
            raise BadFile(
                f"the adapter {printable(settings.place)} holds for '{printable(module)}' only {held}; its "
                f"settings ask for {settings.method}. The files are incomplete, or of two adapters: get them again."
            )
        rank = adapter.info(parts[a]).shape[:1]
        if not rank or rank[0] < 1:
            raise BadFile(
                f"tensor '{printable(parts[a])}' of the adapter has shape {adapter.info(parts[a]).shape}; expected "
                "(rank, width). It may have been saved in pieces: save it again."
            )
        scaling = settings.scaling(module, rank[0])
        low = LowRank(parts[a], parts[b], rank[0], scaling, parts.get("magnitudes"), embedding)
        yield "weight", Change(module, low_rank=low)
        if "b_bias" in parts and not embedding:
            yield "bias", Change(module, added=(parts["b_bias"], scaling))
    if "token_rows" in parts:
        yield "weight", Change(module, rows=(parts["token_rows"], _rows_of(settings, module)))


def _rows_of(settings: AdapterSettings, module: str) -> tuple[int, ...]:
    rows = settings.token_rows
    if isinstance(rows, Mapping):
        rows = next((each for name, each in rows.items() if f".{module}".endswith(f".{name}")), ())
    return tuple(rows)


def _joined(adapter: TensorSource, one: Change, two: Change) -> Change:
    """Both changes of one tensor, where each is of its own kind and of the same module."""
    kinds = [name for name in ("replaced", "rows", "low_rank", "added") if getattr(two, name) is not None]
    if one.module != two.module or any(getattr(one, name) is not None for name in kinds):
        raise BadFile(
            f"the adapter {printable(adapter.path)} changes one tensor of the base twice, as "
            f"'{printable(one.module)}' and as '{printable(two.module)}'. It belongs to another model."
        )
    return replace(one, **{name: getattr(two, name) for name in kinds})


def require_fit(
    adapter: TensorSource, settings: AdapterSettings, base: TensorSource, name: str, change: Change
) -> None:
    """Refuse tensors whose shapes are not those that the base's tensor asks for."""
    shape = base.info(name).shape
    wanted: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
    if change.replaced is not None:
        new = adapter.info(change.replaced).shape
        longer = change.rows is None and len(shape) == 2 and new[1:] == shape[1:] and _holds_words(name)
        if not longer:  # a vocabulary may have grown
            wanted.append((change.replaced, (shape,)))
        shape = new
    if change.rows is not None:
        tensor, rows = change.rows
        wanted.append((tensor, ((len(rows), *shape[1:]),)))
        if rows and max(rows) >= shape[0]:
            wanted.append((f"token {max(rows)}", ()))
    if change.added is not None:
        wanted.append((change.added[0], (shape,)))
    low = change.low_rank
    for tensor, fine in wanted:
        if not fine or adapter.info(tensor).shape not in fine:
            raise _no_fit(adapter, settings, base, name, tensor)
    if low is None:
        return
    if len(shape) != 2:
        raise _no_fit(adapter, settings, base, name, low.a)
    a, b = adapter.info(low.a).shape, adapter.info(low.b).shape
    outs = {shape[1]} if low.embedding else {each for each in shape if sorted((each, *a[1:])) == sorted(shape)}
    if len(b) != 2 or b[0] not in outs or b[1] != low.rank or a != (low.rank, sum(shape) - b[0]):
        raise _no_fit(adapter, settings, base, name, low.b if b[1:] != (low.rank,) else low.a)
    if low.magnitudes is not None and adapter.info(low.magnitudes).shape not in ((b[0],), (1, b[0]), (b[0], 1)):
        raise _no_fit(adapter, settings, base, name, low.magnitudes)


def require_side(
    adapter: TensorSource, settings: AdapterSettings, base: TensorSource, name: str, low: LowRank, transposed: bool
) -> None:
    """Refuse a part that would only fit the map turned on its side."""
    if adapter.info(low.b).shape[0] != base.info(name).shape[1 if transposed else 0]:
        raise _no_fit(adapter, settings, base, name, low.b)


def _holds_words(name: str) -> bool:
    """Whether a tensor's name is that of a table or a head with a row for each word."""
    return bool(re.search(r"emb|wte|lm_head|output\.weight|word", name))


def _no_fit(
    adapter: TensorSource, settings: AdapterSettings, base: TensorSource, name: str, tensor: str
) -> MissingTensor:
    has = f" of shape {adapter.info(tensor).shape}" if tensor in adapter.names() else ""
    return MissingTensor(
        f"'{printable(tensor)}'{has} in the adapter {printable(settings.place)} does not fit "
        f"'{printable(name)}' of shape {base.info(name).shape} in {printable(base.path)}. "
        f"{_other_base(settings, base)}"
    )


def _other_base(settings: AdapterSettings, base: TensorSource) -> str:
    if base.format == "gguf":
        return "A GGUF file has names of its own: give the base in its original format."
    trained = f"It was trained on '{settings.base}'. " if settings.base else ""
    return (
        f"{trained}Give the model that it was trained on; if this is it, its files have other names than "
        "transformers gives the modules, and the two can only be merged with PEFT."
    )


class TensorFinder:
    """The tensor of a file that a name in memory means; None where there is none, or more than one.

    From the list of layers on ('layers.0.self_attn.q_proj.weight') the two agree. Of what stands before, files leave
    out parts, add some, or have them in another order; but no part may be lost that says which of several towers.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._by_tail: dict[tuple[str, ...], list[tuple[Counter[str], str]]] = defaultdict(list)
        for name in names:
            head, tail = _cut(name)
            self._by_tail[tail].append((Counter(head), name))

    def __call__(self, wanted: str) -> str | None:
        if wanted in self._names:
            return wanted
        head, tail = _cut(wanted)
        mine = Counter(head)
        found: dict[int, list[str]] = defaultdict(list)
        for theirs, name in self._by_tail[tail]:
            more, less = mine - theirs, theirs - mine
            if not (more and less) and not any(_TOWER.search(part) for part in (*more, *less)):
                found[more.total() + less.total()].append(name)
        nearest = found[min(found)] if found else []
        return nearest[0] if len(nearest) == 1 else None


def _cut(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A name before the list of layers, and from there on; without layers, the module and its tensor."""
    parts = tuple(name.split("."))
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    place = max(numbers[0] - 1, 0) if numbers else max(len(parts) - 2, 0)
    return parts[:place], parts[place:]
