"""`local_lm`, the ``dspy.LM`` in front of a model on this machine."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import os
from collections.abc import Iterator
from typing import Any, Literal

import dspy
from dspy.utils.exceptions import LMTransportError

from rlm_dspy.errors import LocalModelError, MissingExtraError
from rlm_dspy.models import catalog, fetch, store
from rlm_dspy.models.catalog import LocalModel, Parts
from rlm_dspy.models.server import ModelServer, ServerOptions, shared
from rlm_dspy.redact import hide

_PROVIDER = "openai"
# Work that waits in the server's queue is not lost work: a long prompt takes minutes on a slow processor.
_TIMEOUT_SECONDS = 1_800


def local_lm(
    model: str | LocalModel = catalog.DEFAULT,
    *,
    sha256: str | None = None,
    threads: int | None = None,
    context: int = 16_384,
    parallel: int = 1,
    prompt_cache: bool = True,
    serve: Literal["process", "inprocess"] = "process",
    pull: bool = True,
    check_memory: bool = True,
    temperature: float = 0.0,
    max_tokens: int = 1_024,
    **lm_options: Any,
) -> LocalLM:
    """A language model on this machine: no key, and no network once it was fetched.

        dspy.configure(lm=rlm_dspy.local_lm())

    It is served on the loopback interface by llama.cpp, from the first call on and until this process ends; all that
    ask for the same model in the same way share one server.

    Args:
        model: A name of `rlm_dspy.models.CATALOG`, the name of a model that was pulled, the path of a GGUF file, or
            ``hub:OWNER/REPO/FILE.gguf@REVISION``.
        sha256: What the file has to hash to; the catalog's models have theirs.
        threads: Threads that compute; all cores that this process may use if None.
        context: Tokens of prompt and reply together.
        parallel: Requests worked on at once, each with a context of its own; more are queued.
        prompt_cache: False for the same reply to the same prompt whatever was asked before; slower.
        serve: ``"process"`` or ``"inprocess"``, see `rlm_dspy.models.ServerOptions`.
        pull: Fetch the model now if it is not here; about 1.1 GB for the default one.
        check_memory: Refuse to start where far less memory is free than the model needs.
        temperature: Of the replies.
        max_tokens: Tokens of one reply; without a limit a small model may repeat itself until its context is full.
        **lm_options: What `dspy.LM` takes besides, such as ``cache``.

    Raises:
        MissingExtraError: The extra ``local`` is not installed.
        ConfigurationError: There is no such model, or an option cannot be meant.
        LocalModelError: The model is not here and is not to be fetched, or cannot be.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise MissingExtraError("a local model", "local")
    options = ServerOptions(context, threads, parallel, prompt_cache, serve, check_memory=check_memory)
    lm = LocalLM(
        catalog.resolve(model, sha256=sha256),
        options,
        pull=pull,
        temperature=temperature,
        max_tokens=max_tokens,
        **lm_options,
    )
    lm.find()
    return lm


