"""Publish an adapter on the hub: one commit with the files of its manifest and a card, and nothing else of the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    EvalResult,
    HfApi,
    constants,
    get_token,
)
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from pydantic import ValidationError

from dear import __version__
from dear.backbone.download import Listing, download, listing
from dear.backbone.hub import causes_of, endpoint, offline_setting
from dear.errors import ArtefactError, ConfigError, DearError, ForeignArtefactError, HubError, OverwriteError, option
from dear.evaluation.results import Scores
from dear.model.artefact import CARD, MANIFEST, TENSORS, Manifest, read_manifest
from dear.model.card import LIBRARY
from dear.model.hub_adapter import PREFIX, HubAdapter, on_hub
from dear.model.sharing import Shared, backbone_name, published_card, shareable, without_paths
from dear.options.commands import Push
from dear.options.reading import check_values
from dear.progress.stages import stage
from dear.storage.documents import parse, read_text
from dear.storage.files import as_folder, is_file

SCORES = "eval.json"
"""Scores in the folder of a run: what `dear eval RUN --json` prints."""
TASK = "image-classification"


@dataclass(frozen=True)
class Pushed:
    """What was published."""

    name: str
    """What `dear.load` accepts: hf-hub:ORG/REPO."""
    page: str
    commit: str
    files: dict[str, int]
    """The files of the commit and their sizes in bytes."""
    notes: tuple[str, ...]
    """What those who load it have to know."""


def push(
    run: str | Path,
    repository: str,
    *,
    private: bool = False,
    scores: str | Path | None = None,
    overwrite: bool = False,
) -> Pushed:
    """Publish the adapter of a run as one commit on the hub: the files of its manifest and its card.

    Shots, run records and paths of this machine are never part of it. The token is that of `hf auth login` or HF_TOKEN.

    Args:
        run: folder of a run or adapter.
        repository: ORG/REPO; it is created if it does not exist.
        private: create it as private; an existing public repository is refused.
        scores: what `dear eval RUN --json` printed, for the card; by default RUN/eval.json if it exists.
        overwrite: replace the files of an adapter that is there already; they stay in the repository's history.
    """
    check_values(Push, repository=repository, private=private, overwrite=overwrite)
    name = on_hub(f"{PREFIX}{repository.removeprefix(PREFIX)}")
    if name is None or "@" in repository:
        raise ConfigError(f"{repository} names a revision: a push adds a commit to main, so write ORG/REPO.")
    folder = as_folder(run)
    shared = shareable(folder)
    page = published_card(shared, name.repository, _results(folder, scores, shared.manifest)).encode()
    files = {**shared.files, CARD: page}
    api = _api(name)
    with stage(f"pushing {name.repository}"), _quiet_library(), _one_sentence(name):
        there = _existing(name, private=private)
        stale = _stale(name, there, files, overwrite=overwrite)
        if there is None:
            api.create_repo(name.repository, private=private or None, exist_ok=False)
        found = api.create_commit(
            name.repository,
            [
                *(CommitOperationAdd(file, data) for file, data in files.items()),
                *(CommitOperationDelete(file) for file in stale),
            ],
            commit_message=f"Adapter {shared.manifest.method} for {backbone_name(shared.manifest)}, dear {__version__}",
            parent_commit=there.commit if there else None,
        )
    sizes = {file: len(data) for file, data in files.items()}
    return Pushed(str(name), name.wanted.page, str(found.oid), sizes, _notes(shared))


def _notes(shared: Shared) -> tuple[str, ...]:
    """What a reader needs besides the repository."""
    return tuple(
        f"the setting {field} was a path and is now {value!r}: others pass it to dear.load with companions=… or moved=…"
        for field, value in shared.replaced.items()
    )


def _api(name: HubAdapter) -> HfApi:
    """The hub library's client; raises `HubError` without a token or if requests are forbidden."""
    if setting := offline_setting():
        raise HubError(
            f"{name.repository} cannot be pushed because {setting} forbids requests: unset {setting.partition('=')[0]}."
        )
    token = get_token()
    if not token:
        raise HubError(
            f"{name.repository} cannot be pushed without a token: log in with `hf auth login`, or set HF_TOKEN to a "
            "token with write access."
        )
    return HfApi(endpoint=constants.ENDPOINT, token=token, library_name=LIBRARY, library_version=__version__)


def _existing(name: HubAdapter, *, private: bool) -> Listing | None:
    """The repository as it is now; None if there is none that this token may see."""
    try:
        there = listing(name.wanted)
    except ForeignArtefactError:
        return None
    if private and not there.private:
        raise OverwriteError(
            f"{name.wanted.page} exists and is public: make it private on its page, choose another name, or leave "
            f"{option(private=True)} out."
        )
    return there


