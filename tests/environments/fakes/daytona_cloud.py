"""A loopback stand-in for Daytona: its API, and the daemon in each sandbox, reached through one proxy.

    with DaytonaCloud() as cloud:           # DAYTONA_API_URL=cloud.url + "/api" DAYTONA_API_KEY=cloud.key
        ...

Commands of sessions behave as under Daytona's daemon: output comes line by line, each line marked as stdout or stderr;
input that lacks the end of its line gets one; input is echoed into the output unless that is suppressed. There is no
gateway for events (Socket.IO), as behind some firewalls: the SDK asks again and again instead.

Operations, for `Cloud.fail` and `Cloud.calls`: create, get, delete, last-activity; of a sandbox session, exec, command,
logs, input.
"""

from __future__ import annotations

import uuid
from typing import Any

from tests.environments.fakes.boxes import Box, Program
from tests.environments.fakes.http_cloud import Drop, HttpCloud, Reply, Request, stamp
from tests.environments.fakes.websocket import WebSocket

MARKS = {"stdout": b"\x01\x01\x01", "stderr": b"\x02\x02\x02"}
_PADDED = 1024


class DaytonaCloud(HttpCloud):
    """The server.

    Attributes:
        starting: How often a sandbox is asked for until it has started.
        padded: Stream in pieces of 1024 bytes, filled up with NULs, as early daemons did.
        limit: Sandboxes that may run at once.
        minute: Seconds that a minute of an interval has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.starting = 0
        self.padded = False
        self.limit = 20
        self.minute = 60.0

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that lead the SDK here."""
        return {"DAYTONA_API_URL": f"{self.url}/api", "DAYTONA_API_KEY": self.key}

    def exhaust(self) -> None:
        """Let the account's limit be reached."""
        self.limit = 0

    def find(self, name: str) -> Box | None:
        """The live sandbox of that id or name."""
        return next((b for b in self.made if not b.ended and name in (b.name, b.asked.get("name"))), None)

    def operation(self, request: Request) -> str:
        """See `HttpCloud.operation`."""
        place, *parts = request.path.strip("/").split("/")
        if place == "toolbox":
            # ID/process/session[/SESSION[/exec | /command/COMMAND[/input | /logs]]]
            return {3: "session", 4: "session", 6: "command"}.get(len(parts), parts[-1])
        if parts == ["sandbox"]:
            return "create"
        return {"GET": "get", "DELETE": "delete"}.get(request.method, parts[-1]) if len(parts) > 1 else request.path

    def refuse(self, status: int, message: str = "") -> Reply:
        """See `HttpCloud.refuse`."""
        told = message or f"status {status} was asked for"
        return Reply(status, {"statusCode": status, "message": told, "error": "Error", "source": "DAYTONA_API"})

    def answer(self, request: Request) -> Reply | None:
        """See `HttpCloud.answer`."""
        place, *parts = request.path.strip("/").split("/")
        if request.headers.get("Authorization") != f"Bearer {self.key}" and place in ("api", "toolbox"):
            return self.refuse(401, "Invalid credentials")
        if place == "toolbox":
            box = self.find(parts[0])
            return (
                self.refuse(404, f"Sandbox {parts[0]} not found")
                if box is None
                else self._daemon(request, box, parts[1:])
            )
        if place != "api" or not parts or parts[0] != "sandbox":
            return self.refuse(404, "no such place")
        if len(parts) == 1:
            return self._create(request)
        box = self.find(parts[1])
        if box is None:
            return self.refuse(404, f"Sandbox with ID or name {parts[1]} not found")
        if request.method == "DELETE":
            box.end("deleted")
            return Reply(200, self._about(box, "destroyed"))
        if parts[-1] == "last-activity":
            self._active(box)
            return Reply(200)
        self.starting -= 1
        return Reply(200, self._about(box))

    def _create(self, request: Request) -> Reply:
        asked = request.json()
        if len(self.alive) >= self.limit:
            return self.refuse(403, f"Total CPU limit exceeded. Maximum allowed: {self.limit}.")
        if self.find(asked.get("name") or "\0") is not None:
            return self.refuse(409, f"Sandbox with name {asked['name']} already exists")
        box = self.boxes.setdefault(name := str(uuid.uuid4()), Box(name, asked))
        self._active(box)
        return Reply(200, self._about(box))

    def _active(self, box: Box) -> None:
        if interval := box.asked.get("autoStopInterval"):
            self.lives(box, interval * self.minute)

    def _about(self, box: Box, state: str = "") -> dict[str, Any]:
        asked = box.asked
        return {
            "id": box.name, "organizationId": "org", "name": asked.get("name") or box.name, "user": "daytona",
            "env": asked.get("env") or {}, "labels": asked.get("labels") or {}, "public": False,
            "networkBlockAll": bool(asked.get("networkBlockAll")), "kvm": False, "target": asked.get("target") or "us",
            "cpu": 1, "gpu": 0, "memory": 1, "disk": 3, "createdAt": stamp(), "toolboxProxyUrl": f"{self.url}/toolbox",
            "state": state or ("starting" if self.starting > 0 else "started"),
        }  # fmt: skip

    # ------------------------------------------------------------------------------------------------- in a sandbox

    def _daemon(self, request: Request, box: Box, parts: list[str]) -> Reply | None:
        if parts[:2] != ["process", "session"]:
            return self.refuse(404, f"no such operation here: {'/'.join(parts)}")
        sessions: set[str] = box.__dict__.setdefault("sessions", set())
        if len(parts) == 2:
            sessions.add(request.json()["sessionId"])
            return Reply(201)
        if parts[2] not in sessions:
            return self.refuse(404, "session not found")
        if parts[3:] == ["exec"]:
            return self._exec(request, box)
        program = box.programs.get(parts[4]) if len(parts) > 4 else None
        if program is None:
            return self.refuse(404, "command not found")
        if parts[-1] == "input":
            return self._input(request, box, program)
        if parts[-1] == "logs":
            return self._logs(request, box, program)
        ended = {} if program.status is None else {"exitCode": _code(program)}
        return Reply(200, {"id": parts[4], "command": "", **ended})

    def _exec(self, request: Request, box: Box) -> Reply:
        asked = request.json()
        if asked["command"].lstrip().startswith("exec "):
            # The daemon would never see it end: the session's own shell would be gone.
            return self.refuse(400, "this takes the place of the session's shell")
        program = box.run(key := str(uuid.uuid4()), ["bash", "-c", asked["command"]], box.asked.get("env"))
        if not asked.get("suppressInputEcho"):
            box.__dict__.setdefault("echoing", set()).add(program)
        return Reply(202, {"cmdId": key})

    def _input(self, request: Request, box: Box, program: Program) -> Reply:
        data = request.json()["data"].encode()
        data += b"" if data.endswith(b"\n") else b"\n"
        if program.status is not None:
            return self.refuse(410, f"command has already completed with exit code {_code(program)}")
        try:
            program.write(data)
        except OSError as error:
            return self.refuse(500, f"failed to write to input pipe: {error}")
        if program in box.__dict__.get("echoing", ()):
            with program.changed:
                program.output["stdout"] += data
                program.changed.notify_all()
        return Reply(204)

    def _logs(self, request: Request, box: Box, program: Program) -> None:
        """Stream what a command prints, line by line."""
        socket = WebSocket(request._handler)
        rest = dict.fromkeys(MARKS, b"")
        for name, data in self.follow(request, box, program):
            if socket.closed:
                return
            *lines, rest[name] = (rest[name] + data).split(b"\n")
            self._send(socket, b"".join(MARKS[name] + line + b"\n" for line in lines))
            if self.fault("line", note=False) == "drop":
                raise Drop
        self._send(socket, b"".join(MARKS[name] + line + b"\n" for name, line in rest.items() if line))
        socket.close()

    def _send(self, socket: WebSocket, data: bytes) -> None:
        if not self.padded:
            return socket.send(data) if data else None
        for start in range(0, len(data), _PADDED):
            socket.send(data[start : start + _PADDED].ljust(_PADDED, b"\0"))


def _code(program: Program) -> int:
    """An exit status, as a shell has it."""
    status = program.status or 0
    return status if status >= 0 else 128 - status
