"""An OpenAI-compatible server of known latency, in a process of its own: the same one for every engine.

    python -m benchmarks.server      prints its port, serves until its standard input closes
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

from benchmarks.replies import reply, text_of


class Prefixes:
    """How much of each prompt was the beginning of the next one, by model."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._seen: dict[str, list[int]] = {}
        self._messages: dict[str, int] = {}

    def note(self, model: str, messages: list[dict[str, Any]]) -> None:
        """Compare with the prompt before; a first turn begins anew."""
        prompt = "\0".join(f"{message['role']}\0{text_of(message)}" for message in messages)
        last = self._last.get(model)
        if last is not None:
            same, whole = self._seen.setdefault(model, [0, 0])
            self._seen[model] = [same + _common(last, prompt), whole + len(last)]
        self._last[model] = prompt
        self._messages[model] = len(messages)

    def report(self) -> dict[str, Any]:
        """By model: the share, and the number of messages of the last prompt."""
        return {
            model: {"reused": same / whole, "messages": self._messages[model]}
            for model, (same, whole) in self._seen.items()
        }


def _common(first: str, second: str) -> int:
    """Characters that both begin with."""
    for at, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return at
    return min(len(first), len(second))


async def _serve() -> None:
    from aiohttp import web  # comes with DSPy

    prefixes = Prefixes()

    async def chat(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        model, messages = body["model"], body["messages"]
        if model.endswith(".record"):
            prefixes.note(model, messages)
        text, seconds = reply(model, messages)
        if seconds:
            await asyncio.sleep(seconds)
        tokens = {"prompt_tokens": sum(len(text_of(m)) for m in messages) // 4, "completion_tokens": len(text) // 4}
        message = {"role": "assistant", "content": text}
        return web.json_response(
            {
                "id": "chatcmpl-0",
                "object": "chat.completion",
                "created": 0,
                "model": model,
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {**tokens, "total_tokens": sum(tokens.values())},
            }
        )

    async def seen(_: web.Request) -> web.Response:
        return web.json_response(prefixes.report())

    application = web.Application(client_max_size=1 << 30)
    application.router.add_post("/v1/chat/completions", chat)
    application.router.add_get("/prefixes", seen)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    # It ends with whoever started it, also by SIGKILL.
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Start the server; yields its address, such as ``"http://127.0.0.1:41234"``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError("the benchmark's server did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def prefixes(address: str) -> dict[str, Any]:
    """What `Prefixes.report` says now."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{address}/prefixes", timeout=10) as response:
        report: dict[str, Any] = json.load(response)
    return report


if __name__ == "__main__":
    asyncio.run(_serve())
