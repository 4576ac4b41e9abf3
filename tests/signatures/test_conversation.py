"""The message list of a run only ever grows, and replies go back byte for byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rlm_dspy.signatures import Act, ConversationAdapter, Exchange
from rlm_dspy.signatures.conversation import EMPTY_REPLY, Conversation, conversing, current, cut

texts = st.text(max_size=60)
exchanges = st.builds(
    Exchange,
    reply=texts,
    output=texts,
    status=st.sampled_from(["", "[turn 2 of 9]"]),
    reasoning_content=st.none() | texts,
)


@given(texts, st.lists(exchanges, max_size=12), st.booleans())
def test_each_request_is_a_prefix_of_the_next(contract: str, turns: list[Exchange], replay: bool) -> None:
    conversation = Conversation(contract, replay_reasoning=replay)
    adapter = ConversationAdapter()
    inputs = {"task": "t", "turns": []}
    with conversing(conversation):
        before = adapter.format(Act, [], inputs)
        for turn in turns:
            conversation.exchanges.append(turn)
            after = adapter.format(Act, [], inputs)
            assert after[: len(before)] == before
            assert len(after) - len(before) == 2 and after[-2]["role"] == "assistant"
            if turn.reply.strip():
                assert after[-2]["content"] == turn.reply
                assert after[-2].get("reasoning_content") == ((turn.reasoning_content or None) if replay else None)
            else:
                # Providers refuse a message without text.
                assert after[-2] == {"role": "assistant", "content": EMPTY_REPLY}
            assert after[-1] == {"role": "user", "content": turn.observation()}
            before = after
    assert before[0]["role"] == "system" and before[1] == {"role": "user", "content": contract}


@given(st.text(alphabet=st.characters(), max_size=30))
def test_lone_surrogates_are_the_only_bytes_that_change(reply: str) -> None:
    conversation = Conversation("c", [Exchange(reply, "o")])
    (text,) = (m["content"] for m in conversation.messages() if m["role"] == "assistant")
    text.encode("utf-8")
    if reply.strip():
        assert (text == reply) == (not any(0xD800 <= ord(c) <= 0xDFFF for c in reply))
    else:
        assert text == EMPTY_REPLY


@given(st.lists(exchanges, max_size=20))
def test_what_is_traced_is_small_and_free_of_the_contract(turns: list[Exchange]) -> None:
    conversation = Conversation("SECRET CONTRACT", [*turns, Exchange("r" * 10_000, "o" * 10_000, "[turn 3 of 9]")])
    traced = conversation.traced_turns()
    assert len(traced) <= 8
    assert all(set(turn) == {"reply", "output"} and sum(map(len, turn.values())) < 1_500 for turn in traced)
    assert "[turn" not in traced[-1]["output"]


@given(st.text(max_size=300), st.integers(1, 100))
def test_cut_keeps_head_and_tail(text: str, limit: int) -> None:
    shown = cut(text, limit)
    if len(text) <= limit:
        assert shown == text
    else:
        head, _, rest = shown.partition("\n[… ")
        assert text.startswith(head) and len(head) <= limit and f"{len(text) - limit:,} characters left out" in rest
        assert shown.endswith(text[len(text) - (limit - limit * 2 // 3) :])


def test_conversations_nest() -> None:
    outer, inner = Conversation("a"), Conversation("b")
    assert current() is None
    with conversing(outer):
        with conversing(inner):
            assert current() is inner
        assert current() is outer
    assert current() is None
