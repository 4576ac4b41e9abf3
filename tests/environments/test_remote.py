"""What environments at a provider share, with a provider made up here: no SDK, and programs of this machine."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy.environments import cloud, loops, remote
from rlm_dspy.environments.base import Bound
from rlm_dspy.environments.cloud import CloudEnvironment, Key
from rlm_dspy.environments.remote import Remote, RemoteTransport, Verdict
from rlm_dspy.errors import ConfigurationError, RLMError, SandboxUnavailableError


class Failure(Exception):
    """An error of the made-up SDK, which says what it means."""

    def __init__(self, verdict: Any) -> None:
        super().__init__(f"it is {verdict}")
        self.verdict = verdict


class Sandbox(Remote):
    """A sandbox that does what its test wants."""

    provider = "Nowhere"

    def __init__(self, account: Account, output: Iterator[Any] | None = None, renew_every: float | None = None) -> None:
        self.account = account
        self.name = f"box-{len(account.made)}"
        self.lifetime = 60.0 if renew_every is None else 3 * renew_every
        self.renew_every = renew_every
        self.sent: list[bytes] = []
        self.pieces = output
        self.process: Any = None
        self.released = 0
        self.deleted = threading.Event()
        account.made.append(self)
        account.alive.append(self)

    def start(self, command: str) -> None:
        if self.account.local:
            pipe = subprocess.PIPE
            command = command.replace("python3", sys.executable)
            self.process = subprocess.Popen(["sh", "-c", command], stdin=pipe, stdout=pipe, bufsize=0)
        self.account.play("start")

    def output(self) -> Iterator[Any]:
        if self.process is None:
            yield from self.pieces or ()
            if self.pieces is None:
                self.deleted.wait(60)
        while self.process is not None and (data := self.process.stdout.read(1 << 16)):
            yield data

    def send(self, data: bytes) -> None:
        self.account.play("send")
        self.sent.append(data)
        if self.process is not None:
            self.process.stdin.write(data)

    def delete(self, seconds: float) -> None:
        self.account.play("delete")
        if self not in self.account.alive:
            raise Failure("gone")
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.account.alive.remove(self)
        self.deleted.set()

    def renew(self) -> None:
        self.account.renewed += 1
        self.account.play("renew")

    def release(self) -> None:
        self.released += 1

    def judge(self, error: BaseException) -> Verdict:
        return getattr(error, "verdict", "other")


class Account:
    """What the provider has of us, and what it will do: for each operation the next outcomes, None for success."""

    def __init__(self, local: bool = False, **script: list[Any]) -> None:
        self.made: list[Sandbox] = []
        self.alive: list[Sandbox] = []
        self.by_token: dict[str, Sandbox] = {}
        self.script = script
        self.local = local
        self.renewed = 0

    def play(self, operation: str) -> None:
        waiting = self.script.get(operation)
        outcome = waiting.pop(0) if waiting else None
        if outcome is not None:
            raise outcome if isinstance(outcome, BaseException) else Failure(outcome)


class Nowhere(CloudEnvironment):
    """An environment at the made-up provider."""

    name = "nowhere"
    provider = "Nowhere"
    extra = "nowhere"
    module = "json"
    variables = ("NOWHERE_KEY",)
    machine = "a machine at Nowhere"
    network = Bound("bounded", "at Nowhere")

    def __init__(self, account: Account, repeatable: bool = False, **base: Any) -> None:
        super().__init__(**base)
        self.account = account
        self.repeatable = repeatable  # type: ignore[misc]

    def create(self, token: str) -> Remote:
        account = self.account
        # "again, made": the sandbox is made, its answer is lost.
        waiting = account.script.get("create", [])
        made = bool(waiting) and waiting[0] == "again, made"
        if made:
            waiting[0] = "again"
        if made or not waiting or waiting[0] is None:
            if not (self.repeatable and token in account.by_token):
                account.by_token[token] = Sandbox(account)
        account.play("create")
        return account.by_token[token]

    def sweep(self, token: str) -> None:
        self.account.play("sweep")
        if (found := self.account.by_token.get(token)) in self.account.alive:
            self.account.alive.remove(found)

    def judge(self, error: BaseException) -> Verdict:
        return getattr(error, "verdict", "other")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting between attempts."""
    monkeypatch.setattr(cloud, "pauses", lambda: iter(lambda: 0.0, 1.0))


