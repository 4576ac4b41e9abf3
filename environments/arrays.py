"""numpy and pandas values for the codec: dtype and raw buffer, object columns element by element; never pickle.

Where the receiving side lacks the package, an array becomes a list, a Series and an Index likewise, and a DataFrame a
list of dicts. Nothing here imports a package before a value needs it.

This module travels into the sandbox as source text: standard library only, Python 3.8 syntax.
"""

# ruff: noqa: UP031, B905
from __future__ import annotations

import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING or __name__.startswith("rlm_dspy."):
    from rlm_dspy.environments.wire import ProtocolError
else:
    from _rlm_wire import ProtocolError

if TYPE_CHECKING:
    from typing import Any

_PLAIN_DTYPE = re.compile(r"[<>|=][biufcSUmMV]\d+(\[\d*\w+\])?\Z")
_PANDAS_DTYPE = re.compile(
    r"(U?Int(8|16|32|64)|Float(32|64)|boolean|str|string(\[\w+\])?|period\[\w+\]|datetime64\[\w+, [\w/+:-]+\])\Z"
)


def encoder(kind: Any) -> Any:
    """The encoding function for a numpy or pandas type, or None for any other."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if "numpy.ma" in sys.modules and issubclass(kind, numpy.ma.MaskedArray):
            return lambda e, v, d: e.tree(v.tolist(), d)
        if issubclass(kind, numpy.ndarray):
            return _array
        if issubclass(kind, numpy.generic):
            return _scalar
    pandas = sys.modules.get("pandas")
    if pandas is None or not hasattr(pandas, "DataFrame"):
        return None
    if issubclass(kind, pandas.DataFrame):
        return _frame
    if issubclass(kind, pandas.Series):
        return lambda e, v, d: {
            "$": "pd.series",
            "n": e.tree(v.name, d),
            "i": e.tree(v.index, d),
            "v": _column(e, v, d),
        }
    if issubclass(kind, pandas.Index):
        return _index
    if issubclass(kind, pandas.Timestamp):
        return lambda e, v, d: {"$": "pd.stamp", "v": v.isoformat(), "z": str(v.tz) if v.tz is not None else None}
    if issubclass(kind, pandas.Timedelta):
        return lambda e, v, d: {"$": "pd.delta", "v": e.tree(v.value, d), "u": v.unit}
    if issubclass(kind, pandas.api.extensions.ExtensionArray):
        return lambda e, v, d: {"$": "pd.array", "v": _column(e, pandas.Series(v), d)}
    if kind is type(pandas.NaT) or kind is type(pandas.NA):
        return lambda e, v, d: {"$": "pd.none", "v": "NaT" if v is pandas.NaT else "NA"}
    return None


def _array(encoder: Any, value: Any, depth: int) -> Any:
    numpy = sys.modules["numpy"]
    value = numpy.asarray(value)
    dtype = value.dtype
    if _PLAIN_DTYPE.match(dtype.str) and dtype.names is None and dtype.subdtype is None:
        data = value.tobytes() if value.nbytes < 65536 or not value.flags.c_contiguous else _bytes_of(value)
        return dict(encoder.raw("np.array", data), t=dtype.str, s=list(value.shape))
    if dtype.names is not None:
        fields = [
            [encoder.text(name), encoder.tree(numpy.ascontiguousarray(value[name]), depth)] for name in dtype.names
        ]
        return {"$": "np.fields", "s": list(value.shape), "v": fields}
    flat = [encoder.tree(item, depth) for item in value.ravel().tolist()]
    return {"$": "np.object", "s": list(value.shape), "v": flat}


def _bytes_of(value: Any) -> Any:
    """The array's memory without a copy; dates have no buffer of their own."""
    numpy = sys.modules["numpy"]
    return memoryview(value.reshape(-1).view(numpy.uint8))


def _scalar(encoder: Any, value: Any, depth: int) -> Any:
    tree = _array(encoder, value, depth)
    return dict(tree, x=1)


def _column(encoder: Any, series: Any, depth: int) -> Any:
    pandas, numpy = sys.modules["pandas"], sys.modules["numpy"]
    dtype = series.dtype
    if isinstance(dtype, numpy.dtype):
        return encoder.tree(series.to_numpy(), depth)
    if isinstance(dtype, pandas.CategoricalDtype):
        codes = numpy.asarray(series.codes if isinstance(series, pandas.Index) else series.cat.codes)
        categories = encoder.tree(dtype.categories, depth)
        return {"$": "pd.cat", "c": categories, "o": bool(dtype.ordered), "v": encoder.tree(codes, depth)}
    return {"$": "pd.ext", "t": str(dtype), "v": [encoder.tree(item, depth) for item in series.astype(object).tolist()]}


def _frame(encoder: Any, value: Any, depth: int) -> Any:
    columns = [_column(encoder, value.iloc[:, i], depth) for i in range(value.shape[1])]
    return {
        "$": "pd.frame",
        "c": encoder.tree(value.columns, depth),
        "i": encoder.tree(value.index, depth),
        "v": columns,
    }


