"""Explain why an image gets its answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from dear.backbone.clip import FrozenClip
from dear.backbone.load import load_clip
from dear.data.images import as_rgb, open_image
from dear.engine.ranks import local_device
from dear.errors import ConfigError, InputError
from dear.methods.zero_shot import ZeroShot
from dear.model.explanation import Explanation, explain_image, picture_seen
from dear.model.model import Model
from dear.options.commands import Explain
from dear.options.reading import check_values, spelled
from dear.reports.explanation_view import explanation_html, roles_of
from dear.roles.rolemap import RoleMap
from dear.storage.files import write_result
from dear.workflows.machine import using_threads
from dear.workflows.opened_run import model_of


def explain(
    run: str | Path | Model | FrozenClip | None,
    image: str | Path | Image.Image,
    classes: Sequence[str] | None = None,
    *,
    clip: str | None = None,
    pretrained: str | None = None,
    template: str | None = None,
    roles: str | Path | RoleMap | None = None,
    readout: str | None = None,
    top_k: int = 3,
    out: str | Path | None = None,
    device: str | None = None,
    threads: int | None = None,
    allow_pickled: bool = False,
) -> Explanation:
    """Say why an image gets its answer: its logits as exact sums over heads, attributes, MLPs and patches.

    Args:
        run: folder of a run or adapter, a loaded model, or a CLIP, which answers as it is; None with `clip`.
        image: a path or a PIL image.
        classes: other classes than the run's; a CLIP needs some.
        clip: a backbone by name, to explain it as it is instead of a run.
        pretrained: tag of the backbone's weights.
        template: the prompt around a class name.
        roles: what the heads do: a role map, its name or its path; by default the run's, or the CLIP's shipped one.
        readout: name of the method's readout; by default its first.
        top_k: how many of the likeliest classes to explain.
        out: HTML page to write.
        device: "cpu", "cuda"; by default a GPU if there is one.
        threads: threads to compute with on a CPU; by default all.
        allow_pickled: also read a backbone's weights from a pickled file (tensors only, never code).
    """
    check_values(Explain, top_k=top_k, device=device, threads=threads)
    if out is not None and Path(out).suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"The page of an explanation is a .html file, not {Path(out).name!r}.")
    if not isinstance(image, str | Path | Image.Image):
        raise InputError(f"Paths and PIL images are explained, but got an object of type {type(image).__name__}.")
    shown = as_rgb(image) if isinstance(image, Image.Image) else open_image(Path(image))
    with using_threads(threads):
        model = _model(run, clip, pretrained, device, has_classes=classes is not None, allow_pickled=allow_pickled)
        if classes is not None or template is not None:
            model = model.for_classes(classes if classes is not None else model.required_classes().names, template)
        known = roles_of(model, roles)
        tensor = model.clip.preprocess_eval(shown)
        name = "image" if isinstance(image, Image.Image) else Path(image).name
        found = explain_image(model, tensor, roles=known, readout=readout, top_k=top_k, name=name)
        if out is not None:
            write_result(Path(out), explanation_html(found, picture_seen(model.clip, tensor), model, known))
    return found


def _model(
    run: str | Path | Model | FrozenClip | None,
    clip: str | None,
    pretrained: str | None,
    device: str | None,
    *,
    has_classes: bool,
    allow_pickled: bool,
) -> Model:
    """The model to explain: a run's, or a CLIP as it is."""
    if clip is None and pretrained is not None:
        raise ConfigError(
            f"{spelled('pretrained')} names weights of a backbone: give the backbone too, with {spelled('clip')}."
        )
    if clip is not None:
        if run is not None:
            raise ConfigError("Either a run or a backbone is explained: name one of them.")
        if not has_classes:
            raise ConfigError(f"A backbone has no classes of its own: name some with {spelled('classes')}.")
        run = load_clip(clip, pretrained, local_device(device), allow_pickled=allow_pickled)
    if isinstance(run, FrozenClip):
        return Model(run, ZeroShot(run, ZeroShot.Config()))
    if run is None:
        raise ConfigError("Nothing is named that could be explained: give a run, or a backbone.")
    return model_of(run, device, allow_pickled=allow_pickled)
