"""The part of a snapshot that runs in the sandbox, as the text of cells: what is there, value by value, and back.

Values go through a host function, so that this works in every environment. What a codec would change on the way (a
``Counter`` is a dict there, an object of a class of the code's own a record) travels as a dict with a mark, and is made
again from it. Standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

from rlm_dspy.own_cells import TOLD, own_cell

MARK = "\0rlm"
"""The key of a dict that stands for something else."""

_SAVE = """
def _rlm_snapshot(skip, native):
    import re, sys, types
    main = names.get("__name__")
    mark = %(mark)r
    atoms = {type(None), bool, int, float, str}
    exact = {
        ("builtins", "bytes"), ("builtins", "bytearray"), ("builtins", "complex"), ("builtins", "range"),
        ("datetime", "date"), ("datetime", "datetime"), ("datetime", "time"), ("datetime", "timedelta"),
        ("decimal", "Decimal"), ("fractions", "Fraction"), ("uuid", "UUID"),
    }
    frames = {"ndarray", "DataFrame", "Series", "Index", "RangeIndex", "MultiIndex", "DatetimeIndex", "Timestamp",
              "Timedelta"}

    class Cannot(Exception):
        pass

    def kind_of(value):
        kind = type(value)
        return kind.__qualname__ if kind.__module__ in ("builtins", main) else kind.__module__ + "." + kind.__qualname__

    def found(value):
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        here = sys.modules.get(module) if isinstance(module, str) and isinstance(name, str) else None
        for part in (name or "").split("."):
            here = getattr(here, part, None)
        return (module, name) if here is value and here is not None and module != main else None

    def pack(value, depth=0):
        kind = type(value)
        if kind in atoms:
            return value if native or kind is not float or value - value == 0 else tag("float", repr(value))
        if depth > 100:
            raise Cannot("it is nested more than 100 levels deep, or contains itself")
        depth += 1
        if kind.__module__ == "IPython.utils.text" and isinstance(value, (list, str)):
            # The output of a command.
            return list(value) if isinstance(value, list) else str(value)
        if kind is list:
            if native and all(type(item) in atoms for item in value):
                return value
            return [pack(item, depth) for item in value]
        if kind is dict:
            if mark in value:
                raise Cannot("it has a key that snapshots use themselves")
            if native or all(type(key) is str for key in value):
                if all(type(key) in atoms for key in value):
                    return {key: pack(item, depth) for key, item in value.items()}
            return tag("dict", pairs(value, depth))
        if kind in (tuple, set, frozenset):
            if native and all(type(item) in atoms for item in value):
                return value
            return tag(kind.__name__, [pack(item, depth) for item in value])
        where = (kind.__module__, kind.__qualname__)
        if where in exact:
            if native:
                return value
            raise Cannot("a value of type %%s cannot leave this interpreter as it is" %% kind_of(value))
        if kind.__module__ == "collections":
            if kind.__name__ == "Counter":
                return tag("Counter", pairs(value, depth))
            if kind.__name__ == "OrderedDict":
                return tag("OrderedDict", pairs(value, depth))
            if kind.__name__ == "deque":
                return tag("deque", [[pack(item, depth) for item in value], value.maxlen])
            if kind.__name__ == "defaultdict":
                return tag("defaultdict", [pack(value.default_factory, depth), pairs(value, depth)])
        if where == ("functools", "partial"):
            return tag("partial", [pack(item, depth) for item in (value.func, list(value.args), value.keywords)])
        if kind is re.Pattern:
            return tag("Pattern", [pack(value.pattern, depth), value.flags])
        if kind.__name__ == "FailedCall" and native:
            return value
        if kind.__name__ == "Record" and hasattr(value, "_kind"):
            return tag("Record", [value._name, value._kind, pack(dict(value.__dict__), depth)])
        if isinstance(value, types.ModuleType):
            return tag("module", value.__name__)
        if isinstance(value, type) or callable(value) and hasattr(value, "__qualname__"):
            where = found(value)
            if where is not None:
                return tag("import", list(where))
            if getattr(value, "__module__", None) == main and names.get(value.__name__) is value:
                return tag("name", value.__name__)
            raise Cannot("a %%s without a name of its own" %% kind_of(value))
        if kind.__module__ == main and names.get(kind.__name__) is kind:
            enum = sys.modules.get("enum")
            if enum is not None and isinstance(value, enum.Enum):
                return tag("enum", [kind.__name__, value.name])
            fields = dict(getattr(value, "__dict__", ()))
            slots = [n for c in kind.__mro__ for n in [getattr(c, "__slots__", ())] if n]
            plain = [c for c in kind.__mro__ if c.__module__ != main and c is not object]
            if isinstance(value, tuple) and plain == [tuple] and hasattr(kind, "_fields"):
                return tag("tuple of", [kind.__name__, [pack(item, depth) for item in value]])
            if not slots and not plain:
                return tag("object", [kind.__name__, pack(fields, depth)])
        top = kind.__module__.partition(".")[0]
        if native and top in ("numpy", "pandas"):
            numpy = sys.modules.get("numpy")
            if kind.__name__ in frames or numpy is not None and isinstance(value, numpy.generic):
                return value
        raise Cannot("a value of type %%s cannot be saved" %% kind_of(value))

    def pairs(value, depth):
        return [[pack(key, depth), pack(item, depth)] for key, item in value.items()]

    tags = [0]

    def tag(kind, value):
        tags[0] += 1
        return {mark: kind, "v": value}

    skip = set(skip)
    # What IPython has put there by itself, which it has again after a resumption.
    shell = getattr(names.get("get_ipython"), "__self__", None)
    shells = getattr(shell, "user_ns_hidden", {})
    entered = re.compile("_exit_code|_+|_i+|_i?[0-9]+")
    ours = {"_rlm_builtins", "_rlm_keep", "_rlm_tell"}
    for name, value in list(names.items()):
        if type(name) is not str or name in skip or name[:2] == "__" or name in ours:
            continue
        if shells and (shells.get(name, shells) is value or entered.fullmatch(name)):
            continue
        if isinstance(value, types.ModuleType):
            names["_rlm_tell"]("import", name, value.__name__, "")
            continue
        if isinstance(value, type) or callable(value) and hasattr(value, "__qualname__"):
            where = found(value)
            if where is not None:
                names["_rlm_tell"]("import", name, where[0], where[1])
            else:
                names["_rlm_tell"]("source", name, kind_of(value), "a %%s without source" %% kind_of(value))
            continue
        tags[0] = 0
        try:
            packed = pack(value)
            names["_rlm_keep"](name, packed, bool(tags[0]))
        except Exception as error:
            names["_rlm_tell"]("value", name, kind_of(value), str(error))
