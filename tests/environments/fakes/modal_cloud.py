"""A loopback stand-in for Modal: gRPC, spoken with the server base classes in Modal's own wheel.

    with ModalCloud() as cloud:     # MODAL_SERVER_URL=cloud.url MODAL_TOKEN_ID=ak-1 MODAL_TOKEN_SECRET=cloud.key
        ...                         # and MODAL_CONFIG_PATH somewhere empty

Both ways of the SDK are served: sandboxes of the second kind (one call makes one and gives the address of its router),
and those of the first, which the SDK still uses where a GPU is asked for. What programs print is kept by offset, as
Modal does, so that a stream that broke goes on where it was. An operation that is not here answers UNIMPLEMENTED.

Operations, for `Cloud.fail` and `Cloud.calls`: create, delete, start, write, read; all others by Modal's own names.
Faults are as in `tests.environments.fakes.http_cloud`, a status as HTTP has it: 429 comes with the word to wait.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import sys
import threading
import time
import uuid
from typing import Any

import grpclib.server
from grpclib import GRPCError, Status
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto import api_pb2 as api
from modal_proto import task_command_router_pb2 as router
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from tests.environments.fakes.boxes import Box, Cloud, Program

CHUNK = 1 << 20
ENTRY = "entrypoint"
_RESULTS = {
    "": api.GenericResult.GENERIC_STATUS_UNSPECIFIED,
    "expired": api.GenericResult.GENERIC_STATUS_TIMEOUT,
    "exited": api.GenericResult.GENERIC_STATUS_SUCCESS,
}
_KINDS = {
    router.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT: "stdout",
    router.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR: "stderr",
}


_STATUS = {400: Status.INVALID_ARGUMENT, 429: Status.RESOURCE_EXHAUSTED, 500: Status.INTERNAL, 503: Status.UNAVAILABLE}
_WORDS = {
    "SandboxCreate": "create",
    "SandboxCreateV2": "create",
    "SandboxTerminate": "delete",
    "SandboxTerminateV2": "delete",
    "TaskExecStart": "start",
    "TaskExecStdinWrite": "write",
    "TaskExecStdioRead": "read",
}


class ModalCloud(Cloud):
    """The server, in a thread and an event loop of its own.

    Attributes:
        url: Where it listens.
        apps, images: What was asked for, as the API has it.
        limit: Sandboxes that may run at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.limit = 20
        self._streams: set[Any] = set()
        self.apps: list[str] = []
        self.images: list[list[str]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-modal", daemon=True)

    def __enter__(self) -> ModalCloud:
        async def start() -> None:
            handlers = [_served(_Control, self), _served(_Router, self)]
            self._server = grpclib.server.Server(handlers, status_details_codec=custom_detail_codec)
            # By its protocol's number asyncio knows that it must not wait for more to send (TCP_NODELAY).
            listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            listening.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            await self._server.start(sock=listening)

        self._thread.start()
        self._on_loop(start())
        return self

    def __exit__(self, *_: Any) -> None:
        if (modal := sys.modules.get("modal")) is not None:
            # The SDK's one connection, which would be used for the next cloud as well.
            with contextlib.suppress(Exception):
                modal.Client.from_env().close()
        self.clear()

        async def stop() -> None:
            self._server.close()
            await asyncio.wait_for(self._server.wait_closed(), 5)

        try:
            self._on_loop(stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def _on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    # ------------------------------------------------------------------------------------------------- operations

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that lead the SDK here."""
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": "ak-1",
            "MODAL_TOKEN_SECRET": self.key,
            "MODAL_CONFIG_PATH": "/nonexistent",
        }

    def exhaust(self) -> None:
        """Let the account's limit be reached."""
        self.limit = 0

    def cut_streams(self) -> None:
        """Break the connections over which output is streamed now."""

        async def cut() -> None:
            for stream in list(self._streams):
                stream._stream.connection._transport.abort()

        self._on_loop(cut())

    async def begin(self, name: str, stream: Any) -> Any:
        """Note a call, check who calls, do what a test wants to go wrong; gives the request and the fault."""
        fault = self.fault(_WORDS.get(name, name))
        request = await stream.recv_message()
        # Routers are told another word than the key.
        if "authorization" not in stream.metadata and stream.metadata.get("x-modal-token-secret") != self.key:
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
        if isinstance(fault, float):
            await asyncio.sleep(fault)
        elif isinstance(fault, int):
            wait = [api.RPCRetryPolicy(retry_after_secs=0.1)] if fault == 429 else None
            raise GRPCError(_STATUS[fault], f"{fault} was asked for", wait)
        elif fault == "drop":
            stream._stream.connection._transport.abort()
            raise asyncio.CancelledError
        return request, fault

    def box_of_task(self, task: str) -> Box:
        """The live sandbox of a task id."""
        box = self.boxes.get("sb-" + task[3:])
        if box is None or box.ended:
            raise GRPCError(Status.NOT_FOUND, "Task not found")
        return box

    def program(self, request: Any) -> Program:
        """The program that a request is about."""
        box = self.box_of_task(request.task_id)
        found = box.programs.get(request.exec_id)
        if found is None:
            raise GRPCError(Status.NOT_FOUND, "Exec not found")
        return found

    def new_box(self, request: Any, prefix: str) -> Box:
        """A sandbox whose id tells its kind, as those of Modal do; it lives as long as its own first program."""
        wanted = request.definition
        if len(self.alive) >= self.limit:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"the maximum number of sandboxes ({self.limit}) is reached")
        if wanted.name and self.named(wanted.name) is not None:
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox named {wanted.name} exists")
        name = prefix + uuid.uuid4().hex[:20]
        box = self.boxes[name] = Box(name, request)
        if wanted.entrypoint_args:
            program = box.run(ENTRY, list(wanted.entrypoint_args))

            def look() -> None:
                if program.done and not box.ended:
                    box.status = program.status
                    # The thread that tells of the end is one of those that the end waits for.
                    threading.Thread(target=box.end, args=("exited",), daemon=True).start()

            program.watch(look)
        return box

    def named(self, name: str) -> Box | None:
        """The live sandbox of that name."""
        return next((box for box in self.made if not box.ended and box.asked.definition.name == name), None)


def _filled(kind: type) -> Any:
    """An instance of a server base class; operations that it lacks answer UNIMPLEMENTED."""

    def missing(name: str) -> Any:
        async def operation(self: Any, stream: Any) -> None:
            self.cloud.calls.append(name)
            raise GRPCError(Status.UNIMPLEMENTED, name)

        return operation

    abstract = {name for name in getattr(kind, "__abstractmethods__", ()) if name != "__mapping__"}
    return type(kind.__name__, (kind,), {name: missing(name) for name in abstract})


def _operation(function: Any) -> Any:
    """An operation that answers one message with one."""
    name = function.__name__

    async def serve(self: Any, stream: Any) -> None:
        request, fault = await self.cloud.begin(name, stream)
        answer = await function(self, request)
        if fault == "lost":
            stream._stream.connection._transport.abort()
            raise asyncio.CancelledError
        await stream.send_message(answer)

    return serve


def _token(seconds: float = 3600) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part({'exp': int(time.time() + seconds)})}.x"


