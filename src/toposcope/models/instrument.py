"""Look into a running model, and change what its heads hand on, without changing the model.

The model is given an attention function of ours, registered with transformers, that calls the one it had before and
returns what that returned: with nothing asked for, every number stays as it was. Observers are shown queries, keys,
values, mask and output of each attention; edits may replace the heads' outputs before the output projection.
When the last user leaves, the model is as it was found, and so are the tables of transformers.

A model belongs to one thread at a time: what one thread sees or changes in it, another would see or change as well.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from toposcope.core.errors import BadConfig, BadValue
from toposcope.models.device import home
from toposcope.models.load import Reference, require
from toposcope.models.positions import ForwardPass, Places
from toposcope.models.sites import BYPASSING, Route, Site, bypassing, no_sites

PREFIX = "toposcope_"
WRAPPED = ("sdpa", "eager")
_CROSS = re.compile(r"cross|encdec|encoder_attn", re.IGNORECASE)


class Enough(Exception):
    """An observer has seen what it wanted: the rest of the forward pass is not needed."""


@dataclass(frozen=True, eq=False)
class Call:
    """One attention as it happens; tensors, not copies. B sequences, N queries, M keys, otherwise as `Site`.

    `query_BHNR` and `key_BGMR` have been turned to their positions. `bias` is what the model adds to the logits for
    position (T5), `mask` what it hides: booleans (True is seen), or numbers to add, or None with `causal`.
    """

    site: Site
    query_BHNR: Any
    key_BGMR: Any
    value_BGMV: Any
    mask: Any | None
    causal: bool
    bias: Any | None
    scaling: float
    softcap: float | None
    sinks: Any | None


Observer = Callable[[Call, Any], None]  # the call, and the heads' outputs (B, N, H, V) as they leave
Edit = Callable[[Site, Any], Any]  # (B, N, H, V) -> (B, N, H, V); must not write into what it is given
Rewrite = Callable[[Call], Any | None]  # the heads' outputs computed otherwise, or None: not here


class Instrument:
    """What is attached to one model: its sites, and who is looking or editing. Made by `attached`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.observers: list[Observer] = []
        self.input_observers: list[Callable[[Site, Any], None]] = []
        self.edits: list[Edit] = []
        self.rewrites: list[Rewrite] = []  # see `rewriting`
        self.reader: Any | None = None  # kept by content.py
        self._passes: list[ForwardPass] = []  # that are running: the innermost last
        self.sites: tuple[Site, ...] = ()
        self._of_module: WeakKeyDictionary[Any, list[Site]] = WeakKeyDictionary()
        self._turns: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._taken: dict[int, int] = {}  # layer -> a number that no other change of attention ever has

    @property
    def stacks(self) -> list[Any]:
        """The modules that are handed tokens, mask and cache: the model and what it wraps, or encoder and decoder."""
        model = self.model
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False) and _has_decoder(model):
            return list(dict.fromkeys([model.get_encoder(), model.get_decoder()]))
        return list(dict.fromkeys([model, getattr(model, "base_model", model)]))

    @property
    def running(self) -> ForwardPass | None:
        """The pass that is running."""
        return self._passes[-1] if self._passes else None

    # ------------------------------------------------------------- attaching
    @contextmanager
    def _installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for part in self.stacks:
                stack.enter_context(_hook(part.register_forward_pre_hook(self._begin, with_kwargs=True)))
                stack.enter_context(_hook(part.register_forward_hook(self._end, always_call=True)))
            own = bypassing(self.model)
            for module in own:
                stack.enter_context(_hook(module.register_forward_pre_hook(self._enters, with_kwargs=True)))
                projection = getattr(module, BYPASSING[type(module).__name__])
                stack.enter_context(_hook(projection.register_forward_pre_hook(self._leaves(module))))
            lab = [module for module in self.model.modules() if _is_lab(module)]
            for module in lab:
                stack.enter_context(_replaced_attend(module, self._lab_attend(module.attend)))
            if not own and not lab:
                stack.enter_context(_through_interface(self.model))
            for module in self.model.modules():
                _ATTACHED[module] = self
            stack.callback(lambda: [_ATTACHED.pop(module, None) for module in self.model.modules()])
            self._discover("hooks" if own else "lab" if lab else "interface")
            yield

    def _discover(self, route: Route) -> None:
        """Run a few tokens and note every attention that is met."""
        import torch

        met: list[Site] = []
        names = {module: name for name, module in self.model.named_modules()}

        def note(call: Call, output: Any) -> None:
            query, value = call.query_BHNR, call.value_BGMV
            module = call.site.module
            met.append(
                Site(
                    number=len(met),
                    turn=sum(1 for each in met if each.module is module),
                    module=module,
                    name=names.get(module, type(module).__name__),
                    heads=output.shape[2],
                    kv_heads=output.shape[2] if value is None else value.shape[1],
                    head_dim=output.shape[3] if query is None else query.shape[3],
                    value_dim=output.shape[3],
                    cross=bool(_CROSS.search(f"{names.get(module, '')} {type(module).__name__}")),
                    route=route,
                )
            )

        self.observers.append(note)
        try:
            with torch.no_grad():
                self.model(**dummy_inputs(self.model))
        finally:
            self.observers.remove(note)
        if not met:
            raise no_sites(self.model)
        self.sites = tuple(met)
        for site in met:
            self._of_module.setdefault(site.module, []).append(site)

    # ------------------------------------------------------------ attentions
    def _begin(self, module: Any, args: Any, kwargs: Any) -> None:
        outer = self.running
        if outer is not None and outer.thread != threading.get_ident():
            raise BadValue(
                f"two threads run {type(self.model).__name__} at the same time while it is looked into: what one "
                "sees or changes would be mixed up with the other. Let one wait, or give each a model of its own."
            )
        self._turns.clear()
        if module is self.model:
            self._passes.clear()  # an interrupted pass has not said that it ended
        elif outer is not None:
            outer.inner = True  # which knows better what the layers are given
        under = tuple(sorted(set(self._taken.values())))
        self._passes.append(ForwardPass(module, args, kwargs, under, outermost=not self._passes))

    def _end(self, module: Any, args: Any, output: Any) -> None:
        if not self._passes or self._passes[-1].thread != threading.get_ident():
            return  # this one has been refused, beside another thread's
        ended = self._passes.pop()
        if output is not None and not ended.inner:  # None where the pass has failed
            ended.note(ended.cache if ended.cache is not None else _cache_in(output))

    def places(self, call: Call) -> tuple[Places, Places]:
        """Where the queries and the keys of an attention stand."""
        running, queries, keys = self._pass(), call.query_BHNR.shape[2], call.key_BGMR.shape[2]
        at = running.queries(queries)
        return at, running.other_keys(keys) if call.site.cross else running.keys(keys, queries)

    def known_past(self) -> int:
        """How many tokens the cache holds, if it was filled under the rewrites that are in force."""
        running = self._pass()
        return running.whole.count - (running.tokens or 0) if running.past != 0 else 0

    def _pass(self) -> ForwardPass:
        if self.running is None:
            raise BadValue(
                f"a part of {type(self.model).__name__} was run by itself: where its tokens stand is not known. "
                "Run the whole model."
            )
        return self.running

    @contextmanager
    def rewriting(self, rewrite: Rewrite | None, layers: Iterable[int]) -> Iterator[None]:
        """Let a rewrite (or hooks: None) change the attention of these layers; each layer has one at a time."""
        taken = sorted(set(layers) & self._taken.keys())
        if taken:
            raise BadValue(
                f"the attention of layer {taken[0]} is computed otherwise already: by another encoding that is in "
                "force, or by a diagonal that is installed. End that first."
            )
        number, added = next(_NUMBERS), [] if rewrite is None else [rewrite]
        self._taken.update(dict.fromkeys(layers, number))
        self.rewrites += added
        try:
            yield
        finally:
            self._taken = {layer: other for layer, other in self._taken.items() if other != number}
            self.rewrites[:] = [each for each in self.rewrites if each not in added]

    def site_of(self, module: Any) -> Site:
        """The site of the attention that this module is about to compute."""
        turn = self._turns.get(module, 0)
        self._turns[module] = turn + 1
        known = self._of_module.get(module)
        if known is None:  # during discovery
            return Site(-1, turn, module, "", 0, 0, 0, 0, False, "interface")
        return known[turn % len(known)]

    def attend(self, inner: Callable[..., Any], module: Any, q: Any, k: Any, v: Any, mask: Any, **kwargs: Any) -> Any:
        """The attention function: what was there before, shown to observers and passed through edits."""
        site = self.site_of(module)
        call = Call(
            site=site,
            query_BHNR=q,
            key_BGMR=k,
            value_BGMV=v,
            mask=mask,
            causal=_causal(module, kwargs, q, mask),
            bias=kwargs.get("position_bias"),
            scaling=kwargs["scaling"] if kwargs.get("scaling") is not None else q.shape[-1] ** -0.5,
            softcap=kwargs.get("softcap"),
            sinks=kwargs.get("s_aux"),
        )
        weights = None
        for rewrite in self.rewrites:
            output = rewrite(call)
            if output is not None:
                break
        else:
            output, weights = inner(module, q, k, v, mask, **kwargs)
        return self._passed(call, output), weights

    def _passed(self, call: Call, output: Any) -> Any:
        for edit in self.edits:
            output = edit(call.site, output)
        for observer in tuple(self.observers):
            observer(call, output)
        return output

    # -------------------------------------------------- models with no interface
    def _enters(self, module: Any, args: Any, kwargs: Any) -> None:
        known = self._of_module.get(module)
        for observer in self.input_observers if known else ():
            observer(known[0], args[0] if args else kwargs["hidden_states"])  # type: ignore[index]

    def _leaves(self, module: Any) -> Callable[..., Any]:
        heads = _own_heads(module)

        def leaves(projection: Any, args: Any) -> Any:
            flat = args[0]
            split = flat.reshape(*flat.shape[:2], heads, -1)
            call = Call(self.site_of(module), None, None, None, None, True, None, 0.0, None, None)
            output = self._passed(call, split)
            return None if output is split else (output.reshape(flat.shape), *args[1:])

        return leaves

    def _lab_attend(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def attend(module: Any, q: Any, k: Any, v: Any, mask: Any = None, **kwargs: Any) -> Any:
            return self.attend(inner, module, q, k, v, mask, **kwargs)

        return attend


_ATTACHED: WeakKeyDictionary[Any, Instrument] = WeakKeyDictionary()
_NUMBERS = count()


@dataclass(eq=False)
class _Open:
    """An attached model: the thread it belongs to, and how many use it there, or wherever it is run."""

    instrument: Instrument
    thread: threading.Thread
    stack: ExitStack = field(default_factory=ExitStack)
    users: int = 0
    lasting: int = 0


_OPEN: WeakKeyDictionary[Any, _Open] = WeakKeyDictionary()
_LOCK = threading.RLock()  # for what is global: the open models, and the tables of transformers


@contextmanager
def attached(model: Any, *, lasting: bool = False) -> Iterator[Instrument]:
    """The instrument of a model (or `Reference`); the same one for all who use the model at the same time.

    They must be of one thread. A change that is `lasting` belongs to the model, and to no thread.
    """
    require("torch")
    module = model.model if isinstance(model, Reference) else model
    if not hasattr(module, "register_forward_pre_hook"):
        raise BadConfig(f"a torch model was expected, got {type(module).__name__}.")
    found = _opened(module, lasting=lasting)
    try:
        yield found.instrument
    finally:
        with _LOCK:
            found.users -= not lasting
            found.lasting -= lasting
            if not found.users and not found.lasting:
                _OPEN.pop(module, None)
                found.stack.close()


def _opened(module: Any, *, lasting: bool) -> _Open:
    """The model's entry, with one user more; made by the first."""
    with _LOCK:  # held while the model is prepared: another thread must meet it ready, or not at all
        found = _OPEN.get(module)
        if found is None:
            if module.training:
                raise BadConfig(
                    "the model is in training mode, where dropout changes every run. Call model.eval() first."
                )
            found = _Open(Instrument(module), threading.current_thread())
            found.stack.enter_context(found.instrument._installed())
            _OPEN[module] = found
        elif found.users and found.thread is not threading.current_thread() and not lasting:
            raise BadValue(
                f"{type(module).__name__} is being looked into by thread '{found.thread.name}', and a model belongs "
                "to one thread at a time. Wait until that thread has left its block, or give each a model of its own."
            )
        if not found.users:
            found.thread = threading.current_thread()
        found.users += not lasting
        found.lasting += lasting
        return found


def dummy_inputs(model: Any) -> dict[str, Any]:
    """A few tokens that any text model takes."""
    import torch

    ids = torch.tensor([[1, 2, 3, 1]], device=home(model))
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) and _has_decoder(model):
        return {"input_ids": ids, "decoder_input_ids": ids}
    return {"input_ids": ids}


