"""A loopback proxy that delays all bytes, both ways: the distance to a provider."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any
from urllib.parse import urlsplit


class Distance:
    """Delays what goes to ``url`` and comes from there.

    Args:
        url: Of a loopback server.
        round_trip: Seconds that a byte and its answer take together.

    Attributes:
        url: Of the proxy.
    """

    def __init__(self, url: str, round_trip: float) -> None:
        self._port = urlsplit(url).port
        self._delay = round_trip / 2
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-distance", daemon=True)
        self.url = ""

    def __enter__(self) -> Distance:
        self._thread.start()
        starting = asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: Any) -> None:
        async def stop() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
            # The handshake of TCP takes a round trip as well.
            await asyncio.sleep(2 * self._delay)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
            with contextlib.closing(far_writer):
                await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await pieces.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if not data:
                    sink.close()
                    return
                sink.write(data)
                await sink.drain()

        delivering = asyncio.ensure_future(deliver())
        try:
            while data := await source.read(1 << 18):
                pieces.put_nowait((self._loop.time() + self._delay, data))
        finally:
            pieces.put_nowait((0.0, b""))
        await delivering
