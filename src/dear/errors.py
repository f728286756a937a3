"""Every error the library raises on purpose: a `DearError` that is also the standard exception one would expect.

A message says what is wrong, where, and what to do next, in one sentence. What to do is said in the language of the
place: `option(roles="MAP")` is `--roles MAP` on the command line and `roles='MAP'` in Python.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

_typed = False
"""Whether a person types commands; otherwise they write Python."""


class DearError(Exception):
    """Base of every error that DeAR raises for invalid input or an unsuitable environment."""


class DearWarning(UserWarning):
    """Something works, but probably not as intended."""


class ConfigError(DearError, ValueError):
    """A setting has a value it cannot have."""


class BackboneError(DearError, ValueError):
    """A backbone is unknown, unsupported, or named with the wrong weights."""


class HubError(DearError, ConnectionError):
    """Weights had to be downloaded and the hub did not answer."""


class RoleMapError(DearError, ValueError):
    """A role map is malformed or does not fit the backbone."""


class RolesError(DearError, ValueError):
    """The roles of heads cannot be found from what was given."""


class MissingExtraError(DearError, ImportError):
    """An optional part of the library needs packages that are not installed."""


class DataError(DearError, ValueError):
    """A data set is missing, incomplete or not in the layout it should have."""


class ImageError(DearError, ValueError):
    """An image, or a folder of images, cannot be read."""


class ClassListError(DearError, ValueError):
    """The class names or the prompt template cannot be used."""


class CacheError(DearError, OSError):
    """A cache on disk cannot be read, written or used for what is asked."""


class InputError(DearError, ValueError):
    """Images or labels do not have the form the backbone reads."""


class TrainingError(DearError, RuntimeError):
    """A training cannot continue."""


class CheckpointError(DearError, RuntimeError):
    """A checkpoint cannot be written, or cannot be used."""


class ArtefactError(DearError, ValueError):
    """A saved adapter cannot be used; its children say why."""


class CorruptArtefactError(ArtefactError):
    """Files of the adapter are missing, truncated or altered."""


class ForeignArtefactError(ArtefactError):
    """The folder holds something that DeAR did not write."""


class NewerFormatError(ArtefactError):
    """The adapter was written by a newer version of the library."""


class BackboneMismatchError(ArtefactError):
    """The adapter was trained on another backbone than the one at hand."""


class OverwriteError(ArtefactError, FileExistsError):
    """Saving would replace something else."""


class FolderBusyError(DearError, RuntimeError):
    """Another process writes in the folder."""


REFUSALS = (ConfigError, RoleMapError, BackboneError, HubError, MissingExtraError, ClassListError, TrainingError)
"""How a method says, in one sentence, that it cannot be run as it was asked for."""


@contextmanager
def typed(commands: bool = True) -> Iterator[None]:
    """Have messages speak of options instead of arguments, in all threads."""
    global _typed
    before, _typed = _typed, commands
    try:
        yield
    finally:
        _typed = before


def is_typed() -> bool:
    """Whether messages speak to someone who types commands."""
    return _typed


def option(**values: object) -> str:
    """Options with their values as one gives them here: `--clip NAME --resume`, or `clip='NAME', resume=True`."""
    if not _typed:
        return ", ".join(f"{name}={value!r}" for name, value in values.items())
    names = {name: f"--{name.replace('_', '-')}" for name in values}
    return " ".join(names[k] if value is True else f"{names[k]} {_word(value)}" for k, value in values.items())


def setting(**values: object) -> str:
    """Settings of a method as one gives them here: `--set mask=all_mixed`, or `mask='all_mixed'`."""
    if not _typed:
        return option(**values)
    return " ".join(f"--set {name}={_word(value)}" for name, value in values.items())


def backbone(name: str, pretrained: str | None = None) -> str:
    """A backbone as one asks for it here: `--clip NAME --pretrained TAG`, or `load_clip('NAME', pretrained='TAG')`."""
    weights = {} if pretrained is None else {"pretrained": pretrained}
    if _typed:
        return option(clip=name, **weights)
    return f"load_clip({', '.join([repr(name), *([option(**weights)] if weights else [])])})"


def _word(value: object) -> str:
    return shlex.quote(str(value).lower() if isinstance(value, bool) else str(value))


def did_you_mean(word: object, known: Iterable[str], *, most: int = 3) -> str:
    """Return ' Did you mean …?' with the nearest known words, or an empty text if none is near."""
    lowered = {name.lower(): name for name in known}
    near = [lowered[match] for match in get_close_matches(str(word).lower(), lowered, n=most, cutoff=0.7)]
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
