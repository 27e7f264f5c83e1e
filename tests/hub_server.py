"""A Hugging Face Hub in memory, on loopback: the part of its protocol that huggingface_hub speaks without Xet."""

import base64
import hashlib
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

OWNER, STRANGER = "hf_owner", "hf_stranger"
"""Tokens: the owner's for everything, a stranger's for public repositories that are not gated."""


class Blob(NamedTuple):
    """A file's content, in LFS or in git, and the digest by which the Hub knows it."""

    content: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        framed = self.content if self.lfs else b"blob %d\0" % len(self.content) + self.content
        return hashlib.new("sha256" if self.lfs else "sha1", framed).hexdigest()


@dataclass
class Repository:
    """A model repository: files by path for each commit, and commits by branch or tag."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, Blob]) -> str:
        """Hash of a new commit on a branch."""
        sha = secrets.token_hex(20)
        self.commits[sha], self.refs[branch] = files, sha
        return sha

    def files(self, revision: str = "main") -> dict[str, Blob]:
        """Files by path at a branch, a tag or a commit."""
        return self.commits[self.refs.get(revision, revision)]


class Request(NamedTuple):
    """A request: ``"GET /path"``, and its headers."""

    line: str
    headers: dict[str, str]


@dataclass
class Fault:
    """A failure of the next requests whose line matches: an error's status, or a cut after some bytes."""

    pattern: str
    status: int = 0
    after: int | None = None
    times: int = 1


class RefusalError(Exception):
    """An error answer: status, message, the Hub's error code."""


class Hub(ThreadingHTTPServer):
    """The server, a context manager; ``localhost`` is its storage, a host that must not see tokens."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url, self.storage = (f"http://{host}:{self.server_port}" for host in ("127.0.0.1", "localhost"))
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.sockets: list[socket.socket] = []
        self.lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and close the connections that clients keep."""
        self.shutdown()
        self.server_close()
        for each in self.sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.sockets.append(request)
        super().process_request(request, client_address)

    def received(self, pattern: str) -> list[Request]:
        """Requests whose line matches."""
        return [request for request in self.requests if re.search(pattern, request.line)]

    def fault(self, request: Request) -> Fault:
        """Record a request, and count off its failure."""
        with self.lock:
            self.requests.append(request)
            matching = (each for each in self.faults if each.times and re.search(each.pattern, request.line))
            fault = next(matching, Fault("", times=0))
            fault.times -= 1
            return fault