def _stale(name: HubAdapter, there: Listing | None, files: dict[str, bytes], *, overwrite: bool) -> list[str]:
    """Files of an adapter that is there already and which the new one does not have."""
    taken = sorted(set(there.files) & set(files)) if there else []
    if there is None or not taken:
        return []
    if not overwrite:
        raise OverwriteError(
            f"{name.wanted.page} already has {taken[0]}, and nothing was pushed: choose another name, or add "
            f"{option(overwrite=True)}, after which it stays in the repository's history."
        )
    if MANIFEST not in there.files:
        return []
    try:
        earlier = read_manifest(download(name.wanted, there, is_last=False).parent).files
    except ArtefactError:
        return []
    return sorted((set(earlier) & set(there.files)) - set(files))


def _results(folder: Path, scores: str | Path | None, manifest: Manifest) -> Sequence[EvalResult]:
    """The scores of `dear eval RUN --json` in the form of a card; those of another adapter are refused."""
    path = as_folder(scores) if scores is not None else folder / SCORES
    if scores is None and not is_file(path):
        return ()
    advice = f"write it with 'dear eval {folder} --json'"
    try:
        text = read_text(path, error=ConfigError)
    except OSError as error:
        raise ConfigError(f"The scores in {path} cannot be read ({error.strerror}): {advice}.") from None
    content = parse(text, where=str(path), what="a file of scores", error=ConfigError)
    try:
        found = Scores.model_validate_json(json.dumps(content["adapted"]))
        tested = content["adapter_sha256"]
    except (KeyError, TypeError, ValidationError):
        raise ConfigError(f"{path} does not have the scores of an adapter: {advice}.") from None
    if tested != manifest.files[TENSORS].sha256:
        raise ConfigError(f"{path} has the scores of another adapter than the one in {folder}: {advice}.")
    data = str(without_paths(found.data, {}))
    readout, accuracy = next(iter(found.accuracy.items()))
    half = "" if found.half == "all" else f", {found.half} half of the classes"
    return (
        EvalResult(
            task_type=TASK,
            dataset_type=data,
            dataset_name=f"{data}{half}, {found.images:,} images, {len(found.per_class)} classes",
            metric_type="accuracy",
            metric_name=f"top-1 accuracy ({readout})",
            metric_value=round(accuracy / 100, 4),
        ),
    )


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Without bars of the hub library, and without the request that it sends to learn about its own environment."""
    shown, asked = not are_progress_bars_disabled(), constants.HF_HUB_DISABLE_TELEMETRY
    if shown:
        disable_progress_bars()
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = asked
        if shown:
            enable_progress_bars()


@contextmanager
def _one_sentence(name: HubAdapter) -> Iterator[None]:
    """Convert every error of the hub library."""
    try:
        yield
    except DearError:
        raise
    except Exception as error:  # without a network, the libraries raise many kinds of errors
        answers: list[Any] = [one for one in causes_of(error) if isinstance(one, HfHubHTTPError)]
        status = answers[0].response.status_code if answers and answers[0].response is not None else 0
        raise _refusal(name, status, answers[0] if answers else error) from error


def _refusal(name: HubAdapter, status: int, error: BaseException) -> DearError:
    """The error for a push that the hub did not accept."""
    page, owner = name.wanted.page, name.repository.partition("/")[0]
    if status == 401:
        return HubError(f"The hub {endpoint()} refuses your token: log in again with `hf auth login`, or set HF_TOKEN.")
    if status in (403, 404):
        return HubError(
            f"Your token may not write to {name.repository}: use one with write access to {owner}, or another ORG."
        )
    if status == 409:
        return OverwriteError(f"{page} exists already, and you may not see it: choose another name.")
    if status == 412:
        return HubError(
            f"{page} was changed by somebody else meanwhile, and nothing was pushed: run the command again."
        )
    if status:
        said = " ".join(str(getattr(error, "server_message", "") or "").split())[:160]
        return HubError(
            f"The hub refuses {name.repository} with error {status}{f' ({said})' if said else ''}, and nothing was "
            "pushed: try again later."
        )
    if isinstance(error, ValueError):
        said = " ".join(str(error).split())[:160].rstrip(".")
        return ArtefactError(f"The hub refuses the card {CARD} ({said}): correct it, or delete it to get a new one.")
    return HubError(f"The hub {endpoint()} cannot be reached, and nothing was pushed: check the network and try again.")
