"""The model hub as `HF_ENDPOINT` configures it: one request at a time, and what its refusals mean.

Requests use the session of the hub library, with its proxies and certificates, but not the library's own retries: those
wait for minutes without a word. Its headers are not used either, because building them sends a request of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from huggingface_hub import constants, get_session, get_token

from dear.errors import BackboneError, DearError, HubError, backbone, option
from dear.progress.stages import remark, stage

CONFIG_FILE = "open_clip_config.json"
WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
"""The weights of a repository, the preferred file first; the second is pickled."""
WHOLE = (CONFIG_FILE, WEIGHTS[0])
"""Files that a folder needs for use as local-dir:FOLDER."""
PATIENCE = 5.0
"""Seconds to wait for the hub's first answer."""
LONGEST_WAIT = 600
"""Seconds; a rate limit that lasts longer is not waited for."""
USUAL_WAIT = 60
"""Seconds to wait if the hub does not say how long."""
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
sleep = time.sleep


@dataclass(frozen=True)
class Wanted:
    """One file that is needed from a repository."""

    what: str
    """The backbone, as it is named in messages."""
    repository: str
    names: tuple[str, ...]
    """Names of the file, the preferred one first."""
    revision: str = "main"
    by_hand: tuple[str, ...] = WHOLE
    """Files that a person without a network fetches with another machine."""
    optional: bool = False
    """Whether to do without it rather than to wait."""
    kind: str = "OpenCLIP model"
    """What the repository should have, as it is named in messages."""
    use: str | None = None
    """How to use what was fetched by hand; by default as a backbone."""
    missing: type[DearError] = BackboneError
    """Raised if the hub has no such thing."""

    @property
    def page(self) -> str:
        """The address of the repository."""
        return f"{endpoint()}/{self.repository}"


def endpoint() -> str:
    """The address of the hub, without a password."""
    return without_password(constants.ENDPOINT)


def without_password(address: str) -> str:
    """An address that can be shown."""
    return re.sub(r"//[^/@]*@", "//", address)


@contextmanager
def answer_to(
    wanted: Wanted, url: str, headers: Mapping[str, str] | None = None, timeout: float = PATIENCE
) -> Iterator[Any]:
    """The hub's answer to a GET request, as a stream; a rate limit is waited for once, any other refusal is raised."""
    for last in (False, True):
        with ExitStack() as stack:
            request = get_session().stream("GET", url, headers=_headers(headers or {}), timeout=timeout)
            answer = stack.enter_context(request)
            seconds = _seconds_to_wait(answer.headers)
            if last or wanted.optional or answer.status_code != 429 or seconds > LONGEST_WAIT:
                if answer.status_code >= 400:
                    raise refusal(wanted, answer.status_code, answer.headers)
                yield answer
                return
        _wait(seconds)


def offline_setting() -> str | None:
    """The environment variable that forbids requests, as NAME=VALUE; None if they are allowed."""
    if not constants.is_offline_mode():
        return None
    return next((f"{name}={os.environ[name]}" for name in OFFLINE_VARIABLES if os.environ.get(name)), "offline mode")


def check_online(wanted: Wanted) -> None:
    """Raise `HubError` if an environment variable forbids downloads."""
    setting = offline_setting()
    if setting is None:
        return
    raise HubError(
        f"{wanted.what} is not in the cache {constants.HF_HUB_CACHE}, and {setting} forbids downloading it: unset "
        f"{setting.partition('=')[0]}, or {_by_hand(wanted, wanted.page)}."
    )


def out_of_reach(wanted: Wanted) -> HubError:
    """The error for a hub that cannot be reached."""
    return HubError(
        f"{wanted.what} has to be downloaded from {wanted.page} and the hub cannot be reached: check the network, or "
        f"{_by_hand(wanted)}."
    )


def refusal(wanted: Wanted, status: int, headers: Mapping[str, str]) -> DearError:
    """The error for an answer that is not a file."""
    code, message = headers.get("x-error-code"), headers.get("x-error-message") or ""
    if code == "GatedRepo":
        return HubError(
            f"{wanted.what} has terms of use: accept them at {wanted.page}, then log in with `hf auth login` or set "
            "HF_TOKEN, and run the same command again."
        )
    if message.startswith("Invalid credentials"):
        return HubError(
            f"The hub {endpoint()} refuses your token: log in again with `hf auth login`, or unset HF_TOKEN."
        )
    if code == "EntryNotFound":
        return wanted.missing(f"{wanted.page} has no {wanted.names[0]}: check the name of the repository.")
    if status in (401, 404):
        return wanted.missing(
            f"The hub has no {wanted.kind} at {wanted.what}: check the spelling, or log in with `hf auth login` if "
            f"{wanted.page} is private."
        )
    if status == 429:
        return HubError(
            f"The hub {endpoint()} accepts no more requests from here for {_seconds_to_wait(headers)} s: run "
            "the same command again then, or log in with `hf auth login`, which raises the limit."
        )
    reason = f"{status} ({message})" if message else str(status)
    return HubError(f"The hub refuses {wanted.page} with error {reason}: try again later, or {_by_hand(wanted)}.")


def _by_hand(wanted: Wanted, place: str = "there") -> str:
    """What to do on a machine without a network."""
    whole = len(wanted.by_hand) > 1
    use = backbone("local-dir:FOLDER") if whole else option(pretrained="FILE")
    used = wanted.use or f"use {'the folder' if whole else 'it'} with {use}"
    return f"fetch {' and '.join(wanted.by_hand)} from {place} with another machine and {used}"


def _headers(more: Mapping[str, str]) -> dict[str, str]:
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    login = {"authorization": f"Bearer {token}"} if token else {}
    return {"user-agent": "dear-vlm", **login, **more}


def _seconds_to_wait(headers: Mapping[str, str]) -> int:
    """How long a rate limit lasts, by the headers `RateLimit` (as `"api";r=0;t=120`) or `Retry-After`."""
    found = re.search(r";\s*t\s*=\s*(\d+)", headers.get("ratelimit") or "")
    after = re.fullmatch(r"\s*(\d+)\s*", headers.get("retry-after") or "")
    match = found or after
    return int(match[1]) if match else USUAL_WAIT


def _wait(seconds: int) -> None:
    """Wait for the end of a rate limit, and say so."""
    remark(f"rate limited by {endpoint()}, waiting {seconds} s")
    with stage("rate limited, waiting", seconds, unit="s") as advance:
        for second in range(seconds):
            sleep(1)
            advance(second + 1)


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error, the error that it was raised from, and so on to the first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def first_lines(error: BaseException) -> str:
    """The first two lines of an error message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:240].rstrip(".") or type(error).__name__