# -------------------------------------------------------------------- inside
def _through_interface(model: Any) -> Any:
    """Point every configuration of a model at our functions, and back."""

    @contextmanager
    def switched() -> Iterator[None]:
        require("transformers")
        configs = _configs(model)
        before = [config._attn_implementation for config in configs]
        strange = [name for name in before if name not in WRAPPED]
        if any(str(name).startswith(PREFIX) for name in strange):
            raise BadConfig(
                f"{type(model).__name__} is part of a model that is being looked into already, or a copy that was "
                "made meanwhile. Use the model that was given first, or copy it outside of the block."
            )
        if strange or not configs:
            said = f"runs its attention as '{strange[0]}'" if strange else "has no configuration of transformers"
            raise BadConfig(
                f"{type(model).__name__} {said}; 'sdpa' or 'eager' can be looked into. "
                "Load it with attn_implementation='sdpa'."
            )
        with _registered():
            try:
                for config, name in zip(configs, before, strict=True):
                    config._attn_implementation = PREFIX + name
                yield
            finally:
                for config, name in zip(configs, before, strict=True):
                    config._attn_implementation = name

    return switched()


def _cache_in(output: Any) -> Any:
    """The cache that a pass has made for itself and hands out."""
    found = getattr(output, "past_key_values", None)
    parts = output if isinstance(output, tuple) else ()
    return found if found is not None else next((part for part in parts if hasattr(part, "get_seq_length")), None)


