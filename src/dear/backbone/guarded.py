"""Guards for calls of other libraries: quiet, one thread at a time, no code of strangers, errors as one sentence."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import RLock

from dear.backbone.hub import causes_of, first_lines
from dear.errors import BackboneError, HubError

_ALONE = RLock()
"""Held while something of the whole process is changed, such as its logging, random numbers and standard output."""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress log messages, and remove the handlers that libraries add to the root logger; one thread at a time."""
    root = logging.getLogger()
    with _ALONE:
        handlers, disabled = list(root.handlers), root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)
            root.handlers[:] = handlers


@contextmanager
def without_code(name: str) -> Iterator[None]:
    """Let transformers refuse a model with Python code of its own; by default it asks whether to run the code."""
    if find_spec("transformers") is None:
        yield
        return
    from transformers import dynamic_module_utils

    with _ALONE:
        before = dynamic_module_utils.TIME_OUT_REMOTE_CODE
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0  # seconds to wait for an answer
        try:
            yield
        except Exception as error:
            if not any("trust_remote_code" in str(one) for one in causes_of(error)):
                raise
            raise BackboneError(
                f"{name} reads text with a model or tokenizer that has Python code of its own, which is never run: "
                "use a CLIP whose text tower is part of transformers."
            ) from error
        finally:
            dynamic_module_utils.TIME_OUT_REMOTE_CODE = before


@contextmanager
def one_sentence(
    name: str, pretrained: str | None = None, *, what: str = "model", weights: Path | None = None
) -> Iterator[None]:
    """Convert any error of open_clip and the hub into a `BackboneError` or `HubError` of one sentence."""
    full_name = f"{name} ({pretrained})" if pretrained else name
    try:
        yield
    except BackboneError:
        raise
    except Exception as error:
        causes = list(causes_of(error))
        if what == "tokenizer" and not name.startswith("local-dir:") and any(isinstance(e, OSError) for e in causes):
            raise HubError(
                f"The tokenizer of {full_name} has to be downloaded and the hub cannot be reached: check the network."
            ) from error
        place = f" from {weights}" if weights else ""
        raise BackboneError(f"The {what} of {full_name} cannot be loaded{place}: {first_lines(causes[-1])}.") from error
