"""A small model as an OpenAI-compatible server: what was trained here, for `dspy.LM`, without vLLM.

    python -m rlm_dspy.training.serve tuned --port 8000

    lm = dspy.LM("hosted_vllm/tuned", api_base="http://127.0.0.1:8000/v1", api_key="none")
    with dspy.context(lm=lm):
        RLM("context, query -> answer: int")(context=text, query="...")

It has ``/v1/chat/completions``, ``/v1/models``, and ``/inference/v1/generate``, the endpoint of vLLM for trainers, by
which the rollouts of `rlm_dspy.training.grpo` are sampled. It listens on this machine alone, and streams nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from rlm_dspy._signals import joined, until
from rlm_dspy.errors import ConfigurationError, MissingExtraError, RLMError
from rlm_dspy.training.local_model import LocalModel, load
from rlm_dspy.training.sampling import Asked, Sampled, Sampler

__all__ = ["Server", "main"]

HOST = "127.0.0.1"


class _Refused(Exception):
    """A request that cannot be answered; the text says why."""


class Server:
    """Serves a model from threads of its own, until it is closed. A context manager.

    Args:
        local: The model.
        name: It goes by.
        port: 0 for any that is free.
        width: Most requests in one batch.
        max_tokens: Of a reply, where a request says nothing.
        template: Arguments of the chat template, such as ``{"enable_thinking": False}``.
        seed: Of what is drawn.

    Attributes:
        url: With ``/v1``.
        sampler: What answers.
        window: Tokens of prompt and reply together.

    Raises:
        MissingExtraError: aiohttp is missing.
        ConfigurationError: The port is taken.
    """

    def __init__(
        self,
        local: LocalModel,
        name: str = "local",
        *,
        port: int = 0,
        width: int = 16,
        max_tokens: int = 1_024,
        template: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("serving a model", "trl") from error
        self.local = local
        self.name = name
        self.max_tokens = max_tokens
        self.template = dict(template or {})
        self.window = local.window() or 32_768
        self.ends = _ends(local)
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready: threading.Event = threading.Event()
        self._failed: OSError | None = None
        self.sampler = Sampler(local, width=width, seed=seed)
        self._thread = threading.Thread(target=self._serve, args=(port,), name="rlm-dspy-serve", daemon=True)
        self._thread.start()
        until(self._ready.wait)
        if self._failed is not None:
            joined(self._thread)
            self.sampler.close()
            raise ConfigurationError(f"the port {port} cannot be had: {self._failed}. Name another one")

    def _serve(self, port: int) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            runner = self._loop.run_until_complete(self._start(port))
        except OSError as error:
            self._failed = error
            self._loop.close()
            self._ready.set()
            return
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _start(self, port: int) -> Any:
        from aiohttp import web

        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_get("/v1/models", self._models)
        # A handler is cancelled when its client goes away, and the sampler then leaves its request.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, HOST, port)
        try:
            await site.start()
        except OSError:
            await runner.cleanup()
            raise
        self.url = f"http://{HOST}:{runner.addresses[0][1]}/v1"
        return runner

    def close(self) -> None:
        """Stop serving. Requests that are being answered have a second more."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            joined(self._thread)
            self.sampler.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _sample(self, ids: list[int], asked: Mapping[str, Any], stop: frozenset[int]) -> Sampled:
        room = self.window - len(ids)
        if room < 1:
            raise _Refused(f"This model's maximum context length is {self.window} tokens; the prompt has {len(ids)}")
        given = asked.get("max_completion_tokens") or asked.get("max_tokens") or self.max_tokens
        try:
            temperature = 1.0 if asked.get("temperature") is None else float(asked["temperature"])
            top_p = 1.0 if asked.get("top_p") is None else float(asked["top_p"])
            most = min(int(given), room)
        except (TypeError, ValueError, OverflowError) as error:
            raise _Refused(f"temperature, top_p and max_tokens are numbers: {error}") from error
        # What the model cannot compute would be the error of all requests of the same batch.
        known = len(self.local.model.get_input_embeddings().weight)
        if not ids or not all(type(one) is int and 0 <= one < known for one in ids):
            raise _Refused(f"a prompt is at least one token, each a number of 0 to {known - 1}")
        if most < 1 or not 0 <= temperature < math.inf or not 0 < top_p <= 1:
            raise _Refused("max_tokens is at least 1, temperature at least 0, top_p above 0 and at most 1")
        return await asyncio.wrap_future(self.sampler.ask(Asked(ids, most, temperature, top_p, stop)))

    async def _chat(self, request: Any) -> Any:
        async def answer(body: dict[str, Any]) -> dict[str, Any]:
            if body.get("stream"):
                raise _Refused("this server does not stream: leave stream out")
            if body.get("n", 1) not in (1, None):
                raise _Refused("this server gives one choice: leave n out")
            tokenizer = self.local.tokenizer
            if not all(isinstance(message, dict) for message in body["messages"]):
                raise _Refused("messages are objects with a role and a content")
            messages = [{**message, "content": _text(message.get("content"))} for message in body["messages"]]
            options = {**self.template, **(body.get("chat_template_kwargs") or {})}
            prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
            ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            said = await self._sample(ids, body, self.ends)
            text, finish = tokenizer.decode(said.ids, skip_special_tokens=True), said.finish
            stops = body.get("stop") or []
            for stop in [stops] if isinstance(stops, str) else stops:
                if stop and stop in text:
                    text, finish = text.split(stop)[0], "stop"
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
            used = {"prompt_tokens": len(ids), "completion_tokens": len(said.ids)}
            return {
                "id": f"chatcmpl-{uuid.uuid4().hex}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": self.name,
                "choices": [choice],
                "usage": {**used, "total_tokens": sum(used.values())},
            }

        return await _answered(request, answer)

    async def _generate(self, request: Any) -> Any:
        async def answer(body: dict[str, Any]) -> dict[str, Any]:
            asked = body.get("sampling_params") or {}
            if not isinstance(asked, dict) or not isinstance(body["token_ids"], list):
                raise _Refused("token_ids is a list, and sampling_params an object")
            said = await self._sample(body["token_ids"], asked, frozenset(asked.get("stop_token_ids") or ()))
            content = [
                {"token": f"token_id:{token}", "logprob": value}
                for token, value in zip(said.ids, said.logprobs, strict=True)
            ]
            choice = {"index": 0, "token_ids": said.ids, "finish_reason": said.finish, "logprobs": {"content": content}}
            return {"request_id": uuid.uuid4().hex, "choices": [choice]}

        return await _answered(request, answer)

    async def _models(self, _: Any) -> Any:
        from aiohttp import web

        one = {"id": self.name, "object": "model", "owned_by": "local", "max_model_len": self.window}
        return web.json_response({"object": "list", "data": [one]})


