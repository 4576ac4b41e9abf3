"""Frames and the value codec: exact round trips, and no way to hurt the receiver."""

# ruff: noqa: E501
from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlm_dspy.environments.codec import MAX_DEPTH, Decoder, Encoder, ValueTooLarge
from rlm_dspy.environments.records import FailedCall, Record
from rlm_dspy.environments.wire import MAX_LINE, ProtocolError, Reader, TextBlob, write_frame

TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates included


def through(value: Any, *, records: bool = False, limit: int | None = None) -> Any:
    """``value`` written as a frame, cut out of the byte stream again in small reads, and decoded."""
    encoder = Encoder(limit)
    tree = encoder.dump(value)
    stream = bytearray()
    write_frame(stream.extend, {"body": tree}, encoder.blobs)
    head, blobs = reader_of(bytes(stream)).frame()
    return Decoder(blobs, records).load(head["body"])


def reader_of(data: bytes, **caps: Any) -> Reader:
    position = 0

    def read(n: int) -> bytes:
        nonlocal position
        piece = data[position : position + min(n, 100_003)]
        position += len(piece)
        return piece

    return Reader(read, **caps)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return type(a) is type(b) and a == b


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXT, st.binary(), st.complex_numbers(allow_nan=False),
    st.dates(), st.times(), st.datetimes(timezones=st.none() | st.just(datetime.UTC)), st.timedeltas(),
    st.decimals(allow_nan=False), st.fractions(), st.uuids(),
)  # fmt: skip
hashables = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.dictionaries(TEXT, inner, max_size=4)
        | st.sets(hashables, max_size=4)
    ),
    max_leaves=20,
)


@given(values)
@example({"$": "tree", "b": 0})
@example({"a": {"$": 1}})
@example("\ud83d\ude00")
@example(10**5000)
@example(-(2**62))
def test_round_trip(value: Any) -> None:
    assert same(through(value), value)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), float("-inf"), bytearray(b"abc"), range(0, 10, 3), pathlib.Path("/a/\udcff"), b"z" * 200_000,
        "x" * 100_000, "é" * 100_000, "中" * 100_000, "\ud800中" * 50_000, "a\N{GRINNING FACE}" * 2_000_000, "中\N{GRINNING FACE}\ud800" * 1_000_000,
        decimal.Decimal("-0E+10"), [f"line {i}" for i in range(100_000)],
        datetime.datetime(2024, 10, 27, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
        {i: i for i in range(5000)}, set(range(5000)),
    ],
    ids=lambda v: type(v).__name__,
)  # fmt: skip
def test_round_trip_of(value: Any) -> None:
    assert same(through(value), value)


def test_failed_calls_stay_failed_calls() -> None:
    back = through([FailedCall("no\ud800"), "yes"])
    assert isinstance(back[0], FailedCall) and back[0].error == "no\ud800" and type(back[1]) is str


class Color(enum.IntEnum):
    RED = 3


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    tags: list[str] = []


@dataclasses.dataclass
class Box:
    item: Any
    label: str = "l"


Pair = collections.namedtuple("Pair", "left right")


def test_records_by_attribute_and_key_in_the_sandbox() -> None:
    box = through(Box(Person(name="Ada", extra=1)), records=True)
    assert isinstance(box, Record)
    assert box.item.name == box["item"]["name"] == "Ada" and box.item.extra == 1
    assert repr(box) == "Box(item=Person(name='Ada', tags=[], extra=1), label='l')"
    assert box.model_dump() == {"item": {"name": "Ada", "tags": [], "extra": 1}, "label": "l"}
    assert dict(box)["label"] == "l" and box == through(Box(Person(name="Ada", extra=1)), records=True)
    left, right = pair = through(Pair(1, 2), records=True)
    assert (left, right, pair[1], pair.right, repr(pair)) == (1, 2, 2, 2, "Pair(left=1, right=2)")


def test_records_are_dicts_on_the_host() -> None:
    sandboxed = through(Box(Pair(1, [Person(name="x")])), records=True)
    assert through(sandboxed) == {"item": {"left": 1, "right": [{"name": "x", "tags": []}]}, "label": "l"}


def test_subclasses_cross_as_their_base() -> None:
    counter = collections.Counter("aab")
    value = [Color.RED, counter, collections.deque([1]), collections.OrderedDict(a=1), type("S", (str,), {})("s")]
    assert through(value) == [3, {"a": 2, "b": 1}, [1], {"a": 1}, "s"]


