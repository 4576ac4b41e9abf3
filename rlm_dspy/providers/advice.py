"""The sentence that names the fix for a failure of a language model."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from rlm_dspy.providers import facts
from rlm_dspy.providers.case import Case
from rlm_dspy.providers.failures import chain, failure_of
from rlm_dspy.redact import hide, redact

_LISTED = 5
_STARTS = {
    11434: "ollama serve",
    8000: "vllm serve MODEL",
    8080: "llama-server -m FILE.gguf",
    1234: "lms server start",
    30000: "python -m sglang.launch_server --model-path MODEL",
}
_CONTEXT_FLAGS = {
    11434: "OLLAMA_CONTEXT_LENGTH=32768 ollama serve",
    8000: "vllm serve MODEL --max-model-len 32768",
    8080: "llama-server -m FILE.gguf -c 32768",
}


def diagnose(error: BaseException, lm: Any = None) -> str | None:
    """What to do about an error of a language model: one sentence with the exact fix.

    Args:
        error: As it was raised; what it was raised from is looked through.
        lm: The ``dspy.LM`` that raised it, or None where that is not known: less can be said then.

    Returns:
        The sentence, or None for an error of another origin or one that explains itself. No key and no address with
        credentials is ever in it. To name the models that a server offers, one on this machine, and no other, is
        asked, for a second at most.
    """
    try:
        failure = failure_of(error)
        if failure is None:
            return None
        for secret in facts.secrets(lm):
            hide(secret)
        said = _SENTENCES[failure.kind](Case(failure, _model(error, lm), lm))
        return redact(said) if said else None
    except Exception:
        # Advice comes with an error that is already being raised. A fault of its own must not take that one's place.
        return None


def _model(error: BaseException, lm: Any) -> str:
    model = getattr(lm, "model", None)
    if isinstance(model, str):
        return model
    found = (getattr(one, "model", None) for one in chain(error))
    return next((name for name in found if isinstance(name, str)), "")


def _no_lm(case: Case) -> str:
    return (
        'No language model is set: dspy.configure(lm=dspy.LM("openai/gpt-5.4-mini")), or any other of the table of '
        "providers in the README."
    )


def _no_key(case: Case) -> str:
    unset = f'export {case.keys[0]}="..."' if case.keys else ""
    if case.prefix == "portkey":
        header = f'api_key="unused", extra_headers={{"{facts.PORTKEY_HEADER}": os.environ["PORTKEY_API_KEY"]}}'
        return f"There is no key for Portkey: run {unset}, and use {case.option(header)}."
    if case.prefix == "openai" and case.local:
        none = case.option('api_base="...", api_key="none"')
        return f"There is no key for {case.who}: one of your own needs none, but something has to be sent: {none}."
    if not case.keys:
        return f"There is no key for {case.who}: pass one, {case.option('api_key=...')}."
    return f"There is no key for {case.provider.name}: run {unset}, or pass it: {case.option('api_key=...')}."


def _key(case: Case) -> str:
    source = facts.key_source(case.full, case.lm)
    if source is None and not case.keys:
        return f"{case.Who} wants a key{case.http}: pass the one that it was started with, as api_key=..."
    where = {"api_key": "the key given as api_key=...", None: "the key"}.get(source, f"the key in {source}")
    put = "pass" if source == "api_key" else f"set {source or case.keys[0]} to"
    return f"{case.Who} refused {where}{case.http}: {put} one that is whole, in force, and {case.whose}."


def _denied(case: Case) -> str:
    what = f'"{case.name}"' if case.name else "this model"
    return (
        f"{case.Who} knows the key, but does not let it use {what}{case.http}: give its account or project "
        "access to that model, or use another model."
    )


def _model_missing(case: Case) -> str:
    if case.prefix == "azure":
        return (
            f'Azure OpenAI has no deployment "{case.name}"{case.http}: what follows azure/ is the name that the '
            "deployment was given, not the model's, and a new one takes some minutes to appear."
        )
    offered = case.offered()
    if offered and case.name not in offered:
        closest = (*difflib.get_close_matches(case.name, offered, 1, 0.0), offered[0])[0]
        first = [closest, *(name for name in offered if name != closest)][:_LISTED]
        many = f"{', '.join(first)}{', …' if len(offered) > _LISTED else ''}"
        pull = f", or run: ollama pull {case.name}" if case.is_ollama else ""
        use = f'dspy.LM("{case.like}{closest}", ...)'
        return f'{case.Who} has no model "{case.name}"; it offers {many}: use {use}{pull}.'
    if case.is_ollama:
        return f'Ollama has no model "{case.name}": run: ollama pull {case.name}'
    return (
        f'{case.Who} has no model "{case.name}" for this key{case.http}: correct the name in {case.call} '
        f"to one of {case.whose} list of models."
    )


def _address(case: Case) -> str:
    if case.prefix == "azure":
        return (
            f"There is no such path at Azure{case.http}: AZURE_OPENAI_ENDPOINT (or AZURE_API_BASE with "
            "AZURE_API_VERSION) must be https://RESOURCE.openai.azure.com, without a path."
        )
    if not case.address:
        return f"{case.Who} has nothing at that path{case.http}: check the model's name in {case.call}."
    path = urlsplit(str(case.address)).path
    root = case.address.removesuffix(path) if path else case.address
    better = root if path.endswith("/v1") and case.prefix in ("ollama", "ollama_chat") else f"{root}/v1"
    if better == case.address:
        return f"There is no chat completions API at {case.address}{case.http}: check api_base."
    return (
        f"There is no chat completions API at {case.address}{case.http}: the base URL of most servers ends in /v1, "
        f'so try api_base="{better}".'
    )


def _prefix(case: Case) -> str:
    named = case.full or "NAME"
    bare = case.name or "NAME"
    if case.prefix:
        return (
            f'"{case.prefix}" in dspy.LM("{named}") is no provider that DSPy or LiteLLM knows: for an '
            f'OpenAI-compatible server write dspy.LM("openai/{named}", api_base="http://HOST:PORT/v1", api_key=...).'
        )
    return (
        f'dspy.LM("{named}") does not say which provider has the model: write PROVIDER/NAME, such as '
        f'dspy.LM("openai/{bare}"), dspy.LM("ollama_chat/{bare}"), or dspy.LM("openai/{bare}", api_base="...") for an '
        "OpenAI-compatible server."
    )


def _context(case: Case) -> str:
    flag = _CONTEXT_FLAGS.get(case.port or 0) if case.local else None
    larger = f"start the server with more context ({flag})" if flag else "use a model with a larger context"
    return (
        f'The request is longer than the context of "{case.name}": show the root less of each output, '
        f"RLM(..., max_output_chars=4_000), put shorter pieces into llm_query, or {larger}."
    )


def _billing(case: Case) -> str:
    wait = ", wait if it is the limit of a minute or a day," if case.failure.status == 429 else ""
    return (
        f"The quota or credit of the account at {case.provider.name} is used up{case.http}: add credit or raise the "
        f"limit there{wait} or use another model."
    )


def _rate(case: Case) -> str:
    return (
        f"{case.Who} gets more requests than it allows{case.http}: make fewer at a time, "
        f"RLM(..., max_concurrency=4), and retry for longer, {case.option('num_retries=8')}."
    )


def _down(case: Case) -> str:
    if not case.address:
        return (
            f"{case.provider.name} cannot be reached from this machine: check its network, DNS and proxy "
            "(HTTPS_PROXY), or api_base."
        )
    if case.local:
        start = _STARTS.get(case.port or 0)
        how = f"start the server ({start})" if start else "start the server"
        return f"Nothing answers at {case.address}: {how}, or correct api_base."
    return f"{case.address} cannot be reached from this machine: correct api_base, or check network, DNS and proxy."


def _tls(case: Case) -> str:
    if case.address and case.address.startswith("https://") and case.local:
        return f"{case.address} does not speak TLS: write http:// in api_base."
    return (
        f"No secure connection to {case.who}: check http:// or https:// in api_base; behind a proxy that inspects "
        "traffic, set SSL_CERT_FILE to its certificate."
    )


def _timeout(case: Case) -> str:
    return f"{case.Who} did not answer in time: wait longer, {case.option('timeout=600')}, or ask for less."


def _scheme(case: Case) -> str:
    return f'api_base="{case.address}" lacks its scheme: write http:// or https:// before it.'


def _characters(case: Case) -> str:
    source = facts.key_source(case.full, case.lm)
    where = "given as api_key=..." if source in ("api_key", None) else f"in {source}"
    return (
        f"The key {where} has a character that no key has, such as a line break or a curly quote: copy it again, "
        "without what stands around it."
    )


def _package(case: Case) -> str:
    return f'{case.call} is served through LiteLLM, which is not installed: pip install "dspy[litellm]"'


def _azure(case: Case) -> str:
    return (
        'Azure OpenAI needs the address of the resource: export AZURE_OPENAI_ENDPOINT="https://RESOURCE.openai.azure'
        '.com" beside AZURE_OPENAI_API_KEY, or AZURE_API_BASE, AZURE_API_KEY and AZURE_API_VERSION for the dated API.'
    )


def _server(case: Case) -> str:
    log = "look at the server's own output" if case.local else "try again later"
    return f"{case.Who} fails{case.http}: {log}, or retry for longer, {case.option('num_retries=8')}."


_SENTENCES: dict[str, Callable[[Case], str]] = {
    "no_lm": _no_lm,
    "no_key": _no_key,
    "key": _key,
    "denied": _denied,
    "model": _model_missing,
    "address": _address,
    "prefix": _prefix,
    "context": _context,
    "billing": _billing,
    "rate": _rate,
    "down": _down,
    "tls": _tls,
    "timeout": _timeout,
    "scheme": _scheme,
    "characters": _characters,
    "package": _package,
    "azure": _azure,
    "server": _server,
}