class Handler(BaseHTTPRequestHandler):
    """Answers by the request's line (``ROUTES``): a value, and if need be status and headers."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> None:
        sent, line = self.rfile.read(int(self.headers.get("Content-Length", 0))), f"{self.command} {self.path}"
        line = line.partition("?")[0]  # still quoted: a branch's name may hold a slash
        fault = self.server.fault(Request(unquote(line), dict(self.headers)))
        matches = ((re.fullmatch(pattern, line), route) for pattern, route in ROUTES.items())
        match, route = next((each for each in matches if each[0]), (None, None))
        try:
            if fault.status or match is None or route is None:
                raise RefusalError(fault.status or 404, f"no answer to {line}")
            answer = route(self, sent, *(unquote(each) for each in match.groups() if each))
            self.reply(fault.after, *(answer if isinstance(answer, tuple) else (answer,)))
        except RefusalError as error:
            status, message, *code = error.args
            headers = {"X-Error-Message": message, "X-Error-Code": "".join(code)}
            self.reply(None, {"error": message}, status, headers)

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815 - http.server's names

    def reply(self, after: int | None, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:after])
            self.close_connection = after is not None

    def found(self, name: str, revision: str = "main", writes: bool = False) -> tuple[Repository, str]:
        """The repository and the commit, if the request's token may use them."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        found = self.server.repositories.get(name)
        if token not in ("", OWNER, STRANGER):
            raise RefusalError(401, "Invalid credentials in Authorization header")
        if found is None or (found.private and token != OWNER):
            raise RefusalError(404 if token else 401, "Repository not found", "RepoNotFound")
        if writes and token != OWNER:
            raise RefusalError(403 if token else 401, "You don't have the rights to write")
        if found.gated and token != OWNER and "/resolve/" in self.path:
            raise RefusalError(403 if token else 401, f"Access to model {name} is restricted", "GatedRepo")
        if (commit := found.refs.get(revision, revision)) not in found.commits:
            raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return found, commit

    def create(self, sent: bytes) -> Any:
        wish = json.loads(sent)
        name, existing = f"{wish['organization']}/{wish['name']}", self.server.repositories
        if self.headers.get("Authorization") != f"Bearer {OWNER}":
            raise RefusalError(401, "Invalid username or password.")
        status = 409 if name in existing else 200
        if name not in existing:
            existing[name] = Repository(private=wish.get("visibility") == "private")
            existing[name].commit("main", {".gitattributes": Blob(b"*.onnx filter=lfs\n", lfs=False)})
        return {"url": f"{self.server.url}/{name}"}, status

    def accept(self, *_: object) -> Any:
        return {}

    def info(self, _: bytes, name: str, revision: str = "main") -> Any:
        found, commit = self.found(name, revision)
        return {"id": name, "sha": commit, "private": found.private, "gated": found.gated}

    def tree(self, _: bytes, name: str, revision: str) -> Any:
        found, commit = self.found(name, revision)
        files = found.commits[commit].items()
        return [{"type": "file", "path": path, "oid": blob.oid, "size": len(blob.content)} for path, blob in files]

    def branch(self, sent: bytes, name: str, branch: str) -> Any:
        found, commit = self.found(name, json.loads(sent).get("startingPoint", "main"), writes=True)
        if branch in found.refs:
            raise RefusalError(409, "Reference already exists")
        found.refs[branch] = commit
        return {}

    def preupload(self, sent: bytes, name: str, revision: str) -> Any:
        """Say which files go through LFS: graphs, as ``.gitattributes`` has it, and binary files."""
        found, commit = self.found(name, revision, writes=True)
        files = json.loads(sent)["files"]
        for file in files:
            lfs = file["path"].endswith(".onnx") or b"\0" in base64.b64decode(file["sample"])
            old = found.commits[commit].get(file["path"])
            file |= {"uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False, "oid": old.oid if old else None}
        return {"files": files}

    def batch(self, sent: bytes, name: str) -> Any:
        self.found(name, writes=True)
        files = json.loads(sent)["objects"]
        for file in (each for each in files if each["oid"] not in self.server.objects):
            hrefs = {"upload": f"{self.server.storage}/stored/{file['oid']}/", "verify": f"{self.server.url}/verify"}
            file["actions"] = {action: {"href": href} for action, href in hrefs.items()}
        return {"transfer": "basic", "objects": files}

    def stored(self, sent: bytes, oid: str) -> Any:
        """Take or give the bytes of a digest."""
        if "Authorization" in self.headers or (self.command == "PUT" and hashlib.sha256(sent).hexdigest() != oid):
            raise RefusalError(400, "expected no token, and the bytes of the digest")
        if self.command == "PUT":
            self.server.objects[oid] = sent
        return self.content(Blob(self.server.objects[oid], lfs=True))

    def commit(self, sent: bytes, name: str, branch: str) -> Any:
        found, parent = self.found(name, branch, writes=True)
        files = dict(found.commits[parent])
        for key, value in (json.loads(line).values() for line in sent.splitlines()):
            if key == "file":
                files[value["path"]] = Blob(base64.b64decode(value["content"]), lfs=False)
            elif key == "lfsFile":
                files[value["path"]] = Blob(self.server.objects[value["oid"]], lfs=True)
            elif key == "deletedFile":
                del files[value["path"]]
        made = found.commit(branch, files)
        return {"success": True, "commitOid": made, "commitUrl": f"{self.server.url}/{name}/commit/{made}"}

    def resolve(self, _: bytes, name: str, revision: str, path: str) -> Any:
        found, commit = self.found(name, revision)
        if (blob := found.commits[commit].get(path)) is None:
            raise RefusalError(404, "Entry not found", "EntryNotFound")
        if not blob.lfs:
            return self.content(blob, {"X-Repo-Commit": commit})
        self.server.objects[blob.oid] = blob.content
        linked = {"X-Linked-Etag": f'"{blob.oid}"', "X-Linked-Size": str(len(blob.content))}
        place = f"{self.server.storage}/stored/{blob.oid}/{path}"
        return b"", 302, {"X-Repo-Commit": commit, "Location": place, **linked}

    def content(self, blob: Blob, headers: Mapping[str, str] = MappingProxyType({})) -> Any:
        """A file, or its rest from the byte that Range names."""
        start, size = int(re.sub(r"bytes=(\d+)-", r"\1", self.headers.get("Range", "0"))), len(blob.content)
        rest = {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if start else {}
        return blob.content[start:], 206 if start else 200, {**headers, **rest, "ETag": f'"{blob.oid}"'}


MODEL, PART = r"/([\w.-]+/[\w.-]+)", "/([^/]+)"
ROUTES: dict[str, Callable[..., Any]] = {
    "POST /api/repos/create": Handler.create,
    "POST /api/validate-yaml|POST /verify": Handler.accept,
    f"GET /api/models{MODEL}(?:/revision{PART})?": Handler.info,
    f"GET /api/models{MODEL}/tree{PART}": Handler.tree,
    f"POST /api/models{MODEL}/branch{PART}": Handler.branch,
    f"POST /api/models{MODEL}/preupload{PART}": Handler.preupload,
    f"POST /api/models{MODEL}/commit{PART}": Handler.commit,
    rf"POST {MODEL}\.git/info/lfs/objects/batch": Handler.batch,
    f"(?:GET|PUT) /stored{PART}/.*": Handler.stored,
    f"(?:GET|HEAD) {MODEL}/resolve{PART}/(.+)": Handler.resolve,
}
"""Answers by the pattern of a request's line."""
