"""Every mistake a user can make, as an exception whose message says what to do about it.

A `ToposcopeError` is printed by the command line as one paragraph, without a traceback, with exit code 2.
Its message names what was given, what was expected, and what to do. Each class has a page in `error_pages/`, which
'toposcope explain' prints. Anything else that escapes is a bug.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ToposcopeError(Exception):
    """Base of all errors caused by what the user gave us."""


class NotFound(ToposcopeError):
    """The path or the model name does not exist, or a directory holds no weights."""


class BadFile(ToposcopeError):
    """A file is damaged, truncated, mislabelled or hostile: it cannot be what its name says."""


class HubError(ToposcopeError):
    """The hub cannot be reached, keeps a model from us, or does not answer as it should."""


class RefusedPickle(ToposcopeError):
    """A pickle holds more than tensors; loading it could run code, so it is not loaded."""


class MissingExtra(ToposcopeError):
    """The work needs an optional dependency that is not installed."""


class BadConfig(ToposcopeError):
    """A model's configuration lacks a setting, or holds one that makes no sense."""


class UnknownFamily(ToposcopeError):
    """No adapter knows this architecture."""


class MissingTensor(ToposcopeError):
    """The adapter expected a tensor that the checkpoint does not hold, or holds in another shape."""


class BadWeights(ToposcopeError):
    """A tensor holds NaN, infinity, or numbers whose products are no longer numbers."""


class BadEncoding(ToposcopeError):
    """An encoding's name or parameters are wrong."""


class BadValue(ToposcopeError):
    """An argument of a command or of a library call is wrong."""


FEW, MOST = 8, 40  # known names that are told beside a guess, and at all


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The nearest known names, or all when none is near; both where they are few, some where they are many."""
    names = sorted(set(known))
    guess = nearest(given, names)
    if guess and len(names) > FEW:
        return guess
    listed = f"Known: {', '.join(names)}." if len(names) <= MOST else f"Known: {', '.join(names[:FEW])}, ..."
    return f"{guess} {listed}".lstrip() if len(names) > 1 or not guess else guess


def nearest(given: str, known: Iterable[str]) -> str:
    """A question with the nearest known names; empty where none is near."""
    near = difflib.get_close_matches(given.lower(), sorted(set(known)), n=3, cutoff=0.55)
    return f"Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


def kinds() -> dict[str, str]:
    """The kinds of errors, in a sentence each."""
    return {each.__name__: each.__doc__ or "" for each in ToposcopeError.__subclasses__()}


def page(name: str) -> str:
    """The page of an error: how it looks, its cause, its cure."""
    from importlib import resources

    known = kinds()
    if name not in known:
        raise BadValue(f"there is no error '{name}'. {did_you_mean(name, known)}")
    return resources.files("toposcope.core").joinpath("error_pages", f"{name}.md").read_text(encoding="utf-8")
