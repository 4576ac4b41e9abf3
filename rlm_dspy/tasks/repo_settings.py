"""Questions about a repository: settings, constants, environment variables, and remarks for people."""

from __future__ import annotations

from rlm_dspy.tasks._draw import Draw
from rlm_dspy.tasks.repo_facts import LAYERS_TOLD, Plan, Plant, Settings, config_plants, layers, remark, setting_files
from rlm_dspy.tasks.repo_names import CONSTANTS, KEYS, OWNERS, SERVICES, VARIABLES, callers

__all__ = ["COMPARE", "COUNT", "FIND", "LIST"]


def _set(settings: Settings, files: list[str], service: str, key: str, last: int, value: int, draw: Draw) -> None:
    """Have the setting in the files up to ``last``, and there with this value; in none after it."""
    for place, path in enumerate(files):
        values = settings[path][service]
        values.pop(key, None)
        if place == last or (place < last and draw.chance(0.6)):
            values[key] = value if place == last else value + draw.choice((-7, 3, 11, 40))
        if not values:
            values[draw.choice([one for one in KEYS if one != key])] = draw.between(11, 999)


def effective(draw: Draw, characters: int) -> Plan:
    """The value of a setting in an environment and region."""
    service, key = draw.choice(SERVICES), draw.choice(KEYS)
    settings, regions = setting_files(draw, characters, [service])
    region = draw.choice(regions)
    files = layers("production", region)
    last, value = draw.below(3), draw.between(1_000, 9_000)
    _set(settings, files, service, key, last, value, draw)
    # After the one that wins there may be one that is not in force.
    off = [(path, service, key, value + 500 + place) for place, path in enumerate(files[last + 1 :])]
    query = draw.choice(
        (
            "Which value of `{key}` is in force for the service `{service}` in production in the region {region}? "
            "{told} says which file wins.",
            "What does the service `{service}` get as `{key}` in production, region {region}? See {told}.",
        )
    ).format(key=key, service=service, region=region, told=LAYERS_TOLD)
    return Plan(query, str(value), config_plants(settings, off))


def overriding(draw: Draw, characters: int) -> Plan:
    """All files that set something for a service."""
    service, key = draw.choice(SERVICES), draw.choice(KEYS)
    settings, _ = setting_files(draw, characters, [service])
    paths = list(settings)
    right = set(draw.sample(paths, draw.between(3, min(7, len(paths) - 1))))
    off = []
    for path in paths:
        values = settings[path][service]
        values.pop(key, None)
        if path in right:
            values[key] = draw.between(11, 999)
        elif draw.chance(0.7):
            off.append((path, service, key, draw.between(11, 999)))
        if not values:
            values[draw.choice([one for one in KEYS if one != key])] = draw.between(11, 999)
    query = (
        f"Which files in config set `{key}` for the service `{service}`? Lines that are not in force do not count. "
        "Answer with the paths."
    )
    return Plan(query, [path for path in paths if path in right], config_plants(settings, off))


def larger_setting(draw: Draw, characters: int) -> Plan:
    """Which of two services has the larger value in force."""
    pair, key = draw.sample(SERVICES, 2), draw.choice(KEYS)
    settings, regions = setting_files(draw, characters, pair)
    region = draw.choice(regions)
    files = layers("production", region)
    values = draw.sample(range(1_000, 9_000, 50), 2)
    for service, value in zip(pair, values, strict=True):
        _set(settings, files, service, key, draw.below(3), value, draw)
    query = (
        f"In production in the region {region}, which service has the larger value of `{key}` in force, `{pair[0]}` or "
        f"`{pair[1]}`? {LAYERS_TOLD} says which file wins."
    )
    return Plan(query, pair[values.index(max(values))], config_plants(settings, []))


