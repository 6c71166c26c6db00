"""Look into a running model, and change what its heads hand on, without changing the model.

The model is given an attention function of ours, registered with transformers, that calls the one it had before and
returns what that returned: with nothing asked for, every number stays as it was. Observers are shown queries, keys,
values, mask and output of each attention; edits may replace the heads' outputs before the output projection.
When the last user leaves, the model is as it was found.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from toposcope.errors import BadConfig
from toposcope.models.load import Reference, require
from toposcope.models.sites import BYPASSING, Route, Site, bypassing, no_sites

PREFIX = "toposcope_"
WRAPPED = ("sdpa", "eager")
_CROSS = re.compile(r"cross|encdec|encoder_attn", re.IGNORECASE)


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
        self.rewrites: list[Rewrite] = []
        self.reader: Any | None = None  # kept by content.py
        self.position_ids: Any | None = None
        self.sites: tuple[Site, ...] = ()
        self._of_module: WeakKeyDictionary[Any, list[Site]] = WeakKeyDictionary()
        self._turns: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    # ------------------------------------------------------------- attaching
    @contextmanager
    def _installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(_hook(self.model.register_forward_pre_hook(self._begin, with_kwargs=True)))
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
        self._turns.clear()
        self.position_ids = kwargs.get("position_ids")

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
_OPEN: WeakKeyDictionary[Any, tuple[Instrument, ExitStack, list[int]]] = WeakKeyDictionary()


@contextmanager
def attached(model: Any) -> Iterator[Instrument]:
    """The instrument of a model (or `Reference`); the same one for all who use the model at the same time."""
    require("torch")
    module = model.model if isinstance(model, Reference) else model
    if module not in _OPEN:
        if not hasattr(module, "register_forward_pre_hook"):
            raise BadConfig(f"a torch model was expected, got {type(module).__name__}.")
        if module.training:
            raise BadConfig(
                "the model is in training mode, where dropout changes every run. Call model.eval() first."
            )
        instrument, stack = Instrument(module), ExitStack()
        stack.enter_context(instrument._installed())
        _OPEN[module] = (instrument, stack, [0])
    instrument, stack, users = _OPEN[module]
    users[0] += 1
    try:
        yield instrument
    finally:
        users[0] -= 1
        if not users[0]:
            _OPEN.pop(module, None)
            stack.close()


def dummy_inputs(model: Any) -> dict[str, Any]:
    """A few tokens that any text model takes."""
    import torch

    ids = torch.tensor([[1, 2, 3, 1]])
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
        if strange or not configs:
            said = f"runs its attention as '{strange[0]}'" if strange else "has no configuration of transformers"
            raise BadConfig(
                f"{type(model).__name__} {said}; 'sdpa' or 'eager' can be looked into. "
                "Load it with attn_implementation='sdpa'."
            )
        _register()
        try:
            for config, name in zip(configs, before, strict=True):
                config._attn_implementation = PREFIX + name
            yield
        finally:
            for config, name in zip(configs, before, strict=True):
                config._attn_implementation = name

    return switched()


def _configs(model: Any) -> list[Any]:
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation"):
            found.setdefault(id(config), config)
    return list(found.values())


def _register() -> None:
    """Our attention and mask functions, one pair for each implementation they call in turn."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    for name in WRAPPED:
        AttentionInterface.register(PREFIX + name, _entry(name))
        # Without a mask function of its own a causal model would silently see the future.
        AttentionMaskInterface.register(PREFIX + name, ALL_MASK_ATTENTION_FUNCTIONS[name])


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
