"""Exceptions of the library, and helpers for their messages. Each is a `DearError` and a matching built-in exception.

A message is one sentence: what is wrong, where, and what to do next. Options are written as the user writes them:
`option(roles="MAP")` is `--roles MAP` on the command line and `roles='MAP'` in Python.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

_typed = False
"""Whether messages are for the command line; otherwise they are for Python."""


LONGEST = 2000
"""Most letters of a message; names in files of strangers can have millions."""
LINE_OF_A_NAME = r"[\r\n]+(?!- )"
"""A line break that does not begin an entry of a list."""


class DearError(Exception):
    """Base class of all errors that DeAR raises for invalid input or an unsuitable environment."""

    def __str__(self) -> str:
        """The message without line breaks that are part of a name; a far too long one without its middle."""
        text = re.sub(LINE_OF_A_NAME, " ", super().__str__())
        return text if len(text) <= LONGEST else f"{text[: LONGEST - 500]} … {text[-490:]}"


class DearWarning(UserWarning):
    """Something works, but probably not as intended."""


class ConfigError(DearError, ValueError):
    """A setting is unknown or has an invalid value."""


class BackboneError(DearError, ValueError):
    """A backbone is unknown or unsupported, or its weights do not fit it."""


class PickledWeightsError(BackboneError):
    """Weights are in a format that can contain code, which has to be allowed."""


class HubError(DearError, ConnectionError):
    """Weights had to be downloaded and the hub did not answer."""


class RoleMapError(DearError, ValueError):
    """A role map is malformed or does not fit the backbone."""


class RolesError(DearError, ValueError):
    """The roles of heads cannot be determined from the input."""


class MissingExtraError(DearError, ImportError):
    """A feature needs optional packages that are not installed."""


class ClusterError(DearError, RuntimeError):
    """A cluster does not answer, refuses the work, or has no room for it."""


class DataError(DearError, ValueError):
    """A data set is missing, incomplete or in an unexpected layout."""


class ImageError(DearError, ValueError):
    """An image, or a folder of images, cannot be read."""


class ClassListError(DearError, ValueError):
    """The class names or the prompt template cannot be used."""


class CacheError(DearError, OSError):
    """A cache on disk cannot be read or written, or does not fit the request."""


class InputError(DearError, ValueError):
    """Images or labels have the wrong type, shape or device."""


class TrainingError(DearError, RuntimeError):
    """Training cannot continue."""


class CheckpointError(DearError, RuntimeError):
    """A checkpoint cannot be written, or cannot be used."""


class ArtefactError(DearError, ValueError):
    """A saved adapter cannot be used; subclasses give the reason."""


class CorruptArtefactError(ArtefactError):
    """Files of the adapter are missing, truncated or altered."""


class ForeignArtefactError(ArtefactError):
    """The folder was not written by DeAR."""


class NewerFormatError(ArtefactError):
    """The adapter was written by a newer version of the library."""


class BackboneMismatchError(ArtefactError):
    """The adapter was trained on a different backbone."""


class OverwriteError(ArtefactError, FileExistsError):
    """Saving would overwrite existing files."""


class ExportError(DearError, RuntimeError):
    """A model cannot be exported, or what was exported computes something else."""


class FolderError(DearError, OSError):
    """A file in an output folder cannot be read or written."""


class FolderBusyError(DearError, RuntimeError):
    """Another process is writing to the folder."""


class Terminated(KeyboardInterrupt):  # as Ctrl-C, an event rather than an error
    """A signal asked this process to end."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


REFUSALS = (ConfigError, RoleMapError, BackboneError, HubError, MissingExtraError, ClassListError, TrainingError)
"""Errors with which a method refuses a run that it does not support."""


@contextmanager
def typed(commands: bool = True) -> Iterator[None]:
    """Within this context, write messages for the command line instead of Python, in all threads."""
    global _typed
    before, _typed = _typed, commands
    try:
        yield
    finally:
        _typed = before


def is_typed() -> bool:
    """Whether messages are written for the command line."""
    return _typed


def option(**values: object) -> str:
    """Options with values, as the user writes them: `--clip NAME --resume`, or `clip='NAME', resume=True`."""
    if not _typed:
        return ", ".join(f"{name}={value!r}" for name, value in values.items())
    names = {name: f"--{name.replace('_', '-')}" for name in values}
    return " ".join(names[k] if value is True else f"{names[k]} {_word(value)}" for k, value in values.items())


def setting(**values: object) -> str:
    """Settings of a method, as the user writes them: `--set mask=all_mixed`, or `mask='all_mixed'`."""
    if not _typed:
        return option(**values)
    return " ".join(f"--set {name}={_word(value)}" for name, value in values.items())


def backbone(name: str, pretrained: str | None = None) -> str:
    """A backbone, as the user writes it: `--clip NAME --pretrained TAG`, or `load_clip('NAME', pretrained='TAG')`."""
    weights = {} if pretrained is None else {"pretrained": pretrained}
    if _typed:
        return option(clip=name, **weights)
    return f"load_clip({', '.join([repr(name), *([option(**weights)] if weights else [])])})"


def _word(value: object) -> str:
    return shlex.quote(str(value).lower() if isinstance(value, bool) else str(value))


def did_you_mean(word: object, known: Iterable[str], *, most: int = 3) -> str:
    """Return " Did you mean …?" with the most similar known words, or "" if none is similar."""
    lowered = {name.lower(): name for name in known}
    near = [lowered[match] for match in get_close_matches(str(word).lower(), lowered, n=most, cutoff=0.7)]
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
