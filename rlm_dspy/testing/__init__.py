"""Scripted language models for tests: real code in real sandboxes, no network, no key.

    scripted.py    `ScriptedLM` and what its policies are made of
    server.py      `ScriptedServer`: such a model behind an endpoint, for programs that take an address

`ScriptedLM` is a ``dspy.LM`` on DSPy's public engine surface (an engine with ``complete(Request) -> Response``), so it
is cached, traced, metered, awaited and streamed like any other. What it answers is a *policy*: a list of replies, or a
function of the conversation.

    root = ScriptedLM([code("print(context.count('ERROR'))"), code("SUBMIT(answer='3')")])
    sub = ScriptedLM(lambda call: "yes" if "refund" in call.prompt else "no")
    rlm = RLM("context -> answer: str", sub_lm=sub)
    with dspy.context(lm=root):
        assert rlm(context=log).answer == "3"

A list is used up by one run. For many runs, also at the same time, `oracle` gives a root that knows its turn from the
conversation alone:

    root = ScriptedLM(oracle("n = context.count('ERROR')\\nprint(n)", "SUBMIT(answer=n)"))
"""

from rlm_dspy.testing.scripted import Call, Policy, Reply, ScriptedLM, code, oracle, outputs
from rlm_dspy.testing.server import ScriptedServer

__all__ = ["Call", "Policy", "Reply", "ScriptedLM", "ScriptedServer", "code", "oracle", "outputs"]
