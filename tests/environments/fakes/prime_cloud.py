"""A loopback stand-in for Prime Intellect: its REST API, and the gateway to the sandboxes, Connect RPC in protobuf.

    with PrimeCloud() as cloud:             # PRIME_API_BASE_URL=cloud.url PRIME_API_KEY=cloud.key
        ...                                 # and a HOME of the test: the SDK keeps tokens in ~/.prime

Operations, for `Cloud.fail` and `Cloud.calls`: create, status, get, auth, delete; of a sandbox Start, Connect,
SendInput, SendSignal. The messages are those of the SDK's own wheel. Commands really run.
"""

from __future__ import annotations

import struct
import uuid
from pathlib import Path
from typing import Any

from prime_sandboxes._proto.command_session import command_session_pb2 as messages

from tests.environments.fakes.boxes import Box, Program
from tests.environments.fakes.http_cloud import HttpCloud, Reply, Request, stamp

pb: Any = messages
_CODES = {404: "not_found", 429: "resource_exhausted", 500: "internal", 503: "unavailable"}
_ENDED = {"expired": "TIMEOUT", "deleted": "TERMINATED", "killed": "TERMINATED", "memory": "ERROR"}


class PrimeCloud(HttpCloud):
    """The server.

    Attributes:
        seconds_per_minute: How long one of ``timeout_minutes`` lasts.
        preparing: How often a new sandbox is still said to be on its way.
        broke: The account has no money left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seconds_per_minute = 60.0
        self.preparing = 0
        self.broke = False
        self._by_key: dict[str, Box] = {}
        self._inputs: set[str] = set()

    def exhaust(self) -> None:
        """The account may have no further sandbox."""
        self.broke = True

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that lead the SDK here."""
        return {"PRIME_API_BASE_URL": self.url, "PRIME_API_KEY": self.key}

    def operation(self, request: Request) -> str:
        """See `HttpCloud.operation`."""
        path, method = request.path, request.method
        if path.startswith("/gateway/"):
            return path.rpartition("/")[2]
        if path == "/api/v1/sandbox" and method == "POST":
            return "create"
        if path.endswith("status:batchGet"):
            return "status"
        if path.endswith("/auth"):
            return "auth"
        return "delete" if method == "DELETE" else "get"

    def refuse(self, status: int) -> Reply:
        """See `HttpCloud.refuse`."""
        code = {"code": _CODES.get(status, "unknown"), "message": f"status {status}"}
        return Reply(status, {**code, "detail": {402: "insufficient balance"}.get(status, f"status {status}")})

    def answer(self, request: Request) -> Reply | None:
        """See `HttpCloud.answer`."""
        if request.path.startswith("/gateway/"):
            return self._gateway(request)
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return Reply(401, {"detail": "Invalid API key"})
        operation = self.operation(request)
        if operation == "create":
            return self._create(request.json())
        if operation == "status":
            return self._status(request.json()["sandbox_ids"])
        box = self.boxes.get(request.path.split("/")[4])
        if box is None:
            return Reply(404, {"detail": "Sandbox not found"})
        if operation == "auth":
            return Reply(404, {"detail": "Sandbox not found"}) if box.ended else Reply(200, self._auth(box))
        if operation == "delete":
            if box.ended:
                return Reply(404, {"detail": "Sandbox not found"})
            box.end("deleted")
            return Reply(200, {"success": True})
        return Reply(200, _about(box))

    def _create(self, asked: dict[str, Any]) -> Reply:
        if self.broke:
            return Reply(402, {"detail": "insufficient balance"})
        with self._lock:
            # The same request again is the same sandbox, also if that is gone.
            box = self._by_key.get(asked["idempotency_key"])
            if box is None:
                name = "sb" + uuid.uuid4().hex[:12]
                box = self._by_key[asked["idempotency_key"]] = self.boxes[name] = Box(name, asked)
        self.lives(box, asked["timeout_minutes"] * self.seconds_per_minute)
        return Reply(200, _about(box))

    def _status(self, names: list[str]) -> Reply:
        states = []
        for name in names:
            waiting = self.preparing > 0
            self.preparing -= waiting
            states.append({"sandbox_id": name, "status": "PROVISIONING" if waiting else _state(self.boxes[name])})
        return Reply(200, {"statuses": states, "errors": []})

    def _auth(self, box: Box) -> dict[str, Any]:
        ids = {"gateway_url": f"{self.url}/gateway", "user_ns": "ns", "job_id": box.name, "is_vm": True}
        return {**ids, "token": f"token-of-{box.name}", "expires_at": stamp(3600)}

    # ------------------------------------------------------------------------------------------------- in a sandbox

    def _gateway(self, request: Request) -> Reply | None:
        box = self.boxes.get(request.path.split("/")[3])
        if box is None or box.ended:
            return Reply(404, {"code": "not_found", "message": "sandbox not found"})
        if request.headers.get("Authorization") != f"Bearer token-of-{box.name}":
            return Reply(401, {"code": "unauthenticated", "message": "no access"})
        method = self.operation(request)
        if method in ("Start", "Connect"):
            return self._stream(request, box, method)
        if method not in ("SendInput", "SendSignal"):
            return Reply(501, {"code": "unimplemented", "message": method})
        asked = getattr(pb, f"{method}Request").FromString(request.body)
        program = box.programs.get(asked.session.session_uuid)
        if program is None or program.status is not None:
            return Reply(404, {"code": "not_found", "message": "no such session"})
        if method == "SendSignal":
            program.kill()
        elif asked.input_uuid not in self._inputs:
            # Sent again with the same id, it is not applied again.
            self._inputs.add(asked.input_uuid)
            program.write(asked.input.stdin)
        return Reply(200, b"", kind="application/proto")

    def _stream(self, request: Request, box: Box, method: str) -> Reply | None:
        late = method == "Connect"
        # A message of a stream has five bytes before it: flags and length.
        if late:
            asked = pb.ConnectRequest.FromString(request.body[5:])
            program = box.programs.get(asked.session.session_uuid)
            if program is None:
                return Reply(404, {"code": "not_found", "message": "no such session"})
        else:
            asked = pb.StartRequest.FromString(request.body[5:])
            program = box.programs.get(asked.session_uuid)
            if program is None:
                command = asked.command
                env = {"HOME": str(box.folder), **(box.asked.get("environment_vars") or {}), **dict(command.envs)}
                program = Program([command.cmd, *command.args], Path(command.cwd or box.folder), env)
                box.programs[asked.session_uuid] = program
        raw = request.stream("application/connect+proto")
        event = pb.CommandSessionEvent

        def send(**what: Any) -> None:
            data = pb.StartResponse(event=event(**what)).SerializeToString()
            raw(struct.pack(">BI", 0, len(data)) + data)

        send(start=event.StartEvent(pid=program.pid))
        for name, data in self.follow(request, box, program, late):
            send(data=event.DataEvent(**{name: data}))
        status = program.status or 0
        send(end=event.EndEvent(exit_code=status if status >= 0 else 128 - status))
        raw(struct.pack(">BI", 2, 2) + b"{}")
        request.end_stream()
        return None


def _state(box: Box) -> str:
    return _ENDED.get(box.ended, "TERMINATED") if box.ended else "RUNNING"


def _about(box: Box) -> dict[str, Any]:
    asked = box.asked
    sizes = {"cpuCores": 1, "memoryGB": 1, "diskSizeGB": 5, "diskMountPath": "/", "gpuCount": 0, "vm": True}
    times = {"timeoutMinutes": asked["timeout_minutes"], "createdAt": stamp(), "updatedAt": stamp()}
    names = {"id": box.name, "name": asked["name"], "dockerImage": asked["docker_image"]}
    return {**names, **sizes, **times, "status": _state(box), "terminationReason": box.ended or None}
