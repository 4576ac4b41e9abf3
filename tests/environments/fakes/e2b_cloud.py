"""A loopback stand-in for E2B: its REST API, and in each sandbox "envd" with Connect RPC in JSON.

    with E2BCloud() as cloud:               # E2B_API_URL=E2B_SANDBOX_URL=cloud.url E2B_API_KEY=cloud.key
        ...                                 # and E2B_HTTP_VERSION=1.1

Operations, for `Cloud.fail` and `Cloud.calls`: create, get, list, timeout, delete; of a sandbox health, Start,
SendInput, SendSignal. Commands really run, by ``/bin/bash -l`` as there.
"""

from __future__ import annotations

import base64
import json
import os
import struct
import sys
import uuid
from pathlib import Path
from typing import Any

from tests.environments.fakes.boxes import Box, Program
from tests.environments.fakes.http_cloud import HttpCloud, Reply, Request, stamp

ENVD = "0.6.4"
_RPC = {"not_found": 404, "unavailable": 503, "resource_exhausted": 429, "internal": 500}
_CODES = {status: code for code, status in _RPC.items()}


class E2BCloud(HttpCloud):
    """The server.

    Attributes:
        limit: Sandboxes that may run at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.limit = 20

    def exhaust(self) -> None:
        """The account may have no further sandbox."""
        self.limit = 0

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that lead the SDK here."""
        return {
            "E2B_API_URL": self.url,
            "E2B_SANDBOX_URL": self.url,
            "E2B_API_KEY": self.key,
            "E2B_HTTP_VERSION": "1.1",
        }

    def operation(self, request: Request) -> str:
        """See `HttpCloud.operation`."""
        path, method = request.path, request.method
        if path.startswith("/process.Process/"):
            return path.rpartition("/")[2]
        if path == "/v2/sandboxes":
            return "create" if method == "POST" else "list"
        if path.startswith(("/sandboxes/", "/v2/sandboxes/")):
            return "delete" if method == "DELETE" else "timeout" if path.endswith("/timeout") else "get"
        return "health" if path == "/health" else path

    def refuse(self, status: int) -> Reply:
        """See `HttpCloud.refuse`."""
        words = {429: "too many requests", 500: "internal error", 503: "no capacity"}
        return Reply(status, {"code": _CODES.get(status, status), "message": words.get(status, f"status {status}")})

    def answer(self, request: Request) -> Reply | None:
        """See `HttpCloud.answer`."""
        if request.path.startswith("/process.Process/") or request.path == "/health":
            return self._envd(request)
        if request.headers.get("X-API-Key") != self.key:
            return Reply(401, {"code": 401, "message": "Cannot get the team for the given API key"})
        if request.path == "/v2/sandboxes":
            return self._create(request) if request.method == "POST" else self._list(request)
        box = self.boxes.get(request.path.partition("sandboxes/")[2].partition("/")[0])
        if box is None or box.ended:
            return Reply(404, {"code": 404, "message": "the sandbox was not found"})
        if request.method == "DELETE":
            box.end("deleted")
            return Reply(204)
        if request.path.endswith("/timeout"):
            self.lives(box, float(request.json()["timeout"]))
            return Reply(204)
        return Reply(200, _about(box))

    def _create(self, request: Request) -> Reply:
        asked = request.json()
        if len(self.alive) >= self.limit:
            word = f"you have reached the maximum number of concurrent sandboxes ({self.limit}) of your plan"
            return Reply(429, {"code": 429, "message": word})
        box = self.boxes.setdefault(name := "i" + uuid.uuid4().hex[:19], Box(name, asked))
        # What a template's login shell knows and a test's process does not: where its Python is.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        (box.folder / ".bash_profile").write_text(f"export PATH='{path}'\n")
        self.lives(box, float(asked.get("timeout", 300)))
        ids = {"sandboxID": name, "templateID": asked["templateID"], "clientID": "local", "domain": None}
        return Reply(201, {**ids, "envdVersion": ENVD, "envdAccessToken": f"token-of-{name}"})

    def _list(self, request: Request) -> Reply:
        wanted = [pair.partition("=") for pair in request.query.get("metadata", "").split("&") if pair]
        return Reply(
            200,
            [
                _about(box)
                for box in self.made
                if not box.ended and all(box.asked.get("metadata", {}).get(name) == value for name, _, value in wanted)
            ],
        )

    # ------------------------------------------------------------------------------------------------- in a sandbox

    def _envd(self, request: Request) -> Reply | None:
        box = self.boxes.get(request.headers.get("E2b-Sandbox-Id", ""))
        if box is None or box.ended:
            return Reply(502, {"code": 502, "message": "The sandbox was not found", "sandboxId": ""})
        if request.path == "/health":
            return Reply(204)
        if request.headers.get("X-Access-Token") != f"token-of-{box.name}":
            return Reply(401, {"code": "unauthenticated", "message": "no access"})
        method = request.path.rpartition("/")[2]
        if method == "Start":
            self._start(request, box)
            return None
        asked = request.json()
        program = box.programs.get(str(asked.get("process", {}).get("pid")))
        if program is None or program.status is not None:
            return Reply(404, {"code": "not_found", "message": "process with pid not found"})
        if method == "SendInput":
            program.write(base64.b64decode(asked["input"]["stdin"]))
        elif method == "SendSignal":
            program.kill()
        else:
            return Reply(501, {"code": "unimplemented", "message": method})
        return Reply(200, {})

    def _start(self, request: Request, box: Box) -> None:
        # A message of a stream has five bytes before it: flags and length.
        asked = json.loads(request.body[5:])
        command = asked["process"]
        folder = Path(command.get("cwd") or box.folder)
        env = {"HOME": str(box.folder), **command.get("envs", {}), **box.asked.get("envVars", {})}
        program = Program([command["cmd"], *command["args"]], folder, env)
        pid = program.pid
        box.programs[str(pid)] = program
        raw = request.stream("application/connect+json")

        def send(event: dict[str, Any], flags: int = 0) -> None:
            data = json.dumps(event).encode()
            raw(struct.pack(">BI", flags, len(data)) + data)

        send({"event": {"start": {"pid": pid}}})
        for name, data in self.follow(request, box, program):
            send({"event": {"data": {name: base64.b64encode(data).decode()}}})
        status = program.status or 0
        code = status if status >= 0 else 128 - status
        send({"event": {"end": {"exitCode": code, "exited": status >= 0, "status": f"exit status {code}"}}})
        send({}, flags=2)
        request.end_stream()


def _about(box: Box) -> dict[str, Any]:
    about = {"sandboxID": box.name, "templateID": box.asked["templateID"], "clientID": "local", "alias": "base"}
    sizes = {"cpuCount": 2, "memoryMB": 512, "diskSizeMB": 1024}
    times = {"startedAt": stamp(), "endAt": stamp(box.asked.get("timeout", 300))}
    metadata = box.asked.get("metadata", {})
    return {**about, **sizes, **times, "envdVersion": ENVD, "state": "running", "metadata": metadata}