async def _answered(request: Any, answer: Any) -> Any:
    from aiohttp import web

    try:
        body = json.loads(await request.read())
        if not isinstance(body, dict):
            raise _Refused("a request is a JSON object")
        return web.json_response(await answer(body))
    except _Refused as refused:
        said, kind, status = str(refused), "invalid_request_error", 400
    except (KeyError, TypeError, ValueError) as error:
        said = f"the request cannot be read: {type(error).__name__}: {error}"
        kind, status = "invalid_request_error", 400
    except Exception as error:  # of the model: the next request may fare better
        said, kind, status = f"{type(error).__name__}: {error}", "server_error", 500
    return web.json_response({"error": {"message": said, "type": kind}}, status=status)


def _text(content: Any) -> str:
    if isinstance(content, list):
        if any(not isinstance(part, dict) or part.get("type") != "text" for part in content):
            raise _Refused("this server takes text alone")
        return "".join(part["text"] for part in content)
    if not isinstance(content, str | None):
        raise _Refused("the content of a message is a text, or a list of its parts")
    return content or ""


def _ends(local: LocalModel) -> frozenset[int]:
    found: set[int] = set()
    for one in (local.tokenizer.eos_token_id, getattr(local.model.generation_config, "eos_token_id", None)):
        found.update(one if isinstance(one, list) else [] if one is None else [one])
    return frozenset(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see the top of this module. Ends with Ctrl-C.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m rlm_dspy.training.serve", description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a folder, or a name on the hub")
    parser.add_argument("--name", help="what it goes by (the last part of the model's)")
    parser.add_argument("--port", type=int, default=8000, help="0 for any that is free (8000)")
    parser.add_argument("--width", type=int, default=16, help="most requests in one batch (16)")
    parser.add_argument("--template", type=json.loads, help='of the chat template: {"enable_thinking": false}')
    parser.add_argument("--device", help="cuda or cpu; the GPU where there is one")
    given = parser.parse_args(arguments)
    name = given.name or str(given.model).rstrip("/").rpartition("/")[2]
    try:
        local = load(given.model, device=given.device)
        server = Server(local, name, port=given.port, width=given.width, template=given.template)
    except RLMError as error:
        parser.error(str(error))
    with server, contextlib.suppress(KeyboardInterrupt):
        print(f'dspy.LM("hosted_vllm/{name}", api_base="{server.url}", api_key="none")', flush=True)
        until(threading.Event().wait)
    return 0


if __name__ == "__main__":
    sys.exit(main())