creates = st.lists(
    st.sampled_from([None, "rejected", "again", "again, made", "other", "quota", "credentials", KeyboardInterrupt()]),
    max_size=6,
)
starts = st.lists(st.sampled_from([None, "again", "other", KeyboardInterrupt()]), max_size=3)


@given(creates, starts, st.booleans())
def test_whatever_happens_at_the_start_at_most_one_sandbox_is_there(
    creates: list[Any], starts: list[Any], repeatable: bool
) -> None:
    account = Account(create=[*creates, None], start=list(starts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cloud, "pauses", lambda: iter(lambda: 0.0, 1.0))
        try:
            transport = Nowhere(account, repeatable).open()
        except (RLMError, KeyboardInterrupt):
            assert account.alive == []
            return
    assert len(account.alive) == 1
    transport.close()
    transport.close()
    assert account.alive == [] and account.made[-1].released == 1


@pytest.mark.parametrize(
    ("verdict", "kind", "text"),
    [
        ("credentials", ConfigurationError, "NOWHERE_KEY"),
        ("quota", SandboxUnavailableError, "no more sandboxes for this account"),
        ("other", SandboxUnavailableError, "gave no sandbox: Failure: it is other"),
    ],
)
def test_what_does_not_pass_is_told_at_once(verdict: Any, kind: type[Exception], text: str) -> None:
    account = Account(create=["again", verdict, "again"])
    with pytest.raises(kind, match=text.replace("gave no sandbox:", "gave no sandbox after 2 attempts in 0 seconds:")):
        Nowhere(account).open()
    assert account.script["create"] == ["again"]


def test_that_a_sandbox_may_be_left_is_said(caplog: pytest.LogCaptureFixture) -> None:
    account = Account(create=["other"], sweep=["again"])
    with pytest.raises(SandboxUnavailableError):
        Nowhere(account).open()
    assert "cannot be told" in caplog.text


def test_a_session_there(no_leaks: None) -> None:
    account = Account(local=True)
    with Nowhere(account)() as session:
        assert session.execute("sum(range(5))") == 10
        assert session.execute("len(data)", {"data": bytes(5_000_000)}) == 5_000_000
        assert max(map(len, account.made[0].sent)) <= remote.WRITE_BYTES
    assert account.alive == []


@given(st.lists(st.binary(max_size=50) | st.text(max_size=20), max_size=20), st.integers(1, 30))
def test_what_is_printed_is_read(pieces: list[Any], size: int) -> None:
    transport = RemoteTransport(Sandbox(Account(), iter(pieces)))
    got = []
    while data := transport.read(size):
        assert len(data) <= size
        got.append(data)
    assert b"".join(got) == b"".join(p.encode() if isinstance(p, str) else p for p in pieces)
    transport.close()


def test_little_is_read_ahead(eventually: Callable[..., bool]) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield bytes(1 << 20)

    transport = RemoteTransport(Sandbox(Account(), endless()))
    most = remote.BUFFER_BYTES // (1 << 20) + 1
    assert eventually(lambda: taken == most)
    for _ in range(3):
        transport.read(1 << 20)
    assert eventually(lambda: taken == most + 3)
    transport.close()
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name == "rlm-dspy-remote"])


def test_long_writes_are_split_and_keep_their_order() -> None:
    sandbox = Sandbox(Account())
    transport = RemoteTransport(sandbox)
    data = bytes(range(256)) * 20_000
    transport.write(memoryview(data))
    assert [len(piece) for piece in sandbox.sent] == [2_000_000, 2_000_000, 1_120_000]
    assert b"".join(sandbox.sent) == data
    transport.close()


