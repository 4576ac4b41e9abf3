"""Model servers on the loopback interface: an OpenAI-compatible one, and one of tokens, as vLLM serves a trainer.

Both answer from a policy as `rlm_dspy.testing.ScriptedLM` does, for many conversations at once, and keep every request.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
import uuid
from collections.abc import Callable
from typing import Any

from aiohttp import web

from rlm_dspy.testing import Call, Reply

LOGPROB = -0.25
Policy = Callable[[Call], "str | Reply"]


class ModelServer:
    """A server in a thread of its own.

    Attributes:
        bodies: Requests in order, as they came.
        url: With ``/v1``.
        keys: Their idempotency keys.
        failing: Statuses to answer with before anything else, one a request; 0 for none, but a lost connection.
        saying: What a failure says.
        widest: Most requests at once.
    """

    def __init__(self, policy: Policy, tokenizer: Any = None) -> None:
        self.policy = policy
        self.tokenizer = tokenizer
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.failing: list[int] = []
        self.saying = "failed on purpose"
        self.widest = self._now = 0
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self._ready.wait()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        # Not before the loop runs for good: a stop that comes earlier would be lost, and closing wait for ever.
        self._loop.call_soon(self._ready.set)
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{port}/v1"

    @property
    def messages(self) -> list[list[dict[str, Any]]]:
        """Of each chat request."""
        return [body["messages"] for body in self.bodies if "messages" in body]

    async def _reply(self, messages: list[dict[str, Any]]) -> str:
        # A policy sees texts alone, as a model would after the chat template.
        texts = [{**message, "content": message.get("content") or ""} for message in messages]
        self._now += 1
        self.widest = max(self.widest, self._now)
        try:
            reply = self.policy(Call(next(self._numbers), texts, None))  # type: ignore[arg-type]
            if isinstance(reply, str):
                return reply
            if reply.delay:
                await asyncio.sleep(reply.delay)
            return reply.text
        finally:
            self._now -= 1

    async def _chat(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.keys.append(request.headers.get("Idempotency-Key"))
        if self.failing:
            status = self.failing.pop(0)
            if status == 0 and request.transport is not None:
                request.transport.abort()
                status = 500
            return web.json_response({"error": {"message": self.saying}}, status=status)
        text = await self._reply(body["messages"])
        used = {"prompt_tokens": sum(len(m.get("content") or "") for m in body["messages"]) // 4}
        used |= {"completion_tokens": len(text) // 4}
        used["total_tokens"] = sum(used.values())
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        about = {"id": uuid.uuid4().hex, "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**about, "choices": [choice], "usage": used})

    async def _generate(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.bodies.append(body)
        text = self.tokenizer.decode(body["token_ids"], skip_special_tokens=False)
        found = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", text, re.DOTALL)
        messages = [{"role": role, "content": re.sub(r"^<think>\n\n</think>\n\n", "", said)} for role, said in found]
        ids = self.tokenizer(await self._reply(messages), add_special_tokens=False)["input_ids"]
        ids = [*ids, self.tokenizer.convert_tokens_to_ids("<|im_end|>")]
        probabilities = {"content": [{"token": f"token_id:{one}", "logprob": LOGPROB} for one in ids]}
        choice = {"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": probabilities}
        return web.json_response({"request_id": uuid.uuid4().hex, "choices": [choice]})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 65_536}]})

    def close(self) -> None:
        """Stop serving."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