def _result(box: Box) -> api.GenericResult:
    status = _RESULTS.get(box.ended, api.GenericResult.GENERIC_STATUS_TERMINATED)
    return api.GenericResult(status=status, exitcode=box.status or 0)


class _Control(ModalClientBase):
    """The control plane."""

    cloud: ModalCloud

    def access(self) -> api.CommandRouterAccess:
        return api.CommandRouterAccess(url=self.cloud.url, jwt=_token())

    @_operation
    async def ClientHello(self, request: Any) -> Any:  # noqa: N802
        return api.ClientHelloResponse()

    @_operation
    async def AuthTokenGet(self, request: Any) -> Any:  # noqa: N802
        return api.AuthTokenGetResponse(token=_token())

    @_operation
    async def AppGetOrCreate(self, request: Any) -> Any:  # noqa: N802
        self.cloud.apps.append(request.app_name)
        return api.AppGetOrCreateResponse(app_id="ap-1")

    @_operation
    async def EnvironmentGetOrCreate(self, request: Any) -> Any:  # noqa: N802
        settings = api.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api.EnvironmentMetadata(name="main", settings=settings)
        return api.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)

    @_operation
    async def ImageGetOrCreate(self, request: Any) -> Any:  # noqa: N802
        self.cloud.images.append(list(request.image.dockerfile_commands))
        result = api.GenericResult(status=api.GenericResult.GENERIC_STATUS_SUCCESS)
        return api.ImageGetOrCreateResponse(image_id="im-1", result=result, metadata=api.ImageMetadata())

    # The second kind of sandbox.

    @_operation
    async def SandboxCreateV2(self, request: Any) -> Any:  # noqa: N802
        box = self.cloud.new_box(request, "sb-01")
        task = "ta-" + box.name[3:]
        return api.SandboxCreateV2Response(sandbox_id=box.name, task_id=task, command_router_access=self.access())

    @_operation
    async def SandboxGetCommandRouterAccess(self, request: Any) -> Any:  # noqa: N802
        access = self.access()
        return api.SandboxGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    @_operation
    async def SandboxGetTaskIdV2(self, request: Any) -> Any:  # noqa: N802
        return api.SandboxGetTaskIdResponse(task_id="ta-" + request.sandbox_id[3:])

    @_operation
    async def SandboxWaitV2(self, request: Any) -> Any:  # noqa: N802
        return api.SandboxWaitResponse(result=_result(self.cloud.boxes[request.sandbox_id]))

    @_operation
    async def SandboxGetFromNameV2(self, request: Any) -> Any:  # noqa: N802
        box = self.cloud.named(request.sandbox_name)
        if box is None:
            raise GRPCError(Status.NOT_FOUND, "no such sandbox")
        return api.SandboxGetFromNameResponse(sandbox_id=box.name)

    @_operation
    async def SandboxTerminateV2(self, request: Any) -> Any:  # noqa: N802
        box = self.cloud.boxes[request.sandbox_id]
        await asyncio.to_thread(box.end, "deleted")
        return api.SandboxTerminateResponse()

    # The first kind.

    @_operation
    async def SandboxCreate(self, request: Any) -> Any:  # noqa: N802
        return api.SandboxCreateResponse(sandbox_id=self.cloud.new_box(request, "sb-").name)

    @_operation
    async def SandboxStdinWrite(self, request: Any) -> Any:  # noqa: N802
        box = self.cloud.box_of_task("ta-" + request.sandbox_id[3:])
        await asyncio.to_thread(box.programs[ENTRY].write, request.input)
        return api.SandboxStdinWriteResponse()

    @_operation
    async def TaskGetCommandRouterAccess(self, request: Any) -> Any:  # noqa: N802
        access = self.access()
        return api.TaskGetCommandRouterAccessResponse(url=access.url, jwt=access.jwt)

    SandboxGetTaskId = SandboxGetTaskIdV2
    SandboxWait = SandboxWaitV2
    SandboxGetFromName = SandboxGetFromNameV2
    SandboxTerminate = SandboxTerminateV2


