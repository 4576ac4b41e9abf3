"""Files in and out of a session in a worker."""

from __future__ import annotations

import os
from typing import Any

import dspy

from rlm_dspy._aio import run_sync, threads
from rlm_dspy.environments import given
from rlm_dspy.environments.base import Environment
from rlm_dspy.environments.channel import RequestFailed
from rlm_dspy.environments.prepare import piece_size

_ERRORS: dict[str, type[OSError]] = {
    kind.__name__: kind for kind in (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
}


class Transfer:
    """The part of a session that moves files; also while a cell runs, so that a tool may hand it one."""

    environment: Environment

    async def _request(self, op: str, body: Any = None) -> Any:
        raise NotImplementedError

    async def aupload(self, name: str, data: bytes | str | os.PathLike[str]) -> None:
        """Put one file into the session's working folder; one of that name is replaced. Goes over in pieces.

        Args:
            name: Its name there, such as ``"data/a.csv"``; folders are made.
            data: The bytes, or the path of a file of this host.

        Raises:
            ConfigurationError: The name leads out of the folder, or the file is too large (1 GiB).
            OSError: It cannot be read here, or not be written there.
            dspy.CodeInterpreterError: The session is over.
        """
        source = given.source_of(name, data)
        pieces = source.pieces(piece_size(self.environment))
        while (piece := await threads.run(next, pieces, None)) is not None:
            await self._move("write", piece, source.name)

    async def adownload(self, name: str, *, max_bytes: int | None = None) -> bytes:
        """The content of one file of the session's working folder. Nothing is written on this host.

        Args:
            name: Its name there.
            max_bytes: The most that is taken; by default the environment's ``max_value``.

        Raises:
            ConfigurationError: The name leads out of the folder.
            FileNotFoundError, IsADirectoryError, PermissionError: As the sandbox says.
            OSError: It is larger, or cannot be read there.
            dspy.CodeInterpreterError: The session is over.
        """
        name = given.checked_name(name, "download")
        cap = self.environment.max_value if max_bytes is None else max_bytes
        size = piece_size(self.environment)
        found = bytearray()
        while True:
            answer = await self._move("read", {"name": name, "start": len(found), "size": size}, name)
            # The worker shares a process with the code, so its answer is only trusted to be some value.
            piece = answer.get("data") if isinstance(answer, dict) else None
            if not isinstance(piece, bytes) or len(piece) > size:
                raise dspy.CodeInterpreterError(f"the sandbox does not give the file {name!r}")
            if not piece:
                return bytes(found)
            found += piece
            if len(found) > cap:
                raise OSError(f"the file {name!r} in the sandbox has more than the {cap} bytes allowed")

    def upload(self, name: str, data: bytes | str | os.PathLike[str]) -> None:
        """`aupload`, waiting for it."""
        run_sync(self.aupload(name, data))

    def download(self, name: str, *, max_bytes: int | None = None) -> bytes:
        """`adownload`, waiting for it."""
        return run_sync(self.adownload(name, max_bytes=max_bytes))

    async def _move(self, op: str, body: dict[str, Any], name: str) -> Any:
        try:
            return await self._request(op, body)
        except RequestFailed as error:
            raise _ERRORS.get(error.kind, OSError)(f"{name!r} in the sandbox: {error.kind}: {error}") from None