def _configs(model: Any) -> list[Any]:
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            found.setdefault(id(config), config)
    return list(found.values())


_users = 0  # how many models have our functions in the tables of transformers


@contextmanager
def _registered() -> Iterator[None]:
    """Our attention and mask functions in the tables of transformers, for as long as a model needs them."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    global _users
    with _LOCK:
        _users += 1
        for name in WRAPPED:
            AttentionInterface.register(PREFIX + name, _entry(name))
            # Without a mask function of its own a causal model would silently see the future.
            AttentionMaskInterface.register(PREFIX + name, ALL_MASK_ATTENTION_FUNCTIONS[name])
    try:
        yield
    finally:
        with _LOCK:
            _users -= 1
            for table in (AttentionInterface, AttentionMaskInterface) if not _users else ():
                for name in WRAPPED:
                    table._global_mapping.pop(PREFIX + name, None)  # `register` has no opposite


def _entry(name: str) -> Callable[..., Any]:
    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        inner = _inner(module, name)
        instrument = _ATTACHED.get(module)
        if instrument is None:  # a copy of the model that nobody looks at
            return inner(module, query, key, value, attention_mask, **kwargs)
        return instrument.attend(inner, module, query, key, value, attention_mask, **kwargs)

    return attention


def _inner(module: Any, name: str) -> Callable[..., Any]:
    """What the module would have called: its file may have functions of its own."""
    home = sys.modules[type(module).__module__]
    eager = getattr(home, "eager_attention_forward", None)
    return home.ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)


def _causal(module: Any, kwargs: dict[str, Any], query: Any, mask: Any) -> bool:
    """Whether later keys are hidden without a mask that says so: the rule of transformers' SDPA function."""
    told = kwargs.get("is_causal")
    told = getattr(module, "is_causal", True) if told is None else told
    return bool(mask is None and told and query.shape[2] > 1)


def _is_lab(module: Any) -> bool:
    return type(module).__module__.startswith("toposcope.lab") and callable(getattr(module, "attend", None))


def _own_heads(module: Any) -> int:
    for name in ("num_heads", "n_heads", "num_attention_heads"):
        if isinstance(getattr(module, name, None), int):
            return int(getattr(module, name))
    raise BadConfig(f"{type(module).__name__} does not say how many heads it has.")


def _has_decoder(model: Any) -> bool:
    return hasattr(model, "get_decoder") and not type(model).__name__.endswith("EncoderModel")


@contextmanager
def _hook(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _replaced_attend(module: Any, attend: Callable[..., Any]) -> Iterator[None]:
    before = module.attend
    module.attend = attend
    try:
        yield
    finally:
        module.attend = before