def constant_file(draw: Draw, characters: int) -> Plan:
    """The file that defines a constant which a module imports, through a package that hands it on."""
    name = draw.choice(CONSTANTS)
    count = max(3, min(len(SERVICES), characters // 3_000))
    services = draw.sample(SERVICES, count)
    home, user = services[0], services[1]
    modules = ("limits", "defaults", "policy", "rules")
    plants, paths = [], []
    for service in services:
        module = draw.choice(modules)
        paths.append(f"services/{service}/{module}.py")
        plants.append(Plant("", f'"""What holds for {service}."""\n\n{name} = {draw.between(2, 500)}\n', paths[-1]))
        text = f"from services.{service}.{module} import {name}\n\n__all__ = [{name!r}]\n"
        plants.append(Plant("", text, f"services/{service}/__init__.py"))
    function = callers(draw, 1)[0]
    text = (
        f"from services.{home} import {name}\n\n\ndef {function}(payload):\n"
        f"    # Not the {name} of services/{user}.\n    return len(payload) < {name}\n"
    )
    plants.append(Plant("", text, f"services/{user}/{function}.py"))
    query = draw.choice(
        (
            "`{path}` uses the constant `{name}`. In which file does the one that it uses get its value? Answer with "
            "the path.",
            "Give the path of the file that defines the `{name}` which `{path}` imports.",
        )
    ).format(path=f"services/{user}/{function}.py", name=name)
    return Plan(query, paths[0], plants)


_READ = {
    "code": '\n\n{lower}_{n} = os.environ["{name}"]\n',
    "ts": "\nexport const {lower}{n} = process.env.{name};\n",
    "go": '\nvar {lower}{n} = os.Getenv("{name}")\n',
    "sh": '\n{lower}_{n}="${{{name}}}"\n',
}
_SPEAK = {
    "code": '\n\n# {name} used to be read here: os.environ["{name}"]\n{lower}_{n} = os.environ["{name}_OLD"]\n',
    "ts": "\n// process.env.{name} is not read here any more.\nexport const {lower}{n} = process.env.{name}_OLD;\n",
    "go": '\n// os.Getenv("{name}") is for the other command.\nvar {lower}{n} = os.Getenv("{name}_OLD")\n',
    "sh": '\n# ${{{name}}} is set by the caller.\n{lower}_{n}="${{{name}_OLD}}"\n',
    "md": "\nSet `{name}` before the start; `{name}_OLD` is for older releases.\n",
}


def variable_files(draw: Draw, characters: int) -> Plan:
    """All files that read an environment variable, in whatever language."""
    name = draw.choice(VARIABLES)
    right = draw.between(3, 8 if characters > 20_000 else 4)
    wrong = max(3, min(10, characters // 3_000))
    plants = []
    for place in range(right + wrong):
        table = _READ if place < right else _SPEAK
        kind = tuple(table)[place % len(table)] if place < right else draw.choice(tuple(table))
        text = table[kind].format(name=name, lower=name.lower().replace("_", ""), n=place)
        plants.append(Plant(kind, text))
    query = (
        f"Which files read the environment variable `{name}`? Remarks and documentation do not read it. "
        "Answer with the paths."
    )
    return Plan(query, [], plants, files=range(right))


def remarks(draw: Draw, characters: int) -> Plan:
    """How many remarks of a sort there are for somebody."""
    owner, *others = draw.sample(OWNERS, 4)
    count = draw.between(2, max(5, min(24, characters // 2_000)))
    wrong = max(4, min(24, characters // 2_500))
    plants = [remark("TODO", owner, draw) for _ in range(count)]
    plants += [
        remark("FIXME", owner, draw) if draw.chance(0.4) else remark("TODO", draw.choice(others), draw)
        for _ in range(wrong)
    ]
    query = draw.choice(
        (
            "How many TODO remarks are there for {owner} in the whole repository, in any language?",
            "Count the remarks of the form TODO({owner}) in all files.",
        )
    ).format(owner=owner)
    return Plan(query, count, plants)


def more_remarks(draw: Draw, characters: int) -> Plan:
    """Which of two people has more of them."""
    pair = draw.sample(OWNERS, 2)
    least = draw.between(1, max(3, min(14, characters // 3_000)))
    most = least + 2 + least // 8
    counts = draw.shuffled((least, most))
    plants = [remark("TODO", one, draw) for one, count in zip(pair, counts, strict=True) for _ in range(count)]
    # The one with fewer has more of another sort.
    fewer = pair[counts.index(least)]
    plants += [remark("FIXME", fewer, draw) for _ in range(3)]
    query = f"Who has more TODO remarks left to do, {pair[0]} or {pair[1]}?"
    return Plan(query, pair[counts.index(most)], plants)


FIND = {"find_setting": effective, "find_constant": constant_file}
LIST = {"list_overrides": overriding, "list_readers": variable_files}
COUNT = {"count_remarks": remarks}
COMPARE = {"compare_settings": larger_setting, "compare_remarks": more_remarks}
