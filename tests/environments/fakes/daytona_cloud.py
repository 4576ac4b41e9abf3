"""A loopback stand-in for Daytona: its API, and the proxy and daemon through which sandboxes are reached.

    with DaytonaCloud() as cloud:                        # DAYTONA_API_URL=cloud.url DAYTONA_API_KEY=cloud.key
        ...

Commands of sessions behave as under Daytona's daemon: output comes line by line, each line marked as stdout or stderr;
input that lacks the end of its line gets one; input is echoed into the output unless that is suppressed. There is no
event gateway (Socket.IO), as behind some firewalls: the SDK asks again and again instead.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from tests.environments.fakes.boxes import Box, Cloud, Program
from tests.environments.fakes.web import Dropped, Request, Server, WebSocket, stamp

MARKS = {"stdout": b"\x01\x01\x01", "stderr": b"\x02\x02\x02"}
_PIECE = 1 << 20


class DaytonaCloud(Cloud):
    """The server. Faults are given as HTTP statuses, ``"drop"``, ``"lost"`` (done, but the answer does not arrive), or
    seconds.

    Attributes:
        url: For ``DAYTONA_API_URL``.
        starting: How often a sandbox is asked for until it has started.
        padded: Stream in pieces of 1024 bytes, filled with NULs, as early daemons did.
        says: The message of faults.
    """

    def __init__(self) -> None:
        super().__init__()
        self.starting = 0
        self.padded = False
        self.says = "asked for"

    def __enter__(self) -> DaytonaCloud:
        self._server = Server(_Request, self)
        self.url = self._server.url + "/api"
        self.toolbox = self._server.url + "/toolbox"
        return self

    def __exit__(self, *_: Any) -> None:
        self.clear()
        self._server.close()

    def find(self, name: str) -> Box | None:
        """The live sandbox of that id or name."""
        return next((b for b in self.made if not b.ended and name in (b.name, b.asked.get("name"))), None)


class _Session(dict[str, "_Command"]):
    """A shell session: its commands, by id."""


class _Command:
    """A command of a session."""

    def __init__(self, program: Program, echoes: bool) -> None:
        self.program = program
        self.echoes = echoes

    def write(self, text: str) -> None:
        data = text.encode()
        if not data.endswith(b"\n"):
            data += b"\n"
        self.program.write(data)
        if self.echoes:
            with self.program.changed:
                self.program.output["stdout"] += data
                self.program.changed.notify_all()


class _Request(Request):
    cloud: DaytonaCloud

    def serve(self) -> None:
        parts = self.path.strip("/").split("/")
        if parts[0] == "api":
            self._api(parts[1:])
        elif parts[0] == "toolbox":
            self._toolbox(parts[1], parts[2:])
        else:
            self._refuse(404, "no such place")

    def _refuse(self, status: int, message: str) -> None:
        self.reply(status, {"statusCode": status, "message": message, "error": "Error", "source": "DAYTONA_API"})

    def _begin(self, operation: str) -> bool:
        """Note a call, do what a test wants to go wrong; whether the answer is to be lost.

        Raises:
            Dropped: nothing more is to be done.
        """
        fault = self.cloud.fault(operation)
        if isinstance(fault, int):
            self.body()
            self._refuse(fault, self.cloud.says)
            raise _Answered
        if fault == "drop":
            raise Dropped
        if isinstance(fault, float):
            time.sleep(fault)
        return fault == "lost"

    def _route(self) -> None:
        try:
            super()._route()
        except _Answered:
            pass

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _route  # noqa: N815

    # ------------------------------------------------------------------------------------------------- the API

    def _api(self, parts: list[str]) -> None:
        if parts[0] == "socket.io":
            return self._refuse(404, "there are no events here")
        if self.headers.get("Authorization") != f"Bearer {self.cloud.key}":
            self.body()
            return self._refuse(401, "Invalid credentials")
        if parts == ["sandbox"] and self.command == "POST":
            return self._create()
        what = {"DELETE": "delete", "GET": "get"}.get(self.command, parts[-1])
        lost = self._begin(what)
        self.body()
        box = self.cloud.find(parts[1])
        if box is None:
            return self._refuse(404, f"Sandbox {parts[1]} not found")
        if what == "delete":
            box.end("deleted")
            return self._answer(box, "destroyed", lost)
        if what == "last-activity":
            return self.reply(200)
        self.cloud.starting -= 1
        self._answer(box, self._state())

    def _create(self) -> None:
        lost = self._begin("create")
        asked = self.json()
        if self.cloud.find(asked.get("name") or "\0") is not None:
            return self._refuse(409, "a sandbox of that name exists")
        box = Box(str(uuid.uuid4()), asked)
        self.cloud.boxes[box.name] = box
        self._answer(box, self._state(), lost)

    def _state(self) -> str:
        return "starting" if self.cloud.starting > 0 else "started"

    def _answer(self, box: Box, state: str, lost: bool = False) -> None:
        if lost:
            raise Dropped
        asked = box.asked
        told = {
            "id": box.name, "organizationId": "org", "name": asked.get("name") or box.name, "user": "daytona",
            "env": asked.get("env") or {}, "labels": asked.get("labels") or {}, "public": False,
            "networkBlockAll": bool(asked.get("networkBlockAll")), "kvm": False, "target": asked.get("target") or "us",
            "cpu": 1, "gpu": 0, "memory": 1, "disk": 3, "state": state, "createdAt": stamp(),
            "toolboxProxyUrl": self.cloud.toolbox,
        }  # fmt: skip
        self.reply(200, told)

    # ------------------------------------------------------------------------------------------------- the daemon

    def _toolbox(self, name: str, parts: list[str]) -> None:
        box = self.cloud.find(name)
        if box is None:
            self.body()
            return self._refuse(404, f"Sandbox {name} not found")
        if parts[:2] != ["process", "session"]:
            self.body()
            return self._refuse(404, f"no such operation here: {'/'.join(parts)}")
        sessions: dict[str, _Session] = box.__dict__.setdefault("sessions", {})
        if len(parts) == 2:
            self._begin("create session")
            sessions[self.json()["sessionId"]] = _Session()
            return self.reply(201)
        session = sessions.get(parts[2])
        if session is None:
            self.body()
            return self._refuse(404, "session not found")
        if parts[3:] == ["exec"]:
            return self._exec(box, session)
        command = session.get(parts[4]) if len(parts) > 4 else None
        if command is None:
            self.body()
            return self._refuse(404, "command not found")
        if parts[5:] == ["input"]:
            return self._input(command)
        if parts[5:] == ["logs"] and self.wants_websocket:
            self._begin("logs")
            return self._follow(box, command.program, self.upgrade())
        self._begin("command")
        self.body()
        told = {"id": parts[4], "command": ""}
        self.reply(200, told if command.program.status is None else {**told, "exitCode": _code(command.program)})

    def _exec(self, box: Box, session: _Session) -> None:
        self._begin("exec")
        asked = self.json()
        if asked["command"].lstrip().startswith("exec "):
            return self._refuse(400, "this would take the place of the session's own shell, and its end go unseen")
        key = str(uuid.uuid4())
        program = box.run(key, ["bash", "-c", asked["command"]], box.asked.get("env"))
        session[key] = _Command(program, not asked.get("suppressInputEcho"))
        self.reply(202, {"cmdId": key})

    def _input(self, command: _Command) -> None:
        lost = self._begin("input")
        data = self.json()["data"]
        if command.program.status is not None:
            return self._refuse(410, f"command has already completed with exit code {_code(command.program)}")
        try:
            command.write(data)
        except OSError:
            return self._refuse(500, "failed to write to input pipe")
        if lost:
            raise Dropped
        self.reply(204)

    def _follow(self, box: Box, program: Program, socket: WebSocket) -> None:
        """Send lines as they are printed, until the command has ended."""
        at = dict.fromkeys(MARKS, 0)
        with_end = dict.fromkeys(MARKS, 0)
        while not socket.closed:
            with program.changed:
                done = program.done
                for name, output in program.output.items():
                    with_end[name] = len(output) if done else output.rfind(b"\n", at[name]) + 1 or at[name]
                news = {n: bytes(program.output[n][at[n] : with_end[n]]) for n in MARKS}
                if not any(news.values()) and not done and not box.ended:
                    program.changed.wait(0.2)
                    continue
            if box.ended:
                raise Dropped
            for name, data in news.items():
                if data:
                    self._send(socket, b"".join(MARKS[name] + line for line in data.splitlines(keepends=True)))
                at[name] = with_end[name]
            fault = self.cloud.fault("chunk", note=False)
            if fault == "drop":
                raise Dropped
            if isinstance(fault, float):
                time.sleep(fault)
            if done:
                return socket.close()

    def _send(self, socket: WebSocket, data: bytes) -> None:
        size = 1024 if self.cloud.padded else _PIECE
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            socket.send(piece.ljust(1024, b"\0") if self.cloud.padded else piece)


class _Answered(Exception):
    """The request has been answered already."""


def _code(program: Program) -> int:
    """An exit status, as a shell has it."""
    assert program.status is not None
    return program.status if program.status >= 0 else 128 - program.status
