"""What `rlm_dspy.providers.diagnose` says about each kind of failure, on DSPy's native engine and on LiteLLM."""

from __future__ import annotations

import dataclasses
import http.server
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest
from dspy.lm15 import OpenAIChatCompat, ProviderDefinition, register_provider, unregister_provider
from dspy.utils.exceptions import AdapterParseError, LMAuthError, LMServerError, LMTransportError
from hypothesis import given, settings
from hypothesis import strategies as st
from rlm_dspy_test_lines import KEY, LINES, Line, start

from rlm_dspy.errors import RunFailed, SandboxUnavailableError
from rlm_dspy.providers import diagnose, key_variables, secrets

EVERY = pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
KEYED = pytest.mark.parametrize(
    "line", [line for line in LINES.values() if not line.keyless], ids=[n for n, x in LINES.items() if not x.keyless]
)

SAID = {
    "auth": r"refused the key in \S+ \(HTTP 40[01]\): set \S+ to one|refused the key given as api_key|wants a key",
    "denied": r"does not let it use .* \(HTTP 403\)",
    "model": r'has no (model|deployment) "NAME"',
    "quota": r"quota or credit of the account .* is used up \(HTTP 4\d\d\): add credit|more requests than it allows",
    "rate": r"more requests than it allows \(HTTP 429\): .*max_concurrency=4.*num_retries=8",
    "context": r'longer than the context of "NAME".*max_output_chars=4_000',
    "server": r"fails \(HTTP 5\d\d\): look at the server's own output.*num_retries=8",
}


def raised(lm: Any) -> Exception:
    """What calling ``lm`` raises."""
    with pytest.raises(Exception) as caught:
        lm("hi")
    return caught.value


def said(lm: Any) -> str:
    """The advice on what calling ``lm`` raises."""
    advice = diagnose(raised(lm), lm)
    assert advice is not None and "\n" not in advice and len(advice) < 500
    return advice