class LocalLM(dspy.LM):
    """A ``dspy.LM`` whose server is started when it is called first, and again when it has died.

    It may be copied, pickled and saved; it then starts a server in the process where it is called. A program that was
    saved as JSON with one is loaded with ``allow_unsafe_lm_state=True``, as any LM class that is not DSPy's own.

    DSPy looks up the price of whatever it calls, and fetches a list of prices for that once a process. A model here has
    none, so making one sets the environment variable ``LITELLM_LOCAL_MODEL_COST_MAP`` to ``True`` if it is not set: the
    list that came with DSPy is read instead, for other models of this process too. Set it to ``False`` beforehand where
    those need the newest prices.

    Args:
        model: What is served.
        options: How.
        pull: Whether the model may be fetched when it is needed.
        **lm_options: What `dspy.LM` takes.
    """

    def __init__(
        self, model: LocalModel, options: ServerOptions | None = None, *, pull: bool = True, **lm_options: Any
    ) -> None:
        lm_options.setdefault("timeout", _TIMEOUT_SECONDS)
        # On the loopback interface nothing fails that would not fail again, but for a server that died: see `__call__`.
        lm_options.setdefault("num_retries", 0)
        _prices_at_hand()
        super().__init__(f"{_PROVIDER}/{model.served_name}", **lm_options)
        self.local_model = model
        self.options = options or ServerOptions()
        self.pull = pull

    @property
    def server(self) -> ModelServer:
        """The server that calls go to, shared with other LMs of the same model and options; maybe not started."""
        key = (self.local_model, self.options)
        if key not in _servers:
            _servers[key] = shared(self.find(), self.local_model.served_name, self.options)
        return _servers[key]

    @property
    def context_window(self) -> int:
        """Tokens of prompt and reply together that one request may have."""
        return self.options.context

    @property
    def supports_response_schema(self) -> bool:
        """True: llama.cpp holds replies to a JSON schema while it writes them."""
        return True

    @property
    def supported_params(self) -> set[str]:
        """What DSPy knows of OpenAI's clients in general, and ``response_format``, which llama.cpp has."""
        return {*super().supported_params, "response_format"}

    def find(self) -> Any:
        """The model's file, fetched if it is not here and may be.

        Raises:
            LocalModelError: It is not here.
        """
        if self.pull:
            return fetch.pull(self.local_model)
        path = store.complete(self.local_model)
        if path is None:
            name = self.local_model.name
            raise LocalModelError(f"the model {name} is not here. Fetch it with: rlm-dspy model pull {name}")
        return path

    def start(self) -> LocalLM:
        """Start the server now, which takes some seconds, instead of with the first call."""
        # Also for one that was made in another process and came here through pickle.
        _prices_at_hand()
        address = self.server.ensure()
        hide(address.key)
        # DSPy makes its clients by address and key, so that a new address gets a new client.
        self.kwargs["api_base"], self.kwargs["api_key"] = f"{address.url}/v1", address.key
        return self

    def stop(self) -> None:
        """End the server, for all who share it, and give its memory back; the next call starts another."""
        self.server.stop()

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        for last in self._attempts():
            self.start()
            try:
                return super().__call__(prompt, messages=messages, **kwargs)
            except Exception as error:
                if last or not self.server.gone(isinstance(error, LMTransportError)):
                    raise
        raise AssertionError("unreachable")

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """As a call, without blocking the event loop."""
        for last in self._attempts():
            if self.server.alive:
                self.start()
            else:
                await asyncio.to_thread(self.start)
            try:
                return await super().acall(prompt, messages=messages, **kwargs)
            except Exception as error:
                if last or not await asyncio.to_thread(self.server.gone, isinstance(error, LMTransportError)):
                    raise
        raise AssertionError("unreachable")

    def dump_state(self) -> dict[str, Any]:
        """As of any LM, with the model and how it is served in place of the address."""
        state = super().dump_state()
        for key in ("api_base", "api_key", "model", "model_type"):
            state.pop(key, None)
        local = {"model": dataclasses.asdict(self.local_model), "options": dataclasses.asdict(self.options)}
        return {**state, "local": {**local, "pull": self.pull}}

    @classmethod
    def load_state(cls, state: dict[str, Any], *, allow_custom_lm_class: bool = False) -> LocalLM:
        """The LM that `dump_state` described; nothing is fetched or started by this."""
        state = dict(state)
        state.pop("_dspy_lm_class", None)
        local = state.pop("local")
        described = dict(local["model"])
        parts = described.pop("parts", None)
        model = LocalModel(**described, parts=Parts(**parts) if parts else None)
        return cls(model, ServerOptions(**local["options"]), pull=local["pull"], **state)

    @staticmethod
    def _attempts() -> Iterator[bool]:
        # A server that died under a call is started again once; that it keeps dying shows at the start.
        yield False
        yield True


def _prices_at_hand() -> None:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


_servers: dict[tuple[LocalModel, ServerOptions], ModelServer] = {}
