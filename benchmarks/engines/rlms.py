"""The paper's package, ``rlms``, in its ``local`` environment: ``exec`` in this very process, not isolated.

It is its fastest one. The width of ``llm_query_batched`` is 16 and no option of ``RLM`` (``batch_max_concurrent`` of
``LMHandler`` in rlms 0.1.3); ``max_concurrent_subcalls`` is about ``rlm_query_batched``, which is not used here.
"""

from __future__ import annotations

from typing import Any

from rlm import RLM

from benchmarks.engines import Engine
from benchmarks.work import Work, context


def prepare(work: Work, address: str) -> Engine:
    """See `benchmarks.engines`."""

    def server(model: str) -> dict[str, Any]:
        return {"model_name": model, "base_url": f"{address}/v1", "api_key": "none", "max_retries": 0}

    text = context(work.context)

    def one() -> None:
        rlm = RLM(
            backend="openai",
            backend_kwargs=server(work.root_model("rlms")),
            other_backends=["openai"],
            other_backend_kwargs=[server(work.sub_model("rlms"))],
            environment="local",
            max_iterations=work.turns,
        )
        response = rlm.completion(text).response
        assert response == "ok", response

    return Engine(one)
