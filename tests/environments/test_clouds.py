"""Environments at a provider: the real SDKs against loopback clouds in which the worker really runs.

What every provider must do is here; what is one provider's own is in its own file.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest

from rlm_dspy import RLM, environments
from rlm_dspy._aio import run_sync
from rlm_dspy.environments import cloud as clouds_module
from rlm_dspy.environments import conformance, pool, remote
from rlm_dspy.environments.base import CellResult
from rlm_dspy.environments.remote import RemoteTransport
from rlm_dspy.errors import ConfigurationError, MissingExtraError, SandboxUnavailableError
from rlm_dspy.testing import ScriptedLM, code
from tests.environments.clouds import Provider, lead, params
from tests.environments.fakes.distance import Distance

pytestmark = [pytest.mark.heavy, pytest.mark.parametrize("provider", params())]

# Loopback clouds confine nothing; at a real provider these are checked as well (`test_the_real_provider`).
CONFINED = (
    "the_network_is_out_of_reach",
    "files_of_the_host_are_out_of_reach",
    "secrets_of_the_host_are_out_of_reach",
)
QUICK = ("state_persists", "host_calls_overlap", "host_errors_are_raised_at_the_call")
RESIST = "while True:\n    try:\n        while True:\n            x = 1\n    except BaseException:\n        y = 1"


@pytest.fixture
def cloud(provider: Provider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_leaks: None) -> Iterator[Any]:
    yield from lead(provider, monkeypatch, tmp_path)


def run(session: Any, text: str, **options: Any) -> CellResult:
    return run_sync(session.run(text, **options))


# ---------------------------------------------------------------------------------------------------------- behaviour


@pytest.mark.parametrize("check", [c for c in conformance.checks() if c.__name__ in QUICK], ids=lambda c: c.__name__)
def test_conformance_in_short(cloud: Any, provider: Provider, check: Any) -> None:
    check(provider.environment())


@pytest.mark.parametrize("check", conformance.checks(skip=CONFINED), ids=lambda check: check.__name__)
def test_conformance(cloud: Any, provider: Provider, check: Any) -> None:
    check(provider.environment())


def test_values_of_any_kind_and_size_cross(cloud: Any, provider: Provider) -> None:
    with provider.environment()() as session:
        data = bytes(range(256)) * 20_000
        text = "ä€\U0001f600\ud800\x00\r\n" * 100_000
        assert session.execute("len(data), data == bytes(range(256)) * 20_000", {"data": data}) == (len(data), True)
        assert session.execute("text", {"text": text}) == text
        assert session.execute("data") == data


def trajectory(environment: Any) -> tuple[Any, ...]:
    turns = [
        code("words = context.split()\nprint(len(words))"),
        code("1 / 0"),
        code("replies = llm_query_batched(words[:3])\nprint(replies)"),
        code("SUBMIT(answer=' '.join(replies))"),
    ]
    sub = ScriptedLM(lambda call: f"word {next(word for word in ('first', 'second', 'third') if word in call.prompt)}")
    with dspy.context(lm=ScriptedLM(turns)):
        pred = RLM("context -> answer", interpreter=environment, sub_lm=sub)(context="first second third " * 10_000)
    steps = [(turn.code, turn.output) for turn in pred.trajectory]
    return pred.answer, str(pred.outcome), steps


def test_a_program_does_the_same_as_in_the_local_environment(cloud: Any, provider: Provider) -> None:
    here = trajectory("local")
    assert here[:2] == ("word first word second word third", "submitted") and len(here[2]) == 4
    assert trajectory(provider.environment()) == here
    assert cloud.count("create") == 1


def test_one_cell_is_one_request(cloud: Any, provider: Provider) -> None:
    async def ask(x: int) -> int:
        return x + 1

    with provider.environment()() as session:
        run(session, "x = 1", functions={"ask": ask})
        before = len(cloud.calls)
        for _ in range(5):
            assert run(session, "print(x)", functions={"ask": ask}).stdout == "1\n"
        assert cloud.calls[before:] == [provider.send] * 5
        # A call of a host function costs one more: its reply.
        assert run(session, "print(ask(x))", functions={"ask": ask}).stdout == "2\n"
        assert cloud.calls[before:] == [provider.send] * 7


def test_far_away_a_cell_takes_one_round_trip(cloud: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(x: int) -> int:
        return x + 1

    def fastest(text: str) -> float:
        times = []
        for _ in range(7):
            start = time.perf_counter()
            assert run(session, text, functions={"ask": ask}).error is None
            times.append(time.perf_counter() - start)
        return min(times)

    round_trip = 0.1
    with Distance(cloud.url, round_trip) as far:
        cloud.url = far.url
        for name, value in cloud.environ.items():
            monkeypatch.setenv(name, value)
        with provider.environment()() as session:
            assert round_trip <= fastest("x = 1") < 1.8 * round_trip
            assert 2 * round_trip <= fastest("ask(x)") < 2.8 * round_trip


def test_sessions_at_once(cloud: Any, provider: Provider) -> None:
    environment = provider.environment()
    sessions = [environment() for _ in range(4)]
    threads = [threading.Thread(target=session.start) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len(cloud.alive) == 4
        for number, session in enumerate(sessions):
            session.execute(f"x = {number}")
        assert [session.execute("x") for session in sessions] == [0, 1, 2, 3]
    finally:
        for session in sessions:
            session.shutdown()


# ---------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("fault", [500, 503, "drop", "lost", 0.2], ids=str)
def test_a_passing_failure_to_make_a_sandbox_passes(cloud: Any, provider: Provider, fault: Any) -> None:
    cloud.fail("create", fault)
    with provider.environment()() as session:
        assert session.execute("1 + 1") == 2
        # One that was made although its answer was lost is not left behind.
        assert len(cloud.alive) == 1


def test_too_many_requests_pass(cloud: Any, provider: Provider) -> None:
    cloud.fail("create", 429)
    with provider.environment()() as session:
        assert session.execute("1 + 1") == 2


def test_a_lasting_failure_is_told(cloud: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    # An SDK may try several times by itself before it gives up.
    monkeypatch.setattr(clouds_module, "OPEN_SECONDS", 2.0)
    cloud.fail("create", *[500] * 50)
    with pytest.raises(SandboxUnavailableError, match=r"gave no sandbox after \d+ attempts.*500"):
        provider.environment()().start()


def test_a_limit_of_the_account_is_told_at_once(cloud: Any, provider: Provider) -> None:
    cloud.exhaust()
    with pytest.raises(SandboxUnavailableError, match=r"no more sandboxes for this account.*([Mm]aximum|[Pp]ayment)"):
        provider.environment()().start()
    # The SDK itself may try again, some times.
    assert cloud.count("create") <= 4 and cloud.made == []


def test_a_wrong_key_is_told_and_not_shown(cloud: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "wrong-key-1234567890"
    monkeypatch.setenv(provider.key, wrong)
    for options in ({}, provider.with_key(wrong)):
        with pytest.raises(ConfigurationError, match=provider.key) as caught:
            provider.environment(**options)().start()
        assert wrong not in str(caught.value) and cloud.made == []


def test_a_missing_key_is_told(cloud: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(provider.key)
    with pytest.raises(ConfigurationError, match=provider.key):
        provider.environment()().start()
    with provider.environment(**provider.with_key(cloud.key))() as session:
        assert session.execute("1 + 1") == 2


def test_a_start_that_fails_leaves_no_sandbox(cloud: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clouds_module, "OPEN_SECONDS", 0.0)
    cloud.fail(provider.start, *[400] * 10)
    with pytest.raises(SandboxUnavailableError):
        provider.environment()().start()
    assert len(cloud.made) == 1 and cloud.alive == []


def test_a_start_that_fails_once_is_tried_in_another_sandbox(cloud: Any, provider: Provider) -> None:
    cloud.fail(provider.start, *["drop"] * 4)
    with provider.environment()() as session:
        assert session.execute("1 + 1") == 2
        assert len(cloud.alive) == 1


def test_a_sandbox_without_that_python_says_so(cloud: Any, provider: Provider) -> None:
    with pytest.raises(SandboxUnavailableError, match=r"no-such-python.*not found"):
        provider.environment(python="no-such-python")().start()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_interrupted_while_it_is_made_it_leaves_no_sandbox(
    cloud: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    environment = provider.environment()
    made = type(environment).create

    def create(self: Any, token: str) -> Any:
        made(self, token)
        raise interruption

    monkeypatch.setattr(type(environment), "create", create)
    with pytest.raises(interruption):
        environment.open()
    assert len(cloud.made) == 1 and cloud.alive == []


def test_a_sandbox_that_is_killed_is_replaced(cloud: Any, provider: Provider) -> None:
    async def kill() -> None:
        cloud.end("killed")

    with provider.environment()() as session:
        run(session, "x = 1")
        result = run(session, "print('before', flush=True)\nkill()\nwhile True: pass", functions={"kill": kill})
        assert result.error is not None and result.error.type == "SandboxDied" and result.lost == ("x",)
        assert type(session.environment).provider in result.error.message and "restarted" in result.error.message
        assert run(session, "print(1)").stdout == "1\n" and len(cloud.alive) == 1


def test_a_stream_that_breaks_leaves_no_hole(cloud: Any, provider: Provider) -> None:
    async def cut() -> None:
        cloud.cut_streams()

    with provider.environment()() as session:
        run(session, "x = 1")
        result = run(session, "cut()\nprint('lost on the way')", functions={"cut": cut})
        if provider.resumes:
            assert result.error is None and result.stdout == "lost on the way\n"
            return
        assert result.error is not None and result.error.type == "SandboxDied" and result.lost == ("x",)
        assert run(session, "print(2)").stdout == "2\n"
    assert len(cloud.made) == 2


def test_a_lifetime_that_ends_is_told(cloud: Any, provider: Provider) -> None:
    async def expire() -> None:
        cloud.end("expired")

    with provider.environment()() as session:
        result = run(session, "expire()\nwhile True: pass", functions={"expire": expire})
        words = ("gone", "timeout", "expired", "lifetime")
        assert result.error is not None and any(word in result.error.message for word in words)


def test_input_that_is_refused_is_sent_again(cloud: Any, provider: Provider) -> None:
    with provider.environment()() as session:
        if not provider.slow_429:
            cloud.fail(provider.send, 429, 429)
        assert session.execute("1 + 1") == 2


def test_input_that_is_lost_does_not_leave_a_hole(cloud: Any, provider: Provider) -> None:
    with provider.environment()() as session:
        session.execute("x = 1")
        cloud.fail(provider.send, 500)
        result = run(session, "print(x)")
        if provider.resumes:
            assert result.stdout == "1\n"
            return
        assert result.error is not None and result.error.type == "SandboxDied"
        assert run(session, "print(3)").stdout == "3\n"


def test_deleting_is_tried_again(cloud: Any, provider: Provider) -> None:
    with provider.environment()() as session:
        session.execute("x = 1")
        cloud.fail("delete", 500, "drop", 503)
    assert cloud.alive == []


def test_what_cannot_be_deleted_is_told_and_deleted_at_exit(
    cloud: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote, "DELETE_SECONDS", 0.5)
    with provider.environment()() as session:
        session.execute("x = 1")
        cloud.fail("delete", *[500] * 50)
    assert cloud.alive and f"{cloud.alive[0]} could not be deleted" in caplog.text
    cloud._faults.clear()
    remote._end_all()


def test_a_cell_that_resists_is_killed_with_its_sandbox(cloud: Any, provider: Provider) -> None:
    with provider.environment()() as session:
        result = run(session, RESIST, timeout=0.3)
        assert result.error is not None and result.error.kind == "timeout"
        assert len(cloud.alive) == 1 and len(cloud.made) == 2


# ---------------------------------------------------------------------------------------------------------- clean-up


def test_a_transport_that_nobody_holds_is_closed(
    cloud: Any, provider: Provider, eventually: Callable[..., bool]
) -> None:
    transport = provider.environment().open()
    assert isinstance(transport, RemoteTransport) and cloud.alive == [transport.remote.name]
    assert transport.remote.name in repr(transport)
    del transport
    gc.collect()
    assert eventually(lambda: not cloud.alive and not remote._live)


def test_close_ends_a_read_at_once(cloud: Any, provider: Provider) -> None:
    transport = provider.environment().open()
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(transport.read(10)))
    reader.start()
    transport.close()
    transport.close()
    reader.join(5)
    assert got == [b""] and transport.read(1) == b""
    with pytest.raises(OSError):
        transport.write(b"x\n")


EXIT = """
import sys
from rlm_dspy import environments
sessions = [environments.get(sys.argv[1])() for _ in range(2)]
for session in sessions:
    print(session.execute("6 * 7"), flush=True)