def _index(encoder: Any, value: Any, depth: int) -> Any:
    pandas = sys.modules["pandas"]
    if isinstance(value, pandas.MultiIndex):
        names = [encoder.tree(name, depth) for name in value.names]
        return {"$": "pd.multi", "n": names, "v": [encoder.tree(item, depth) for item in value.tolist()]}
    name = encoder.tree(value.name, depth)
    if isinstance(value, pandas.RangeIndex):
        encoder.spread(len(value))
        return {"$": "pd.range", "n": name, "v": [value.start, value.stop, value.step]}
    return {"$": "pd.index", "n": name, "v": _column(encoder, value, depth)}


# ---------------------------------------------------------------------------------------------------------- decoding


def _module(name: str) -> Any:
    """The package, or None where it is not installed or does not load."""
    try:
        return __import__(name)
    except Exception:
        return None


def _shape(node: dict[str, Any]) -> Any:
    shape = node["s"]
    if type(shape) is not list or len(shape) > 32 or any(type(n) is not int or n < 0 for n in shape):
        raise ProtocolError("a malformed shape")
    return tuple(shape)


def _load_array(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    dtype, shape, data = node["t"], _shape(node), decoder.blob(node)
    if not _PLAIN_DTYPE.match(dtype):
        raise ProtocolError("a malformed dtype")
    numpy = _module("numpy")
    if numpy is None:
        return _without_numpy(dtype, shape, data, bool(node.get("x")))
    if numpy.dtype(dtype).itemsize == 0:
        if not all(n < 1_000_000 for n in shape) or len(shape) > 1:
            raise ProtocolError("a malformed shape")
        array = numpy.zeros(shape, dtype)
    else:
        # frombuffer over a bytearray shares its memory and stays writable.
        array = numpy.frombuffer(data if isinstance(data, bytearray) else bytearray(data), dtype=dtype).reshape(shape)
    return array[()] if node.get("x") else array


def _without_numpy(dtype: str, shape: Any, data: Any, scalar: bool) -> Any:
    import struct

    kind, size = dtype[1], int(re.findall(r"\d+", dtype)[0])
    order = ">" if dtype[0] == ">" else "<"
    width = size * 4 if kind == "U" else size
    count = len(data) // width if width else 0
    pieces = [bytes(data[i * width : (i + 1) * width]) for i in range(count)] if kind in "SUVmMc" else []
    if kind == "U":
        codec = "utf-32-be" if order == ">" else "utf-32-le"
        flat: list[Any] = [piece.decode(codec, "surrogatepass").rstrip("\0") for piece in pieces]
    elif kind == "S":
        flat = [piece.rstrip(b"\0") for piece in pieces]
    elif kind == "c" and size in (8, 16):
        flat = [complex(*struct.unpack(order + ("2f" if size == 8 else "2d"), piece)) for piece in pieces]
    elif kind in "mM":
        import datetime

        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
        unit = (re.findall(r"\[(\w+)\]", dtype) or ["ns"])[0]
        flat = []
        for piece in pieces:
            number = int.from_bytes(piece, "big" if order == ">" else "little", signed=True)
            if number == -(1 << 63):
                flat.append(None)
            elif unit in per_second or unit == "D":
                scale = per_second.get(unit)
                whole = number * 86400 * 10**6 if scale is None else number * 10**6 // scale
                delta = datetime.timedelta(microseconds=whole)
                flat.append(delta if kind == "m" else datetime.datetime(1970, 1, 1) + delta)
            else:
                flat.append(number)
    elif kind == "V":
        flat = pieces
    else:
        code = {"b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}
        code.update({"f2": "e", "f4": "f", "f8": "d"})
        letter = code.get(kind + str(size))
        if letter is None:
            raise ProtocolError("a dtype that needs numpy")
        flat = list(struct.unpack("%s%d%s" % (order, count, letter), data))
    return flat[0] if scalar else _fold(flat, shape)


def _fold(flat: list[Any], shape: Any) -> Any:
    """A flat list as nested lists of ``shape``."""
    total = 1
    for n in shape:
        total *= n
    if total != len(flat):
        raise ProtocolError("a malformed shape")
    if not shape:
        return flat[0]
    for n in reversed(shape[1:]):
        flat = [flat[i : i + n] for i in range(0, len(flat), n)] if n else []
    return flat


def _load_object(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    shape, flat = _shape(node), decoder.items(node, depth)
    numpy = _module("numpy")
    if numpy is None:
        return _fold(flat, shape)
    array = numpy.empty(len(flat), dtype=object)
    for i, item in enumerate(flat):
        array[i] = item
    array = array.reshape(shape)
    return array[()] if node.get("x") else array


def _load_fields(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    shape = _shape(node)
    fields = [(decoder.value(name, depth), decoder.value(column, depth)) for name, column in node["v"]]
    numpy = _module("numpy")
    if numpy is None:
        return dict(fields)
    if any(column.shape[: len(shape)] != shape for _, column in fields):
        # Assigned all the same, one number would be written as often as the shape says.
        raise ProtocolError("a malformed structured array")
    array = numpy.empty(shape, dtype=[(name, column.dtype, column.shape[len(shape) :]) for name, column in fields])
    for name, column in fields:
        array[name] = column
    return array[()] if node.get("x") else array


def _load_cat(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    codes, categories = decoder.value(node["v"], depth), decoder.value(node["c"], depth)
    pandas = _module("pandas")
    if pandas is None:
        return [None if code < 0 else categories[code] for code in codes]
    return pandas.Categorical.from_codes(codes, categories, ordered=bool(node.get("o")))


def _load_ext(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    items = decoder.items(node, depth)
    pandas = _module("pandas")
    if pandas is None:
        return items
    if not _PANDAS_DTYPE.match(node["t"]):
        return pandas.array(items, dtype=object)
    return pandas.array(items, dtype=node["t"])


def _load_index(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    column = decoder.value(node["v"], depth)
    pandas = _module("pandas")
    if pandas is None:
        return _as_list(column)
    # The dtype is said, because pandas would turn an object column of texts into its own str type.
    return pandas.Index(column, dtype=column.dtype, name=decoder.value(node["n"], depth))


def _load_range(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    numbers = range(*node["v"])
    if len(numbers) > 1 << 31:
        raise ProtocolError("an index too long")
    decoder.spread(len(numbers))
    pandas = _module("pandas")
    return list(numbers) if pandas is None else pandas.RangeIndex(numbers, name=decoder.value(node["n"], depth))


def _load_multi(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    rows = decoder.items(node, depth)
    pandas = _module("pandas")
    if pandas is None:
        return rows
    return pandas.MultiIndex.from_tuples(rows, names=[decoder.value(name, depth) for name in node["n"]])


def _load_series(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    column = decoder.value(node["v"], depth)
    pandas = _module("pandas")
    if pandas is None:
        return _as_list(column)
    index = decoder.value(node["i"], depth)
    if len(index) != len(column):
        raise ProtocolError("a malformed Series")
    return pandas.Series(column, index=index, dtype=column.dtype, name=decoder.value(node["n"], depth))


def _load_frame(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    columns = decoder.items(node, depth)
    names = decoder.value(node["c"], depth)
    pandas = _module("pandas")
    if pandas is None:
        names = _as_list(names)
        return [dict(zip(names, row)) for row in zip(*[_as_list(column) for column in columns])]
    index = decoder.value(node["i"], depth)
    if any(len(column) != len(index) for column in columns) or len(names) != len(columns):
        raise ProtocolError("a malformed DataFrame")
    series = {i: pandas.Series(column, index=index, dtype=column.dtype) for i, column in enumerate(columns)}
    frame = pandas.DataFrame(series, index=index)
    frame.columns = names
    return frame


def _as_list(column: Any) -> list[Any]:
    return column.tolist() if hasattr(column, "tolist") else list(column)


def _load_stamp(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    pandas = _module("pandas")
    if pandas is None:
        import datetime

        text = re.sub(r"(\.\d{6})\d+", r"\1", node["v"])
        return datetime.datetime.fromisoformat(text)
    stamp = pandas.Timestamp(node["v"])
    return stamp.tz_convert(node["z"]) if node.get("z") and not node["z"].startswith("UTC") else stamp


def _load_delta(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    pandas = _module("pandas")
    nanoseconds = decoder.value(node["v"], depth)
    if type(nanoseconds) is not int:
        raise ProtocolError("a malformed duration")
    if pandas is None:
        import datetime

        return datetime.timedelta(microseconds=nanoseconds // 1000)
    delta = pandas.Timedelta(nanoseconds, unit="ns")
    return delta.as_unit(node["u"]) if node.get("u") in ("s", "ms", "us", "ns") else delta


def _load_none(decoder: Any, node: dict[str, Any], depth: int) -> Any:
    pandas = _module("pandas")
    return None if pandas is None else pandas.NaT if node["v"] == "NaT" else pandas.NA


DECODERS = {
    "np.array": _load_array,
    "np.object": _load_object,
    "np.fields": _load_fields,
    "pd.cat": _load_cat,
    "pd.ext": _load_ext,
    "pd.array": lambda d, n, depth: d.value(n["v"], depth),
    "pd.index": _load_index,
    "pd.range": _load_range,
    "pd.multi": _load_multi,
    "pd.series": _load_series,
    "pd.frame": _load_frame,
    "pd.stamp": _load_stamp,
    "pd.delta": _load_delta,
    "pd.none": _load_none,
}
"""Decoding functions by tag, called by `rlm_dspy.environments.codec`."""
