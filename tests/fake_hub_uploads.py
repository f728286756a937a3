"""The part of the imitation of the hub that accepts uploads: repositories, large files and commits, as its API does."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import yaml

if TYPE_CHECKING:
    from fake_hub import FakeHub

LARGE = (".safetensors", ".bin", ".pt", ".pth")
"""Files in large file storage: they are named by their sha256 and served by the CDN."""


class Uploads:
    """Handlers of POST and PUT; mixed into the request handler of the hub."""

    headers: Any
    path: str
    rfile: Any
    server: Any

    def do_POST(self) -> None:
        """Everything but the content of large files."""
        path, body = unquote(urlsplit(self.path).path), self._body()
        self._record(path)
        if path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._validate(json.loads(body)["content"])
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            self._preupload(match[1], json.loads(body))
        elif match := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self._batch(match[1], json.loads(body))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self._commit(match[1], [json.loads(line) for line in body.splitlines()])
        else:
            self._send(404, {})

    def do_PUT(self) -> None:
        """The content of a large file."""
        path, body = unquote(urlsplit(self.path).path), self._body()
        self._record(path)
        oid = path.removeprefix("/upload/")
        if hashlib.sha256(body).hexdigest() != oid:
            return self._send(400, {})
        self.hub.large[oid] = body
        return self._send(200, {})

    @property
    def hub(self) -> FakeHub:
        return self.server.hub

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer_json(self, content: Any, status: int = 200) -> None:
        self._send(status, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def _refused_to_write(self, owner: str) -> bool:
        """Answer with the error of a token that may not write to a namespace, if it is one."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in self.hub.writers:
            headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
            self._send(401, headers, b'{"error": "Invalid credentials in Authorization header"}')
        elif owner not in self.hub.writers[token]:
            words = f"You don't have the rights to create a model under the namespace {owner!r}"
            self._send(403, {"X-Error-Message": words}, json.dumps({"error": words}).encode())
        else:
            return False
        return True

    def _create(self, wanted: dict[str, Any]) -> None:
        owner, name = wanted["organization"], f"{wanted['organization']}/{wanted['name']}"
        if self._refused_to_write(owner):
            return None
        if name in self.hub.repositories:
            return self._answer_json({"error": "You already created this model repo", "url": ""}, 409)
        self.hub.add(name, {".gitattributes": b""}, private=wanted.get("visibility") == "private")
        return self._answer_json({"url": f"{self.hub.endpoint}/{name}", "name": name})

    def _validate(self, content: str) -> None:
        """Refuse what the hub refuses: metadata that are not YAML, or a model-index without a name."""
        block = re.match(r"---\n(.*?)\n---", content, re.DOTALL)
        try:
            found = yaml.safe_load(block[1]) if block else {}
            assert all(one.get("name") for one in found.get("model-index", []))
        except (yaml.YAMLError, AssertionError, AttributeError) as error:
            return self._answer_json(
                {"errors": [{"message": f'"metadata" {type(error).__name__}'}], "warnings": []}, 400
            )
        return self._answer_json({"errors": [], "warnings": []})

    def _preupload(self, repository: str, wanted: dict[str, Any]) -> None:
        if self._refused_to_write(repository.partition("/")[0]):
            return
        there = self.hub.repositories[repository].files
        answer = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if one["path"].endswith(LARGE) else "regular",
                "shouldIgnore": False,
                "oid": there[one["path"]].etag if one["path"] in there else None,
            }
            for one in wanted["files"]
        ]
        self._answer_json({"files": answer, "commitOid": self.hub.repositories[repository].commit})

    def _batch(self, repository: str, wanted: dict[str, Any]) -> None:
        if self._refused_to_write(repository.partition("/")[0]):
            return
        objects = []
        for one in wanted["objects"]:
            actions = {"upload": {"href": f"{self.hub.cdn}/upload/{one['oid']}"}}
            objects.append({**one, **({} if one["oid"] in self.hub.large else {"actions": actions})})
        self._answer_json({"transfer": "basic", "objects": objects})

    def _commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
        """One commit, whole or not at all."""
        if self._refused_to_write(repository.partition("/")[0]):
            return None
        found = self.hub.repositories[repository]
        header, *changes = lines
        parent = header["value"].get("parentCommit", found.commit)
        if self.hub.before_commit:
            self.hub.before_commit()
        if parent != self.hub.repositories[repository].commit:
            return self._answer_json({"error": "A commit has happened since. Please refresh and try again."}, 412)
        files = {name: one.content for name, one in self.hub.repositories[repository].files.items()}
        for change in changes:
            value = change["value"]
            if change["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            else:
                del files[value["path"]]
        self.hub.messages.append(header["value"]["summary"])
        made = self.hub.add(repository, files, license=found.license, gated=found.gated, private=found.private)
        return self._answer_json(
            {
                "success": True,
                "commitOid": made.commit,
                "commitUrl": f"{self.hub.endpoint}/{repository}/commit/{made.commit}",
            }
        )
