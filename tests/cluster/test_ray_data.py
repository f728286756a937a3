"""Search indexes and role discovery on Ray Data: as in one process, also if a worker is killed. Run by `make ray`."""

import numpy as np
import pytest
import torch

import dear
from dear.cluster import nodes
from dear.cluster.blocks import Cluster
from dear.errors import ClusterError, ConfigError
from dear.retrieval.on_ray import PARTS
from dear.roles import on_ray
from dear.roles.moments import collect_moments
from dear.roles.sources import images_from
from dear.storage.locks import locked
from helpers import varied_roles
from ray_workers import killing_one
from shards import class_folders, files_of, webdataset

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


@pytest.fixture
def shards(tmp_path):
    """2,001 pictures in four tars; one is not readable."""
    folder = class_folders(tmp_path / "photos", per_class=667)
    files_of(folder)[7].write_bytes(b"no image")
    (tmp_path / "shards").mkdir()
    webdataset(folder, f"{tmp_path}/shards/{{:03d}}.tar", 4)
    return f"{tmp_path}/shards/{{000..003}}.tar"


def test_an_index_made_on_a_cluster_is_that_of_one_process(ray, shards, tiny_folders, clip, tmp_path):
    name, roles = f"local-dir:{tiny_folders['plain']}", varied_roles(clip)
    how = {"pretrained": "random", "roles": roles, "batch_size": 32, "threads": 1, "workers": 1}
    local = dear.index_images(shards, tmp_path / "local", clip=name, **how)
    out = tmp_path / "ray"
    with killing_one(lambda: len(list(out.glob("segment-*"))) >= 2) as killed:
        found = dear.index_images(shards, out, clip=name, on="ray", **how)
    assert killed
    assert len(found.segments) >= 16
    assert not (out / PARTS).exists()
    assert (found.images, found.problems, found.encoded) == (local.images, local.problems, 2000)
    for kind in local.kinds:
        assert torch.allclose(found.features(kind).float(), local.features(kind).float(), atol=1e-3)
    again = dear.index_images(shards, out, clip=name, on="ray", **how)
    assert (again.encoded, again.manifest.segments) == (0, found.manifest.segments)


def test_moments_of_a_cluster_are_those_of_one_process(ray, tiny_folders, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "LEAST", on_ray.ROUND)
    clip = dear.load_clip(f"local-dir:{tiny_folders['plain']}", "random")
    images, source = images_from("world", 2000), on_ray.ImageSource("world", 2000, None)
    local = collect_moments(clip, images, first_layer=1)
    parts = tmp_path / on_ray.PARTS
    killing = killing_one(lambda: any(one.name.isdecimal() for one in parts.glob("*")))
    with locked(tmp_path, "discovery"), killing as killed:
        on_ray.collect_on(Cluster(ray), clip, images, source, first_layer=1, out=tmp_path)
    assert killed
    assert not parts.exists()
    found = collect_moments(clip, images, first_layer=1, checkpoint=tmp_path)  # it is there: nothing is read
    assert (found.position, found.problems) == (2000, ())
    for one, other in zip(local.blocks, found.blocks, strict=True):
        assert one.count == other.count
        np.testing.assert_allclose(other.sum_ME, one.sum_ME, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(other.outer_MEE, one.outer_MEE, rtol=1e-7, atol=1e-7)


def test_what_nodes_cannot_do_is_one_sentence(ray, shards, clip, model, tmp_path):
    with pytest.raises(ConfigError, match="A model in memory cannot be sent to a cluster"):
        dear.index_images(shards, tmp_path / "a", run=model, on="ray")
    images, elsewhere = images_from("world", 10), on_ray.ImageSource("world", 9, None)
    fewer = pytest.raises(ClusterError, match="A node sees fewer images than this machine")
    with locked(tmp_path / "b", "discovery"), fewer:
        on_ray.collect_on(Cluster(ray), clip, images, elsewhere, first_layer=1, out=tmp_path / "b")
    with pytest.raises(ClusterError, match="asks for more CPUs than any node of the cluster has"):
        dear.index_images(shards, tmp_path / "c", clip="world", threads=512, on="ray")


def test_a_node_with_another_version_is_refused_before_the_first_block(ray, shards, tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "versions_here", lambda: {"dear": "0.0.1"})
    with pytest.raises(ClusterError, match=r"has dear .*, but this machine has 0\.0\.1: install the same version"):
        dear.index_images(shards, tmp_path / "d", clip="world", threads=1, on="ray")
    assert not list((tmp_path / "d").glob("segment-*"))
