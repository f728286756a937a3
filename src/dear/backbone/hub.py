"""A quick check that the model hub answers, made once before a download, so that nobody waits for a timeout."""

from __future__ import annotations

from collections.abc import Sequence

from huggingface_hub import get_session, hf_hub_url, try_to_load_from_cache

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
