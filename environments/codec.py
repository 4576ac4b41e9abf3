"""Python values as JSON trees and blobs, and back, exactly; never pickle, never eval.

None, bool, int, finite float, str, list and dict with text keys are their own JSON. All else is an object with the
key ``"$"``: ``{"$": tag, "v": ...}``. Long text, bytes and whole trees leave the tree as blobs: ``{"$": tag, "b": i}``.
`rlm_dspy.environments.scalars` adds dates and numbers, `rlm_dspy.environments.arrays` numpy and pandas. Decoding is
safe on hostile input: whatever comes, it ends in a value or in `ProtocolError`, in time and memory linear in the size
of the input.

This module travels into the sandbox as source text: standard library only, Python 3.8 syntax.
"""

# ruff: noqa: UP031, B905
from __future__ import annotations

import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING or __name__.startswith("rlm_dspy."):
    from rlm_dspy.environments import arrays, scalars
    from rlm_dspy.environments.records import FailedCall, Record
    from rlm_dspy.environments.wire import BLOB_MIN, ProtocolError, TextBlob, cost_limit, json_cost, parse_json
else:
    import _rlm_arrays as arrays
    import _rlm_scalars as scalars
    from _rlm_records import FailedCall, Record
    from _rlm_wire import BLOB_MIN, ProtocolError, TextBlob, cost_limit, json_cost, parse_json

if TYPE_CHECKING:
    from typing import Any

MAX_DEPTH = 200
"""Levels of nesting that a value may have."""
_SMALL_INT = 1 << 62
_TREE_MIN = 256 * 1024
_DECODE_PIECE = 1 << 20
_ATOMS = frozenset((str, int, float, bool, type(None)))
_TOO_LARGE = (
    "the value is larger than %d bytes, the most that may leave the sandbox at once (max_value); "
    "pass a part of it or a summary"
)


class ValueTooLarge(ValueError):
    """A value exceeds the bytes that the other side accepts."""


# ---------------------------------------------------------------------------------------------------------- encoding


