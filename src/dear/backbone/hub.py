"""The model hub: a quick check that it answers, made once before a download, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from huggingface_hub import get_session, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

from dear.errors import HubError, backbone, option
from dear.progress.stages import logger

WHOLE = ("open_clip_config.json", "open_clip_model.safetensors")
"""Files that a folder needs for use as local-dir:FOLDER."""
PATIENCE = 3.0
"""Seconds to wait for the hub's first answer."""


def ask(repository: str, files: Sequence[str], name: str) -> None:
    """Raise `HubError` if files have to be downloaded and the hub does not answer; any answer is accepted.

    The request is sent without the hub library's headers, because building those headers sends a request of its own.
    If the hub refuses, the download itself reports why.
    """
    weights = {files[-1], *(["open_clip_pytorch_model.bin"] if files == WHOLE else [])}
    if any(isinstance(try_to_load_from_cache(repository, file), str) for file in weights):
        return
    try:
        answer = get_session().head(hf_hub_url(repository, files[-1]), timeout=PATIENCE)
    except Exception as error:  # without a network, the libraries raise many kinds of errors
        raise HubError(out_of_reach(name, repository, files)) from error
    size = answer.headers.get("x-linked-size", "")
    download_size = f", {int(size) / 1e6:.0f} MB" if size.isdecimal() else ""
    logger.info("downloading %s from huggingface.co/%s%s", name, repository, download_size)


def out_of_reach(name: str, repository: str, files: Sequence[str]) -> str:
    """The error message, one sentence, for a hub that cannot be reached."""
    if not repository:
        return f"{name} has to be downloaded and the hub cannot be reached: check the network."
    fetch = " and ".join(files)
    whole = tuple(files) == WHOLE
    use = backbone("local-dir:FOLDER") if whole else option(pretrained="FILE")
    return (
        f"{name} has to be downloaded from https://huggingface.co/{repository} and the hub cannot be reached: check "
        f"the network, or fetch {fetch} from there with another machine and use {'the folder' if whole else 'it'} "
        f"with {use}."
    )


def says_not_found(error: BaseException) -> bool:
    """Whether the hub itself answered "not found"; a missing local copy does not count."""
    missing = isinstance(error, RepositoryNotFoundError | EntryNotFoundError)
    return missing and not isinstance(error, LocalEntryNotFoundError)


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error, the error that it was raised from, and so on to the first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def first_lines(error: BaseException) -> str:
    """The first two lines of an error message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:240].rstrip(".") or type(error).__name__
