"""Make every table and figure of the paper in one resumable call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Unpack

from dear.engine.ranks import local_device
from dear.methods.registry import get_method
from dear.options.keywords import PaperOptions
from dear.options.parts import Paper, Training
from dear.options.reading import check, write_config
from dear.paper.plan import ALWAYS
from dear.paper.run import make_paper
from dear.paper.survey import PaperRequest, describe_plan, survey

ALL = "all"
BACKBONES = {"mini": ("world", None), "full": ("ViT-B-16-quickgelu", "openai")}


def run_paper(**options: Unpack[PaperOptions]) -> Path:
    """Make every table and figure of the paper, its own numbers beside ours; returns the path of the page.

    Args:
        **options: as `dear paper -h` lists them: `out="paper"`, and `mini=True` or `full=True`.
    """
    return make(check(Paper, options))


def make(options: Paper, *, say: Callable[[str], None] = lambda message: None, record_options: bool = False) -> Path:
    """Make the paper as the options say: what `dear.run_paper` and `dear paper` do."""
    request = request_of(options)
    record = once(partial(write_config, options.out, options, clip=request.clip, pretrained=request.pretrained))

    def report(message: str) -> None:
        if record_options:
            record()
        say(message)

    return make_paper(request, report, if_exists="resume" if options.continues else options.if_exists)


def paper_plan(options: Paper) -> str:
    """What is available, missing and finished, as text; nothing is computed."""
    request = request_of(options)
    return describe_plan(request, survey(request))


def request_of(options: Paper) -> PaperRequest:
    """The options with the backbone and the methods of this kind of paper."""
    kind = "mini" if options.mini else "full"
    usual = BACKBONES[kind]
    return PaperRequest(
        out=options.out,
        kind="mini" if options.mini else "full",
        clip=options.clip or usual[0],
        pretrained=options.pretrained if options.clip else usual[1],
        data_root=options.data_root,
        roles=options.roles,
        methods=_methods(options.methods),
        seeds=tuple(dict.fromkeys(options.seeds)),
        few_shots=tuple(sorted(set(options.shots))),
        only=options.only,
        train=options.part(Training),
        images=options.images,
        cache=options.cache_folder(options.out) or False,
        jobs=options.jobs,
        workers=options.workers,
        threads=options.threads,
        device=options.device if options.on else local_device(options.device),
        on=options.on,
        gpus=options.gpus,
        cells=options.cells,
    )


def _methods(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The methods by name, plain CLIP and DeAR always among them; None: all of the paper's."""
    if names == (ALL,):
        return None
    for name in names:
        get_method(name)
    return tuple(dict.fromkeys((*ALWAYS, *names)))