class Encoder:
    """Turns one value into a tree and blobs.

    Args:
        limit: Bytes that the blobs together may have; None for no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.blobs: list[Any] = []
        self._limit = limit
        self._size = 0
        self._spread = 0

    def dump(self, value: Any) -> Any:
        """The tree for a frame's line; a large one becomes a blob itself.

        Raises:
            TypeError: a value has a type that does not cross; the message names the type and the fix.
            ValueError: nested too deep, or larger than the limit (`ValueTooLarge`).
        """
        tree = self._leave(self.tree(value, 0))
        if self._limit is not None and self._spread > scalars.spread_limit(self._size):
            raise ValueError("ranges of more than %d numbers cannot cross" % scalars.spread_limit(self._size))
        return tree

    @property
    def capped(self) -> bool:
        """Whether the other side is a host, which caps what it takes."""
        return self._limit is not None

    def spread(self, count: int) -> None:
        """Account for ``count`` numbers that cross in a few bytes, as a range."""
        self._spread += count

    def _leave(self, tree: Any) -> Any:
        if isinstance(tree, (dict, list)):
            text = json.dumps(tree, separators=(",", ":"))
            if len(text) >= _TREE_MIN:
                if self._limit is not None and json_cost(text) > cost_limit(self._limit):
                    raise ValueTooLarge(_TOO_LARGE % self._limit)
                return {"$": "tree", "b": self._blob(TextBlob(text))}
        return tree

    def _blob(self, blob: Any) -> int:
        self._size += len(blob)
        if self._limit is not None and self._size > self._limit:
            raise ValueTooLarge(_TOO_LARGE % self._limit)
        self.blobs.append(blob)
        return len(self.blobs) - 1

    def raw(self, tag: str, data: Any) -> dict[str, Any]:
        """Bytes under ``tag``: in the tree if short, else as a blob."""
        if len(data) < 1024:
            import base64

            return {"$": tag, "v": base64.b64encode(data).decode("ascii")}
        return {"$": tag, "b": self._blob(data)}

    def text(self, value: str) -> Any:
        """A str."""
        if len(value) >= BLOB_MIN:
            width = sys.getsizeof(value) // len(value)
            if width < 2:
                return {"$": "latin", "b": self._blob(TextBlob(value))}
            if width < 4:
                try:
                    return {"$": "utf16", "b": self._blob(value.encode("utf-16-le"))}
                except UnicodeEncodeError:
                    pass
            return {"$": "utf8", "b": self._blob(value.encode("utf-8", "surrogatepass"))}
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                # JSON would join a high and a low lone surrogate into one character.
                return self.raw("utf8", value.encode("utf-8", "surrogatepass"))
        return value

    def tree(self, value: Any, depth: int) -> Any:
        """The tree of ``value``, found ``depth`` levels below the top."""
        kind = type(value)
        if kind is str:
            return self.text(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -_SMALL_INT < value < _SMALL_INT else {"$": "int", "v": hex(value)}
        if kind is float:
            return value if value - value == 0 else {"$": "float", "v": repr(value)}
        if depth > MAX_DEPTH:
            raise ValueError("the value is nested more than %d levels deep, or contains itself" % MAX_DEPTH)
        depth += 1
        tree = self.tree
        if kind is list:
            # Plain text, the most common item, without a call: there may be a million.
            return [
                item if type(item) is str and len(item) < BLOB_MIN and item.isascii() else tree(item, depth)
                for item in value
            ]
        if kind is dict:
            return self._dict(value, depth)
        if kind is tuple or kind is set or kind is frozenset:
            return {"$": kind.__name__, "v": [tree(item, depth) for item in value]}
        encode = _ENCODERS.get(kind) or _find_encoder(kind)
        if encode is None:
            raise TypeError(
                "a value of type %r cannot cross between sandbox and host; convert it first, for example with "
                "list(), dict(), str() or .tolist()" % _type_name(kind)
            )
        return encode(self, value, depth)

    def _dict(self, value: Any, depth: int) -> Any:
        tree = self.tree
        if "$" not in value:
            out = {}
            for key, item in value.items():
                if type(key) is not str or not (key.isascii() and len(key) < BLOB_MIN):
                    break
                if type(item) is str and len(item) < BLOB_MIN and item.isascii():
                    out[key] = item
                else:
                    out[key] = tree(item, depth)
            else:
                return out
        return {"$": "dict", "v": [[tree(key, depth), tree(item, depth)] for key, item in value.items()]}

    def record(self, name: str, kind: str, fields: Any, depth: int) -> Any:
        """A record: ``fields`` gives its (name, value) pairs."""
        return {"$": "rec", "t": name, "k": kind, "v": [[self.text(n), self.tree(v, depth)] for n, v in fields]}


def _type_name(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else "%s.%s" % (module, kind.__qualname__)


def _dataclass(encoder: Encoder, value: Any, depth: int) -> Any:
    fields = [(name, getattr(value, name)) for name in type(value).__dataclass_fields__ if hasattr(value, name)]
    return encoder.record(type(value).__name__, "dataclass", fields, depth)


def _model(encoder: Encoder, value: Any, depth: int) -> Any:
    fields = [(name, getattr(value, name)) for name in type(value).model_fields]
    fields.extend((getattr(value, "model_extra", None) or {}).items())
    return encoder.record(type(value).__name__, "model", fields, depth)


def _namedtuple(encoder: Encoder, value: Any, depth: int) -> Any:
    return encoder.record(type(value).__name__, "namedtuple", list(zip(type(value)._fields, value)), depth)


def _class(encoder: Encoder, value: Any, depth: int) -> Any:
    # What ``types=`` of a typed sub-call takes. Nothing else takes a class, and says so of a dict as well.
    if callable(getattr(value, "model_json_schema", None)):
        return encoder.tree(value.model_json_schema(), depth)
    raise TypeError(
        "the class %s cannot cross between sandbox and host (it is a 'type'); convert it first, for example into its "
        "JSON Schema with pydantic.TypeAdapter(%s).json_schema()" % (value.__qualname__, value.__qualname__)
    )


_ENCODERS: dict[Any, Any] = {
    **scalars.ENCODERS,
    type: _class,
    bytes: lambda e, v, d: e.raw("bytes", v),
    bytearray: lambda e, v, d: e.raw("bytearray", bytes(v)),
    memoryview: lambda e, v, d: e.raw("bytes", v.tobytes()),
    FailedCall: lambda e, v, d: {"$": "failed", "v": e.text(str(v))},
    Record: lambda e, v, d: e.record(v._name, v._kind, v.__dict__.items(), d),
}


def _find_encoder(kind: type) -> Any:
    """The encoder for a type seen for the first time; modules that were never imported have no instances."""
    found = _look_up_encoder(kind)
    if found is not None and kind.__module__ != "__main__":
        _ENCODERS[kind] = found
    return found


def _look_up_encoder(kind: Any) -> Any:
    enum = sys.modules.get("enum")
    if enum is not None and issubclass(kind, enum.Enum):
        return lambda e, v, d: e.tree(v.value, d)
    found = arrays.encoder(kind)
    if found is not None:
        return found
    for base in kind.__mro__:
        found = scalars.BY_NAME.get((base.__module__, base.__qualname__)) or _ENCODERS.get(base)
        if found is not None:
            return found
    if hasattr(kind, "model_fields") and hasattr(kind, "model_dump"):
        return _model
    if hasattr(kind, "__dataclass_fields__"):
        return _dataclass
    if issubclass(kind, tuple):
        if hasattr(kind, "_fields"):
            return _namedtuple
        return lambda e, v, d: {"$": "tuple", "v": [e.tree(item, d) for item in v]}
    if issubclass(kind, dict):
        return lambda e, v, d: e._dict(v, d)
    pathlib = sys.modules.get("pathlib")
    if pathlib is not None and issubclass(kind, pathlib.PurePath):
        return lambda e, v, d: {"$": "path", "v": e.text(str(v))}
    collections = sys.modules.get("collections")
    if issubclass(kind, list) or (collections is not None and issubclass(kind, collections.deque)):
        return lambda e, v, d: [e.tree(item, d) for item in v]
    for base in (set, frozenset):
        if issubclass(kind, base):
            return lambda e, v, d, tag=base.__name__: {"$": tag, "v": [e.tree(item, d) for item in v]}
    if issubclass(kind, str):
        return lambda e, v, d: e.text(str.__str__(v))
    for base, plain in ((int, int.__int__), (float, float.__float__)):
        if issubclass(kind, base):
            return lambda e, v, d, plain=plain: e.tree(plain(v), d)
    if callable(getattr(kind, "toDict", None)) and hasattr(kind, "items"):
        # dspy.Example and dspy.Prediction.
        return lambda e, v, d: e.record(type(v).__name__, "dataclass", v.items(), d)
    abc = sys.modules.get("collections.abc")
    if abc is not None and issubclass(kind, abc.Mapping):
        return lambda e, v, d: e._dict(dict(v), d)
    return None


# ---------------------------------------------------------------------------------------------------------- decoding


class Decoder:
    """Turns a tree and blobs into the value. Each blob is let go as soon as it is used.

    Args:
        blobs: The frame's blobs.
        records: True gives `Record` objects (in the sandbox), False plain dicts (on the host).
        max_cost: Bytes of memory that a tree inside a blob may take; None for no cap.
    """

    def __init__(self, blobs: list[Any], records: bool, max_cost: int | None = None) -> None:
        self._blobs = blobs
        self.records = records
        self._max_cost = max_cost
        self.cost = 0 if max_cost is None else sum([len(blob) for blob in blobs])
        """About the bytes of memory that the blobs take when decoded; 0 where nothing is capped."""
        self._room = scalars.spread_limit(self.cost)

    def load(self, tree: Any) -> Any:
        """The value.

        Raises:
            ProtocolError: the tree is not one that an `Encoder` makes.
        """
        try:
            if isinstance(tree, dict) and tree.get("$") == "tree":
                text = self.blob(tree)
                if self._max_cost is not None:
                    self.cost += json_cost(text)
                tree = parse_json(text, self._max_cost)
                del text
            return self.value(tree, 0)
        except ProtocolError:
            raise
        except Exception as error:
            raise ProtocolError("malformed value: %s: %s" % (type(error).__name__, error)) from None

    @property
    def capped(self) -> bool:
        """Whether this is a host, which caps what it takes."""
        return self._max_cost is not None

    def spread(self, count: int) -> None:
        """Account for ``count`` numbers that came in a few bytes, as a range."""
        self._room -= count
        if self._room < 0 and self._max_cost is not None:
            raise ProtocolError("ranges too long")

    def blob(self, node: dict[str, Any]) -> Any:
        """The bytes of a node: from its blob, or from the tree."""
        if "b" in node:
            index = node["b"]
            data = self._blobs[index] if index >= 0 else None
            if data is None:
                raise ProtocolError("a blob used twice")
            self._blobs[index] = None
            return data
        import base64

        return base64.b64decode(node["v"], validate=True)

    def value(self, tree: Any, depth: int) -> Any:
        """The value of one node, ``depth`` levels below the top."""
        kind = type(tree)
        if kind is not list and kind is not dict:
            return tree
        if depth > MAX_DEPTH + 4:
            raise ProtocolError("a value nested too deep")
        depth += 1
        value = self.value
        if kind is list:
            return [item if type(item) in _ATOMS else value(item, depth) for item in tree]
        tag = tree.get("$")
        if tag is None:
            return {key: item if type(item) in _ATOMS else value(item, depth) for key, item in tree.items()}
        decode = _DECODERS.get(tag) or arrays.DECODERS.get(tag)
        if decode is None:
            raise ProtocolError("an unknown kind of value")
        return decode(self, tree, depth)

    def items(self, node: dict[str, Any], depth: int) -> list[Any]:
        """The decoded items of a node whose ``"v"`` is a list."""
        items = node["v"]
        if type(items) is not list:
            raise ProtocolError("a list was expected")
        return [self.value(item, depth) for item in items]


def _check_hashes(keys: list[Any]) -> None:
    """Refuse keys chosen to collide: hashes of numbers and tuples are not salted, and inserting would take for ever."""
    if len(keys) < 1000:
        return
    hashes = sorted([hash(key) for key in keys])
    if any(hashes[i] == hashes[i + 400] for i in range(0, len(hashes) - 400, 400)):
        raise ProtocolError("too many colliding keys")


def _load_dict(decoder: Decoder, node: dict[str, Any], depth: int) -> Any:
    pairs = [(decoder.value(key, depth), decoder.value(item, depth)) for key, item in node["v"]]
    _check_hashes([key for key, _ in pairs])
    return dict(pairs)


def _load_set(kind: Any) -> Any:
    def load(decoder: Decoder, node: dict[str, Any], depth: int) -> Any:
        items = decoder.items(node, depth)
        _check_hashes(items)
        return kind(items)

    return load


def _load_utf8(decoder: Decoder, node: dict[str, Any], depth: int) -> str:
    data = decoder.blob(node)
    if len(data) <= 4 * _DECODE_PIECE:
        return data.decode("utf-8", "surrogatepass")
    # In pieces cut between characters: decoding at once reserves four bytes per input byte for a single wide character.
    pieces = []
    start, end, view = 0, len(data), memoryview(data)
    while start < end:
        stop = min(end, start + _DECODE_PIECE)
        while stop < end and (data[stop] & 0xC0) == 0x80:
            stop -= 1
        if stop <= start:
            raise ProtocolError("malformed text")
        pieces.append(str(view[start:stop], "utf-8", "surrogatepass"))
        start = stop
    del data, view
    return "".join(pieces)


def _load_path(decoder: Decoder, node: dict[str, Any], depth: int) -> Any:
    import pathlib

    return pathlib.Path(decoder.value(node["v"], depth))


def _load_record(decoder: Decoder, node: dict[str, Any], depth: int) -> Any:
    fields = {}
    for name, item in node["v"]:
        name = decoder.value(name, depth)
        if type(name) is not str:
            raise ProtocolError("a field name must be text")
        fields[name] = decoder.value(item, depth)
    if not decoder.records:
        return fields
    record = Record(str(node["t"]), str(node["k"]))
    record.__dict__.update(fields)
    return record


_DECODERS: dict[Any, Any] = {
    **scalars.DECODERS,
    "int": lambda d, n, depth: int(n["v"], 16),
    "float": lambda d, n, depth: float(n["v"]),
    "latin": lambda d, n, depth: d.blob(n).decode("latin-1"),
    "utf16": lambda d, n, depth: d.blob(n).decode("utf-16-le"),
    "utf8": _load_utf8,
    "bytes": lambda d, n, depth: bytes(d.blob(n)),
    "bytearray": lambda d, n, depth: bytearray(d.blob(n)),
    "tuple": lambda d, n, depth: tuple(d.items(n, depth)),
    "set": _load_set(set),
    "frozenset": _load_set(frozenset),
    "dict": _load_dict,
    "failed": lambda d, n, depth: FailedCall(d.value(n["v"], depth)),
    "rec": _load_record,
    "path": _load_path,
}