def test_only_a_refused_write_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "pauses", lambda: iter(lambda: 0.0, 1.0))
    account = Account(send=["rejected", "rejected", None, "again"])
    sandbox = Sandbox(account)
    transport = RemoteTransport(sandbox)
    transport.write(b"a")
    with pytest.raises(OSError, match="it is again"):
        transport.write(b"b")
    assert sandbox.sent == [b"a"]
    transport.close()


def test_the_reason_tells_what_is_known() -> None:
    def failing() -> Iterator[bytes]:
        sandbox.keep_stderr("out of cheese\n")
        yield b"x"
        raise Failure("again")

    sandbox = Sandbox(Account(), failing())
    sandbox.state = lambda: "is gone"  # type: ignore[method-assign]
    transport = RemoteTransport(sandbox)
    assert transport.read(10) == b"x" and transport.read(10) == b""
    reason = transport.reason()
    for part in ("it is again", "Nowhere says that it is gone", "out of cheese", "Nowhere sandbox box-0"):
        assert part in reason
    transport.close()
    assert transport.reason() == reason


def test_lifetimes_are_extended_until_the_end(eventually: Callable[..., bool], no_leaks: None) -> None:
    account = Account(renew=[None, "again", "other", None])
    transport = RemoteTransport(Sandbox(account, renew_every=0.02))
    # Failures are made up for: the next attempt comes sooner.
    assert eventually(lambda: account.renewed >= 8)
    transport.close()
    seen = account.renewed
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name == "rlm-dspy-keeper"])
    assert account.renewed <= seen + 1


@pytest.mark.parametrize("verdict", ["gone", "again"])
def test_a_lifetime_that_cannot_be_extended_ends_the_stream(verdict: Any) -> None:
    transport = RemoteTransport(Sandbox(Account(renew=[verdict] * 1000), renew_every=0.05))
    assert transport.read(1) == b""
    assert f"it is {verdict}" in transport.reason()
    transport.close()


@pytest.mark.parametrize("verdict", ["again", "other"])
def test_what_cannot_be_deleted_is_told_without_keys(
    verdict: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "DELETE_SECONDS", 0.05)
    key = Key("key-of-the-account")
    failure = Failure(verdict)
    failure.args = (f"{key} is refused",)
    account = Account(delete=[failure] * 10_000)
    with caplog.at_level(logging.WARNING):
        RemoteTransport(Sandbox(account)).close()
    assert "box-0 could not be deleted and ends by itself within 60 seconds" in caplog.text
    assert "[hidden] is refused" in caplog.text and key not in caplog.text and repr(key) == "'***'"
    account.script["delete"].clear()
    remote._end_all()
    assert account.alive == []


def test_an_asynchronous_stream_is_taken_one_by_one() -> None:
    given_out: list[int] = []

    async def numbers() -> Any:
        for number in range(3):
            given_out.append(number)
            yield number

    stream = loops.iterate(numbers())
    assert next(stream) == 0 and given_out == [0]
    assert list(stream) == [1, 2]

    async def fails() -> Any:
        yield 1
        raise Failure("other")

    stream = loops.iterate(fails())
    assert next(stream) == 1
    with pytest.raises(Failure):
        next(stream)


def test_an_asynchronous_stream_that_is_given_up_is_closed() -> None:
    closed = threading.Event()

    async def numbers() -> Any:
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    stream = loops.iterate(numbers())
    assert next(stream) == 1
    del stream
    assert closed.wait(10)


AT_EXIT = """
import asyncio, atexit, socket
from rlm_dspy.environments import loops

async def look_up():
    # As an SDK does it for a new connection: in the loop's threads.
    return await asyncio.get_running_loop().getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)

atexit.register(lambda: print("found", bool(loops.call(look_up(), 10)), flush=True))
loops.call(asyncio.sleep(0))
"""


def test_addresses_can_be_looked_up_when_the_process_exits() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60)
    assert done.stdout == "found True\n", done.stderr


def test_a_wait_that_takes_too_long_is_given_up() -> None:
    cancelled = threading.Event()

    async def slow() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError):
        loops.call(slow(), 0.01)
    assert cancelled.wait(10)