class _Router(TaskCommandRouterBase):
    """The router of the machine on which the sandboxes of this cloud run."""

    cloud: ModalCloud

    @_operation
    async def TaskExecStart(self, request: Any) -> Any:  # noqa: N802
        box = self.cloud.box_of_task(request.task_id)
        if request.exec_id not in box.programs:
            try:
                await asyncio.to_thread(box.run, request.exec_id, list(request.command_args))
            except FileNotFoundError as error:
                raise GRPCError(Status.INVALID_ARGUMENT, f"{error.filename}: not found") from None
        return router.TaskExecStartResponse()

    @_operation
    async def TaskExecStdinWrite(self, request: Any) -> Any:  # noqa: N802
        program = self.cloud.program(request)
        try:
            await self.in_thread(program.write, request.data, request.offset)
        except OSError:
            raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed") from None
        return router.TaskExecStdinWriteResponse()

    @_operation
    async def SandboxStdinWriteV2(self, request: Any) -> Any:  # noqa: N802
        box = self.cloud.box_of_task(request.task_id)
        await asyncio.to_thread(box.programs[ENTRY].write, request.data, request.offset)
        return router.SandboxStdinWriteV2Response()

    @_operation
    async def TaskExecPoll(self, request: Any) -> Any:  # noqa: N802
        status = self.cloud.program(request).status
        if status is None:
            return router.TaskExecPollResponse()
        return router.TaskExecPollResponse(**_ended(status))

    async def TaskExecWait(self, stream: Any) -> None:  # noqa: N802
        request, _ = await self.cloud.begin("TaskExecWait", stream)
        program = self.cloud.program(request)
        await self.in_thread(program.wait)
        status = program.status or 0
        await stream.send_message(router.TaskExecWaitResponse(**_ended(status)))

    async def in_thread(self, function: Any, *args: Any) -> Any:
        """As ``asyncio.to_thread``, in a thread of its own: these may block for long."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def work() -> None:
            try:
                result, error = function(*args), None
            except Exception as caught:
                result, error = None, caught
            loop.call_soon_threadsafe(settle, result, error)

        def settle(result: Any, error: Exception | None) -> None:
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

        threading.Thread(target=work, daemon=True).start()
        return await done

    async def TaskExecStdioRead(self, stream: Any) -> None:  # noqa: N802
        request, _ = await self.cloud.begin("TaskExecStdioRead", stream)
        program = self.cloud.program(request)
        box = self.cloud.box_of_task(request.task_id)
        output = program.output[_KINDS[request.file_descriptor]]
        at = request.offset
        news = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop = program.watch(lambda: loop.call_soon_threadsafe(news.set))
        self.cloud._streams.add(stream)
        try:
            while True:
                news.clear()
                done = program.done
                while at < len(output):
                    piece = bytes(output[at : at + CHUNK])
                    await stream.send_message(router.TaskExecStdioReadResponse(data=piece))
                    at += len(piece)
                if box.ended:
                    raise GRPCError(Status.NOT_FOUND, "Task not found")
                if done:
                    return
                await news.wait()
        finally:
            self.cloud._streams.discard(stream)
            stop()


def _ended(status: int) -> dict[str, int]:
    return {"code": status} if status >= 0 else {"signal": -status}


def _served(kind: type, cloud: ModalCloud) -> Any:
    made = _filled(kind)()
    made.cloud = cloud
    return made