"""

_LOAD = """
def _rlm_unpack(values):
    import collections, importlib, re
    mark = %(mark)r

    def unpack(value):
        kind = type(value)
        if kind is list:
            return [unpack(item) for item in value]
        if kind is not dict:
            return value
        if mark not in value:
            return {key: unpack(item) for key, item in value.items()}
        kind, v = value[mark], value["v"]
        if kind == "float":
            return float(v)
        if kind in ("dict", "Counter", "OrderedDict"):
            made = {"dict": dict, "Counter": collections.Counter, "OrderedDict": collections.OrderedDict}[kind]()
            made.update({unpack(key): unpack(item) for key, item in v})
            return made
        if kind == "deque":
            return collections.deque(unpack(v[0]), v[1])
        if kind == "defaultdict":
            return collections.defaultdict(unpack(v[0]), {unpack(key): unpack(item) for key, item in v[1]})
        if kind == "partial":
            import functools

            return functools.partial(unpack(v[0]), *unpack(v[1]), **unpack(v[2]))
        if kind == "Pattern":
            return re.compile(unpack(v[0]), v[1])
        if kind == "Record":
            made = Record(v[0], v[1])
            made.__dict__.update(unpack(v[2]))
            return made
        if kind == "module":
            return importlib.import_module(v)
        if kind == "import":
            here = importlib.import_module(v[0])
            for part in v[1].split("."):
                here = getattr(here, part)
            return here
        if kind == "name":
            return names[v]
        if kind == "enum":
            return names[v[0]][v[1]]
        if kind == "object":
            made = object.__new__(names[v[0]])
            made.__dict__.update(unpack(v[1]))
            return made
        if kind == "tuple of":
            return tuple.__new__(names[v[0]], unpack(v[1]))
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](unpack(item) for item in v)

    for name, value in values.items():
        try:
            names[name] = unpack(value)
        except Exception as error:
            names.pop(name, None)
            print("%(told)s%%s: %%s: %%s" %% (name, type(error).__name__, " ".join(str(error).split())))
"""

_IMPORT = """
import importlib
for name, module, inner in imports:
    try:
        here = importlib.import_module(module)
        for part in inner.split('.') if inner else ():
            here = getattr(here, part)
        names[name] = here
    except Exception as error:
        print(told + '%s: %s: %s' % (name, type(error).__name__, ' '.join(str(error).split())))
"""

_SAVE = _SAVE % {"mark": MARK}
_LOAD = _LOAD % {"mark": MARK, "told": TOLD}


def save_cell(skip: list[str], native: bool) -> str:
    """A cell that hands every variable to ``_rlm_keep`` or, where it cannot, tells ``_rlm_tell`` of it.

    Args:
        skip: Names to pass over.
        native: Values cross as they are; where they do not, only what JSON has does.
    """
    return own_cell(f"{_SAVE}\n_rlm_snapshot(skip, native)\n", skip=skip, native=native)


def unpack_cell(names: list[str]) -> str:
    """A cell that makes what marked dicts in the variables ``names`` stand for; it prints what failed, one a line."""
    return own_cell(f"{_LOAD}\n_rlm_unpack({{n: names[n] for n in marked if n in names}})\n", marked=names)


def import_cell(imports: dict[str, tuple[str, str]]) -> str:
    """A cell that imports modules, and names out of them, under the names they had; it prints what failed."""
    return own_cell(_IMPORT, told=TOLD, imports=[(name, module, inner) for name, (module, inner) in imports.items()])
