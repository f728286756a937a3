"""`roles="auto"`: before a job is built, its role map is looked up, or found from the images it trains on.

Only those: without a test split, the other images of a data set are what is tested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dear.backbone.clip import FrozenClip
from dear.engine.job import Job
from dear.methods.dear.roles import AUTO
from dear.methods.registry import get_method
from dear.roles.auto import auto_roles
from dear.roles.known import kept_map, shipped_map


def with_found_roles(
    job: Job,
    clip: FrozenClip,
    *,
    say: Callable[[str], None] = lambda remark: None,
) -> Job:
    """The job with a role map in the place of "auto"; any other job stays as it is.

    A map that was kept for the user is told, also where nobody asked for it.
    """
    fields, asked = get_method(job.method).Config.model_fields, job.config.get("roles")
    uniform = job.config.get("mask", "roles") in ("all_mixed", "all_generalization")
    if asked not in (None, AUTO) or "roles" not in fields or uniform:
        return job
    given = job.config.get("first_layer")
    first = given if type(given) is int else None
    if asked == AUTO:
        found = auto_roles(clip, job.dataset.images(job.items), first_layer=first, say=say)
        return replace(job, config={**job.config, "roles": found})
    if shipped_map(clip) is None and (kept := kept_map(clip, first)) is not None:
        say(f"role map: {kept.provenance.source}.")
    return job
