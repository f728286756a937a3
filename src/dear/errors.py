"""Every error the library raises on purpose: a `DearError` that is also the standard exception one would expect.

A message says what is wrong, where, and what to do next, in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class DearError(Exception):
    """Base of every error that DeAR raises for bad input or a bad surrounding."""


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


def did_you_mean(word: object, known: Iterable[str], *, most: int = 3) -> str:
    """Return ' Did you mean …?' with the nearest known words, or an empty text if none is near."""
    lowered = {name.lower(): name for name in known}
    near = [lowered[match] for match in get_close_matches(str(word).lower(), lowered, n=most, cutoff=0.7)]
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