@EVERY
@pytest.mark.parametrize("kind", SAID)
def test_each_failure_names_its_fix(
    line: Line, kind: str, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, lm = start(line, serve, monkeypatch, None, num_retries=0)
    server.always = kind
    advice = said(lm)
    assert re.search(SAID[kind].replace("NAME", re.escape(line.served)), advice), advice
    assert KEY not in advice
    for variable in key_variables(line.model) if kind == "auth" else ():
        if variable in line.variables:
            assert variable in advice


@KEYED
def test_without_a_key_the_variable_is_named_and_nothing_is_sent(
    line: Line, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {name: value for name, value in line.variables.items() if value != "KEY"}
    options = {name: value for name, value in line.options.items() if name not in ("api_key", "extra_headers")}
    keyless = dataclasses.replace(line, variables=variables, options=options)
    server, lm = start(keyless, serve, monkeypatch, None, num_retries=0)
    advice = said(lm)
    # A local server behind openai/ may be anybody's, and most of them want no key.
    wanted = 'api_key="none"' if line.model.startswith("openai/gpt") else f'export {key_variables(line.model)[0]}="..."'
    assert wanted in advice and not server.seen and not server.refusals


@EVERY
def test_a_server_that_is_not_there(line: Line, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    server, lm = start(line, serve, monkeypatch, None, num_retries=0)
    server.close()
    assert re.search(rf"Nothing answers at {server.origin}\S*: start the server, or correct api_base", said(lm))


@pytest.mark.parametrize(
    ("model", "options", "start_it"),
    [
        ("ollama_chat/qwen3:8b", {}, "ollama serve"),
        ("hosted_vllm/Qwen/Qwen3-8B", {}, "vllm serve"),
        ("openai/x", {"api_base": "http://127.0.0.1:8080/v1"}, "llama-server -m"),
        ("openai/x", {"api_base": "http://localhost:1234/v1"}, "lms server start"),
    ],
)
def test_how_to_start_the_usual_servers(model: str, options: dict[str, Any], start_it: str) -> None:
    lm = dspy.LM(model, **options)
    error = LMTransportError("failed to connect")
    error.__cause__ = ConnectionRefusedError(111, "Connection refused")
    advice = diagnose(error, lm)
    assert advice is not None and start_it in advice


@pytest.mark.parametrize("engine", ["auto", "litellm"])
def test_a_host_that_has_no_address(engine: str) -> None:
    lm = dspy.LM("openai/x", api_base="http://no-such-host.invalid/v1", api_key="none", engine=engine, num_retries=0)
    assert "http://no-such-host.invalid/v1 cannot be reached" in said(lm)


def test_a_provider_that_cannot_be_reached() -> None:
    error = LMTransportError("failed to connect")
    error.__cause__ = socket.gaierror(-2, "Name or service not known")
    advice = diagnose(error, dspy.LM("anthropic/claude-haiku-4-5"))
    assert advice is not None and advice.startswith("Anthropic cannot be reached") and "HTTPS_PROXY" in advice


# ---------------------------------------------------------------------------------------------- models and addresses


def test_the_models_that_a_local_server_has_are_listed_the_likeliest_first(serve: Callable[..., Any]) -> None:
    server = serve("vllm", "Qwen/Qwen3-8B", "server-key-0123456789")
    names = ["a", "b", "c", "Qwen/Qwen3-8B", "d", "e", "f"]
    server.wire.models = lambda: {"data": [{"id": name} for name in names]}
    lm = dspy.LM("hosted_vllm/qwen3-8b", api_base=server.url, api_key="server-key-0123456789", num_retries=0)
    advice = said(lm)
    assert 'it offers Qwen/Qwen3-8B, a, b, c, d, …: use dspy.LM("hosted_vllm/Qwen/Qwen3-8B", ...)' in advice
    assert [seen.headers["authorization"] for seen in server.listed] == ["Bearer server-key-0123456789"]


def test_a_missing_ollama_model_is_pulled(serve: Callable[..., Any]) -> None:
    server = serve("ollama", "qwen3:8b")
    lm = dspy.LM("ollama_chat/qwen3:80b", api_base=server.url, num_retries=0)
    assert 'it offers qwen3:8b: use dspy.LM("ollama_chat/qwen3:8b", ...), or run: ollama pull qwen3:80b' in said(lm)


@pytest.mark.parametrize("listing", [{"data": []}, {"data": [{"id": 1}]}, {"data": [{}]}, [], "text", {"data": None}])
def test_a_listing_of_another_shape_is_passed_over(serve: Callable[..., Any], listing: Any) -> None:
    server = serve("vllm", "there")
    server.wire.models = lambda: listing
    lm = dspy.LM("hosted_vllm/missing", api_base=server.url, num_retries=0)
    assert said(lm).endswith('correct the name in dspy.LM("hosted_vllm/missing") to one of vLLM\'s list of models.')


def test_no_other_machine_is_asked_for_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*arguments: Any, **options: Any) -> Any:
        raise AssertionError(f"connects to {arguments}")

    monkeypatch.setattr(socket, "create_connection", connect)
    error = LMServerError("no such model", status=404)
    error.__cause__ = dspy.utils.exceptions.LMUnsupportedModelError("model not found", status=404)
    advice = diagnose(error, dspy.LM("openai/x", api_base="http://192.0.2.1:8000/v1", api_key="none"))
    assert advice is not None and 'http://192.0.2.1:8000/v1 has no model "x"' in advice


@pytest.fixture
def redirecting() -> Iterator[Callable[[str], str]]:
    """``redirecting(target)`` starts a server that has no model, and sends who asks for a list elsewhere."""
    started: list[http.server.ThreadingHTTPServer] = []

    def begin(target: str) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(404)
                body = b'{"error": {"message": "The model `x` does not exist.", "code": "model_not_found"}}'
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("location", target)
                self.send_header("content-length", "0")
                self.end_headers()

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_port}/v1"

    yield begin
    for server in started:
        server.shutdown()
        server.server_close()


def test_a_redirect_does_not_carry_the_key_elsewhere(
    serve: Callable[..., Any], redirecting: Callable[[str], str]
) -> None:
    other = serve("openai", "x")
    lm = dspy.LM("openai/x", api_base=redirecting(f"{other.url}/models"), api_key=KEY, num_retries=0)
    assert 'has no model "x"' in said(lm)
    assert not other.listed


def test_a_server_that_never_lists_holds_nobody_up(serve: Callable[..., Any]) -> None:
    server = serve("vllm", "there")
    ended = threading.Event()
    server.wire.models = lambda: ended.wait(30) and {}
    lm = dspy.LM("hosted_vllm/missing", api_base=server.url, num_retries=0)
    error = raised(lm)
    began = time.monotonic()
    try:
        assert 'has no model "missing"' in str(diagnose(error, lm))
        assert time.monotonic() - began < 5
    finally:
        ended.set()


@pytest.mark.parametrize("engine", ["auto", "litellm"])
@pytest.mark.parametrize("path", ["", "/v1/chat/completions"])
def test_a_base_url_with_the_wrong_path(serve: Callable[..., Any], engine: str, path: str) -> None:
    server = serve("vllm", "m")
    lm = dspy.LM("openai/m", api_base=server.origin + path, api_key="none", engine=engine, num_retries=0)
    assert f'try api_base="{server.origin}/v1"' in said(lm)


def test_a_base_url_without_its_scheme(serve: Callable[..., Any]) -> None:
    server = serve("vllm", "m")
    lm = dspy.LM("openai/m", api_base=server.url.removeprefix("http://"), api_key="none", num_retries=0)
    assert "write http:// or https://" in said(lm)


def test_https_where_there_is_none(serve: Callable[..., Any]) -> None:
    server = serve("vllm", "m")
    lm = dspy.LM("openai/m", api_base=server.url.replace("http://", "https://"), api_key="none", num_retries=0)
    assert "does not speak TLS: write http:// in api_base" in said(lm)


@pytest.mark.parametrize("engine", ["auto", "litellm"])
def test_a_server_that_does_not_answer_in_time(serve: Callable[..., Any], engine: str) -> None:
    ended = threading.Event()
    server = serve("vllm", "m", None, lambda _: ended.wait(30) and None)
    lm = dspy.LM("openai/m", api_base=server.url, api_key="none", engine=engine, num_retries=0, timeout=0.2)
    try:
        assert "did not answer in time" in said(lm) and "timeout=600" in said(lm)
    finally:
        ended.set()


# --------------------------------------------------------------------------------------------------- names and set-up


def test_a_name_without_a_provider() -> None:
    advice = said(dspy.LM("qwen2.5", num_retries=0))
    assert 'write PROVIDER/NAME, such as dspy.LM("openai/qwen2.5"), dspy.LM("ollama_chat/qwen2.5")' in advice


def test_a_provider_that_is_none() -> None:
    assert '"foo" in dspy.LM("foo/bar") is no provider' in said(dspy.LM("foo/bar", num_retries=0))


def test_azure_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    assert "export AZURE_OPENAI_ENDPOINT=" in said(dspy.LM("azure/my-deployment", num_retries=0))


@pytest.mark.parametrize("engine", ["auto", "litellm"])
@pytest.mark.parametrize("key", ["key-with-a-line-break\n", "“key-from-a-document”"])
def test_a_key_that_was_not_copied_cleanly(serve: Callable[..., Any], engine: str, key: str) -> None:
    server = serve("openai", "m", "right")
    lm = dspy.LM("openai/m", api_base=server.url, api_key=key, engine=engine, num_retries=0)
    advice = said(lm)
    assert "copy it again" in advice or "refused the key given as api_key" in advice
    assert key.strip() not in advice


def test_no_lm_at_all() -> None:
    with dspy.context(lm=None), pytest.raises(ValueError) as caught:
        dspy.Predict("question -> answer")(question="?")
    assert 'dspy.configure(lm=dspy.LM("openai/' in str(diagnose(caught.value))


def test_litellm_is_not_installed(in_python: Callable[..., subprocess.Popen[str]]) -> None:
    script = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "litellm" else real(name, *rest)
import dspy
from rlm_dspy.providers import diagnose
lm = dspy.LM("mistral/m", api_key="none", num_retries=0)
try:
    lm("hi")
except Exception as error:
    print(diagnose(error, lm))
"""
    out, err = in_python(script).communicate(timeout=60)
    assert 'pip install "dspy[litellm]"' in out, err


# ----------------------------------------------------------------------------------------------- what is not an LM's


class _OfAnSdk(Exception):
    status_code = 404


@pytest.mark.parametrize(
    "error",
    [
        AdapterParseError("A", dspy.Signature("a -> b"), "insufficient credits; the model does not exist"),
        SandboxUnavailableError("no model of a sandbox was found"),
        _OfAnSdk("model not found"),
        ConnectionRefusedError(111, "Connection refused"),
        TimeoutError("no answer"),
        ValueError("context length"),
        ImportError("no module named tea"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_another_origin_are_left_alone(error: BaseException) -> None:
    assert diagnose(error, dspy.LM("openai/m")) is None


def test_what_an_error_was_raised_from_is_looked_through() -> None:
    cause = LMAuthError("no", status=401)
    for outer in (RunFailed("the run ended"), RuntimeError("tool"), ExceptionGroup("several", [cause])):
        if not isinstance(outer, ExceptionGroup):
            outer.__cause__ = cause
        assert "refused the key" in str(diagnose(outer, dspy.LM("openai/m", api_key=KEY)))


def test_causes_in_a_circle_end() -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    assert diagnose(one) is None


@pytest.mark.parametrize("lm", [None, object(), "a name", dspy.utils.DummyLM([])])
def test_an_lm_of_any_kind(lm: Any) -> None:
    assert "key (HTTP 401)" in str(diagnose(LMAuthError("no", status=401, model="openai/m"), lm))


# --------------------------------------------------------------------------------------------------------------- keys

ODD = st.text(st.characters(codec="utf-8"), min_size=8, max_size=60).filter(str.strip)


@settings(deadline=None, max_examples=60)
@given(key=ODD, status=st.sampled_from([None, 400, 401, 402, 403, 404, 429, 500]), made=st.integers(0, 4))
def test_no_key_is_ever_in_the_advice(key: str, status: int | None, made: int) -> None:
    """Whatever a key looks like, wherever the user put it, and though the provider sends it back."""
    quoted = "".join(f"%{byte:02x}" for byte in key.encode())
    options: dict[str, Any] = [
        {"api_key": key},
        {"api_key": key, "api_base": f"http://user:{quoted}@localhost:1/v1?key={quoted}"},
        {"api_key": "unused", "extra_headers": {"x-portkey-api-key": key}},
        {"api_key": key, "api_base": f"http://host.invalid/{quoted}/v1"},
        {"api_key": key, "api_base": key},
    ][made]
    lm = dspy.LM("openai/some-model", **options)
    for kind in (LMAuthError, LMServerError, LMTransportError, dspy.utils.exceptions.LMInvalidRequestError):
        for text in ("Incorrect API key provided", "The model does not exist", "URL missing scheme", ""):
            advice = diagnose(kind(f"{text}: {key}", status=status), lm) or ""
            assert key not in advice and quoted not in advice


def test_the_secrets_of_an_lm() -> None:
    headers = {"x-portkey-api-key": "one-secret", "Authorization": "Bearer other-secret", "x-portkey-trace-id": "t"}
    found = set(secrets(dspy.LM("openai/m", api_key="third-secret", extra_headers=headers, temperature=1.0)))
    assert found == {"one-secret", "other-secret", "third-secret"}
    assert set(secrets(None)) == set()


@pytest.mark.parametrize(
    ("model", "variables"),
    [
        ("openai/gpt-5.4-mini", ("OPENAI_API_KEY",)),
        ("gpt-5.4-mini", ("OPENAI_API_KEY",)),
        ("claude-haiku-4-5", ("ANTHROPIC_API_KEY",)),
        ("openrouter/anthropic/claude-haiku-4-5", ("OPENROUTER_API_KEY",)),
        ("openai/@my-openai/gpt-5.4-mini", ("PORTKEY_API_KEY",)),
        ("ollama_chat/qwen3:8b", ()),
        ("hosted_vllm/m", ()),
        ("nvidia_nim/m", ("NVIDIA_NIM_API_KEY",)),
        ("qwen2.5", ()),
        ("", ()),
    ],
)
def test_key_variables(model: str, variables: tuple[str, ...]) -> None:
    assert key_variables(model) == variables


@pytest.mark.parametrize(
    "prefix",
    (
        *("openai", "anthropic", "azure", "gemini", "openrouter", "groq", "deepseek", "xai", "mistral", "moonshot"),
        *("together_ai", "fireworks_ai", "cohere", "perplexity", "huggingface", "nvidia_nim", "cerebras"),
    ),
)
def test_key_variables_are_those_that_litellm_asks_for(prefix: str) -> None:
    import litellm

    missing = [name for name in litellm.validate_environment(f"{prefix}/m")["missing_keys"] if name.endswith("_KEY")]
    assert missing and set(missing) <= set(key_variables(f"{prefix}/m"))


@pytest.mark.parametrize("prefix", ["openai", "anthropic", "gemini", "openrouter", "groq", "deepseek", "moonshot"])
def test_key_variables_are_those_that_the_native_engine_asks_for(prefix: str) -> None:
    """DSPy names them on the error for a missing key."""
    error = raised(dspy.LM(f"{prefix}/m", engine="lm15", num_retries=0))
    assert set(getattr(error, "env_keys", ())) == set(key_variables(f"{prefix}/m"))


def test_a_registered_provider_names_its_own_variable() -> None:
    access = dspy.lm15.AccessPolicy(provider="tea-house", env_keys=("TEA_API_KEY",), base_url="http://127.0.0.1:9/v1")
    register_provider(ProviderDefinition.chat(access, compat=OpenAIChatCompat()))
    try:
        assert key_variables("tea-house/oolong") == ("TEA_API_KEY",)
        assert 'export TEA_API_KEY="..."' in said(dspy.LM("tea-house/oolong", num_retries=0))
    finally:
        unregister_provider("tea-house")