transport = environments.get(sys.argv[1]).open()
"""
FORK = """
import os, sys
from rlm_dspy import environments
session = environments.get(sys.argv[1])()
session.start()
if (child := os.fork()) == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(session.execute("6 * 7"))
session.shutdown()
"""


@pytest.mark.parametrize("script", [EXIT, FORK], ids=["exit", "fork"])
def test_a_process_that_ends_leaves_no_sandbox(cloud: Any, provider: Provider, script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, provider.name], capture_output=True, text=True, timeout=120
    )
    assert set(done.stdout.split()) == {"42"} and done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert cloud.alive == [] and [box.ended for box in cloud.made] == ["deleted"] * len(cloud.made)


def test_no_spares_are_kept_unless_asked_for(cloud: Any, provider: Provider) -> None:
    environment = provider.environment()
    for _ in range(3):
        with environment() as session:
            session.execute("1")
    assert cloud.count("create") == 3 and pool.spares(environment) == 0
    environments.warm(environment, 1)
    assert len(cloud.alive) == 1


# ---------------------------------------------------------------------------------------------------------- options


def test_a_missing_sdk_names_the_extra(cloud: Any, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, provider.module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'rlm-dspy\[{provider.name}\]'"):
        provider.environment()().start()


def test_options_are_checked_and_the_key_is_not_shown(cloud: Any, provider: Provider) -> None:
    key = "a-key-of-somebody"
    environment = provider.environment(**provider.with_key(key))
    again = pickle.loads(pickle.dumps(environment))
    assert environment == again and hash(environment) == hash(again) and environment != provider.environment()
    assert key not in repr(vars(environment)) and key not in str(environment)
    for wrong in ({"nothing": 1}, {"python": ""}, {"timeout": -1}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            provider.environment(**wrong)


def test_the_description_says_who_confines(cloud: Any, provider: Provider) -> None:
    about = provider.environment().describe()
    assert about.confined and about.environment == provider.name and about.network.level == "bounded"
    assert any("probe" in line for line in about.missing)
    assert cloud.calls == []


def test_nothing_is_loaded_or_asked_before_it_is_needed(cloud: Any, provider: Provider) -> None:
    script = (
        "import sys\nfrom rlm_dspy import environments\nassert sys.argv[1] in environments.names()\n"
        "environments.get(sys.argv[1]).describe()\nassert sys.argv[2] not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, provider.name, provider.module], check=True, timeout=60)
    assert cloud.calls == []


# ---------------------------------------------------------------------------------------------------------- for real


def test_the_real_provider(provider: Provider, no_leaks: None) -> None:
    if not os.environ.get(provider.key):
        pytest.skip(f"{provider.key} is not set: with it this test runs at the provider, for some cents")
    report = conformance.run(provider.environment())
    assert report.ok, str(report)


def test_ipython_in_a_sandbox_with_files_and_set_up_code_and_a_saved_session(
    cloud: Any, provider: Provider, tmp_path: Path
) -> None:
    pytest.importorskip("IPython", reason="pip install 'rlm-dspy[ipython]'")
    inside = provider.environment(files={"a.txt": b"from the host"}, setup_code="n = 20")
    place = environments.ipython(within=inside)
    rlm = RLM("context -> answer: int", interpreter=place)
    first = "lines = !cat a.txt\ndef double(n):\n    !echo {n}\n    return 2 * n\nlines"
    with dspy.context(lm=ScriptedLM([code(first), code("SUBMIT(answer=n)")])), rlm.session() as session:
        pred = session(context="abc")
        session.save(tmp_path / "saved")
    assert pred.answer == 20 and pred.trajectory[0].output == "['from the host']"
    with dspy.context(lm=ScriptedLM([code("SUBMIT(answer=double(n + 1))")])), rlm.resume(tmp_path / "saved") as session:
        assert session(context="abc").answer == 42
    # Two sessions would be enough for spares, which cost money there.
    assert cloud.count("create") == 2 and pool.spares(place) == 0