ARRAYS = [
    np.arange(12).reshape(3, 4), np.arange(12.0).reshape(3, 4).T, np.array(["a", "é\ud800"]), np.array([1, "x", None], dtype=object),
    np.zeros((0, 3)), np.array(5), np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), np.arange(100_000, dtype=">i8"),
    np.array(["2020-01-01", "NaT"], dtype="M8[ns]"), np.array([b"x", b""]), np.zeros(100_000, dtype="m8[s]"), np.array([1 + 2j]),
    np.array([True, False]), np.array([1.5], dtype=np.float16),
]  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: str(a.dtype))
def test_numpy_arrays(array: Any) -> None:
    back = through(array)
    assert back.dtype == array.dtype and back.shape == array.shape
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable


@pytest.mark.parametrize(
    "scalar", [np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("x"), np.datetime64("2020-01-01")]
)
def test_numpy_scalars(scalar: Any) -> None:
    assert same(through(scalar), scalar)


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "int": [1, 2],
            "text": ["x", None],
            "cat": pd.Categorical(["u", "v"], ordered=True),
            "time": pd.to_datetime(["2020-01-01 00:00:00.123456789", None]),
            "zone": pd.to_datetime(["2020", "2021"]).tz_localize("UTC"),
            "null": pd.array([1, None], dtype="Int64"),
            "any": [{"q": 1}, [2]],
            5: [1.0, float("nan")],
        },
        index=["r", "s"],
    )


def test_pandas() -> None:
    df = frame()
    pd.testing.assert_frame_equal(through(df), df)
    for column in df:
        pd.testing.assert_series_equal(through(df[column]), df[column])
    grouped = df.groupby(["int", "text"], dropna=False)[[5]].sum()
    pd.testing.assert_frame_equal(through(grouped), grouped)
    pd.testing.assert_index_equal(through(df.index), df.index)
    for value in (
        pd.Timestamp("2020-01-01 00:00:00.123456789"),
        pd.Timedelta("1s"),
        pd.Timestamp("2020", tz="Europe/Berlin"),
    ):
        assert same(through(value), value)
    assert through(pd.NaT) is pd.NaT and through(pd.NA) is pd.NA


def test_arrays_and_frames_become_lists_where_the_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    for value in (*ARRAYS, np.float32(1.5), frame()[["int", "text", 5, "cat"]], frame()["int"], pd.RangeIndex(3)):
        encoder = Encoder()
        encoded.append((value, encoder.dump(value), encoder.blobs))
    monkeypatch.setattr("rlm_dspy.environments.arrays._module", lambda name: None)
    for value, tree, blobs in encoded:
        back = Decoder([bytes(blob) for blob in blobs], records=True).load(json.loads(json.dumps(tree)))
        if isinstance(value, pd.DataFrame):
            assert back[0] == {"int": 1, "text": "x", 5: 1.0, "cat": "u"} and len(back) == 2
        elif isinstance(value, np.ndarray) and value.dtype.names:
            assert back == {"a": [1], "b": [2.0]}
        elif isinstance(value, np.ndarray) and value.dtype.kind in "mM":
            assert len(back) == len(value) and back[0] in (datetime.datetime(2020, 1, 1), datetime.timedelta())
        else:
            assert back == value.tolist() if hasattr(value, "tolist") else list(value)


@pytest.mark.parametrize("value", [object(), (i for i in ()), len, type, print, {}.keys(), open])
def test_what_cannot_cross_says_its_type_and_the_fix(value: Any) -> None:
    with pytest.raises(TypeError, match=rf"(?s)(?=.*{type(value).__name__}).*cannot cross.*convert"):
        through([value])


def test_depth_and_cycles() -> None:
    nested: Any = []
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert through(nested) == nested
    cycle: list[Any] = []
    cycle.append({"c": (cycle,)})
    for value in ([nested], cycle):
        with pytest.raises(ValueError, match="nested more than"):
            through(value)


def test_the_senders_limit() -> None:
    with pytest.raises(ValueTooLarge, match="1048576 bytes"):
        through("x" * 2_000_000, limit=1 << 20)
    with pytest.raises(ValueTooLarge):
        through(["y" * 70_000] * 20, limit=1 << 20)
    with pytest.raises(ValueTooLarge):
        through([{}] * 1_000_000, limit=1 << 20)
    assert through("x" * 1_000_000, limit=1 << 20) == "x" * 1_000_000


def test_long_text_is_encoded_piece_by_piece() -> None:
    encoder = Encoder()
    encoder.dump("é" * 5_000_000)
    assert isinstance(encoder.blobs[0], TextBlob)
    assert max(map(len, encoder.blobs[0].pieces())) <= 1 << 20


# ------------------------------------------------------------------------------------------------- hostile input


