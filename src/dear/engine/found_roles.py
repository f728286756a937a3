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


def with_found_roles(
    job: Job,
    clip: FrozenClip,
    *,
    say: Callable[[str], None] = lambda remark: None,
) -> Job:
    """The job with a role map in the place of "auto"; any other job stays as it is."""
    fields = get_method(job.method).Config.model_fields
    uniform = job.config.get("mask", "roles") in ("all_mixed", "all_generalization")
    if job.config.get("roles") != AUTO or "roles" not in fields or uniform:
        return job
    images, first = job.dataset.images(job.items), job.config.get("first_layer")
    found = auto_roles(clip, images, first_layer=first if type(first) is int else None, say=say)
    return replace(job, config={**job.config, "roles": found})