@given(st.lists(st.binary(max_size=50)), st.integers(1, 7))
def test_frames_whatever_the_size_of_reads(blobs: list[bytes], size: int) -> None:
    stream = bytearray()
    for i in range(2):
        write_frame(stream.extend, {"n": i}, blobs)
    data = bytes(stream)
    position = 0

    def read(n: int) -> bytes:
        nonlocal position
        piece = data[position : position + min(n, size)]
        position += len(piece)
        return piece

    reader = Reader(read)
    for i in range(2):
        head, received = reader.frame()
        assert head == {"n": i} and [bytes(b) for b in received] == blobs
    with pytest.raises(EOFError):
        reader.frame()


@pytest.mark.parametrize(
    "line",
    [
        b"not json", b"[]", b"3", b'{"blobs":3}', b'{"blobs":[-1]}', b'{"blobs":[1.5]}', b'{"blobs":[true]}', b"\xff\xfe", b"{" * 100_000,
        b"[" * 3_000_000, b'{"blobs":[' + b"0," * 100_000 + b"0]}", b'{"blobs":[99999999999999]}', b'{"n":' + b"9" * 10_000 + b"}",
        b'{"a":[' + b"{}," * 2_000_000 + b"0]}",
    ],
    ids=lambda line: repr(line[:20]),
)  # fmt: skip
def test_malformed_frames(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        reader_of(line + b"\n", max_blobs=1 << 20).frame()


def test_a_line_without_end_is_refused_before_it_is_held() -> None:
    taken = 0

    def read(n: int) -> bytes:
        nonlocal taken
        taken += n
        return b"x" * n

    with pytest.raises(ProtocolError, match="longer"):
        Reader(read).frame()
    assert taken < 2 * MAX_LINE


def test_a_truncated_blob_is_the_end_of_the_stream() -> None:
    with pytest.raises(EOFError):
        reader_of(b'{"blobs":[10]}\nabc').frame()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["$", "v", "b", "s", "t", "k", "n", "i", "c", "z", "x"]) | TEXT, inner),
    max_leaves=10,
)  # fmt: skip
TAGS = [
    "tree", "int", "float", "latin", "utf16", "utf8", "bytes", "bytearray", "tuple", "set", "frozenset", "dict", "complex", "range", "failed",
    "rec", "datetime", "time", "date", "timedelta", "decimal", "fraction", "uuid", "path", "np.array", "np.object", "np.fields", "pd.cat",
    "pd.ext", "pd.array", "pd.index", "pd.range", "pd.multi", "pd.series", "pd.frame", "pd.stamp", "pd.delta", "pd.none", "nonsense",
]  # fmt: skip


@given(
    st.sampled_from(TAGS),
    json_values,
    st.dictionaries(st.sampled_from("vbstknicz"), json_values),
    st.binary(max_size=40),
)
def test_malformed_values_give_a_value_or_a_protocol_error(tag: str, v: Any, more: dict[str, Any], blob: bytes) -> None:
    try:
        Decoder([bytearray(blob)], records=False, max_cost=1 << 20).load(
            [{"$": tag, "v": v, **more}, {"$": tag, "b": 0, **more}]
        )
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "tree",
    [
        {"$": "range", "v": [0, 10**18, 1]},
        {"$": "pd.range", "n": None, "v": [0, 10**18, 1]},
        {"$": "np.array", "t": "|V0", "s": [10**9, 10**9], "v": ""},
        {"$": "np.array", "t": "|O8", "s": [1], "v": "AAAAAAAAAAA="},
        {"$": "np.array", "t": "<i8", "s": [5], "v": "AAAAAAAAAAA="},
        {"$": "bytes", "b": -1},
        {"$": ["x"]},
        {"$": "datetime", "v": "2020-01-01", "z": "../../etc/passwd"},
        {"$": "fraction", "v": ["1", "0"]},
        {"$": "set", "v": [i * ((1 << 61) - 1) for i in range(3000)]},
        {"$": "dict", "v": [[{"$": "int", "v": hex(i * ((1 << 61) - 1))}, 0] for i in range(3000)]},
    ],
    ids=lambda tree: str(tree)[:30],
)
def test_hostile_values(tree: Any) -> None:
    with pytest.raises(ProtocolError):
        Decoder([b"x"], records=False).load(tree)


def test_a_blob_serves_once() -> None:
    with pytest.raises(ProtocolError):
        Decoder([b"x"], records=False).load([{"$": "bytes", "b": 0}, {"$": "bytes", "b": 0}])


def test_deep_hostile_trees() -> None:
    tree: Any = 1
    for _ in range(900):
        tree = [tree]
    with pytest.raises(ProtocolError):
        Decoder([], records=False).load(tree)
