"""Mutations of text, bytes, plain data and protobuf messages, all drawn from one random generator."""

import copy
from collections.abc import Callable
from random import Random
from typing import Any, Final

NUMBERS: Final[tuple[Any, ...]] = (
    0, -1, 1, 2, 3, 7, 255, 1000, 65536, 10**6, 10**9, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30,
    0.0, -0.0, 0.5, 1e-308, 5e-324, 1e308, -1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS: Final = (
    "", " ", "x", "x" * 100_000, "[/x]", "[bold]", "[/]", "$\\frac$", "$x", "\x1b[31mred\x1b[0m", "\u202eabc", "é漢🚂",
    "\ud800", "\x00", "a\nb", "../../etc/passwd", "/dev/zero", "/dev/stdin", "/", ".", "..", "~", "none", "auto", "on",
    "100Mbit", "1bit", "9000Tbit", "8000TB", "1B", "1TiB", "1ns", "0.000001ns", "3600s", "99999min", "20ms", "d0g0",
    "d9999g9999", "rail0", "rail-only", "rail-optimized", "clos", "dr", "moe", "gpt", "ring", "!!python/none", "{}",
    "-1", "1e400", "9" * 5000, "0x" + "f" * 5000, "2020-13-01", "<script>", "%s", "{0}", "a,b", "*", "\u0661", "1_000",
)  # fmt: skip
TAGS: Final = ("!!bool", "!!int", "!!float", "!!timestamp", "!!binary", "!!set", "!!omap", "!!python/tuple", "!x", "&a")
BOMB: Final = "bomb: &a0 [x, x]\n" + "".join(f"b{i}: &a{i} [{f'*a{i - 1}, ' * 9}]\n" for i in range(1, 12))


def deep(dice: Random) -> Any:
    """A list or mapping, nested a few times or dozens."""
    data: Any = 1
    for _ in range(dice.choice([3, 30, 60])):
        data = [data] if dice.random() < 0.5 else {"a": data}
    return data


def value(dice: Random) -> Any:
    """Any plain value, most of them at a boundary."""
    choices: list[Callable[[], Any]] = [
        lambda: dice.choice(NUMBERS),
        lambda: dice.choice(TEXTS),
        lambda: dice.choice([None, True, False, [], {}]),
        lambda: [dice.choice(NUMBERS)] * dice.choice([1, 2, 1000]),
        lambda: dice.choice([10, -10]) ** dice.randrange(40),
        lambda: deep(dice),
    ]
    return dice.choice(choices)()


def same_type(old: Any, dice: Random) -> Any:
    """Another value of the type that a value has, which is more likely to be accepted."""
    if isinstance(old, bool) or old is None:
        return not old
    if isinstance(old, int):
        return dice.choice([0, 1, 2, 3, 5, 64, 1000, 10**5, 10**7, 10**12, 2**31, 2**62, old * 2, old * 1000, old + 1])
    if isinstance(old, float):
        return dice.choice([1e-300, 1e-9, 0.1, 0.5, 1.0, 2.0, 1e9, 1e300, old * 2, old / 1000])
    if isinstance(old, str):
        units = ("1B", "1KB", "1MB", "8000TB", "1bit", "1Mbit", "1Tbit", "1000Tbit", "1ns", "1us", "1ms", "3600s")
        kinds = ("rail-only", "rail-optimized", "all-to-all", "moe", "transfers", "cut_rail", "gray_loss", "oracle")
        return dice.choice([*units, *kinds, f"{old}0", f"{old} [/x] $\\frac$", old[:-1]])
    return value(dice)


def changed_data(data: Any, dice: Random) -> Any:
    """A copy of plain data with one to three changes: values, types, keys, copies of items, and parts left out."""
    whole = {"": copy.deepcopy(data)}
    is_gentle = dice.random() < 0.7
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        places = list(_places(whole))
        parent, key = dice.choice(places)
        old = parent[key]
        change = dice.randrange(9)
        if change == 0:
            parent[key] = value(dice)
        elif change <= 2 or (is_gentle and not isinstance(old, dict | list)):
            parent[key] = same_type(old, dice)
        elif change == 3 and parent is not whole:
            del parent[key]
        elif change == 4:
            parent[key] = dice.choice([[old], {"a": old}, str(old), [old] * 3])
        elif change == 5 and isinstance(old, int | float):
            parent[key] = dice.choice([-old, old * 10, old * 10**6, float(old), old + 1, str(old), old // 2])
        elif change == 6 and isinstance(parent, list):
            parent.extend([copy.deepcopy(old)] * dice.choice([1, 10]))
        elif change == 7 and isinstance(parent, dict) and parent is not whole:
            parent[dice.choice([f"{key}x", str(key).upper(), *TEXTS])] = parent.pop(key)
        else:
            other, name = dice.choice(places)
            parent[key] = copy.deepcopy(other[name])
    return whole[""]


def _places(data: Any) -> Any:
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], dict | list):
            yield from _places(data[key])


_MARKS: Final = (b"\xff" * 9 + b"\x01", b"\xef\xbb\xbf", b"\xff\xfe")
"""A length of 2^64 - 1 as protobuf writes it, and byte order marks."""


def changed_bytes(content: bytes, dice: Random) -> bytes:
    """Bytes with some of them replaced, inserted, left out, doubled or cut off."""
    data = bytearray(content)
    for _ in range(dice.choice([1, 1, 3, 10])):
        at = dice.randrange(len(data) + 1)
        end = min(len(data), at + dice.choice([1, 1, 4, 100]))
        change = dice.randrange(5)
        if change == 0:
            data[at:end] = dice.randbytes(end - at)
        elif change == 1:
            data[at:at] = dice.choice(
                [dice.randbytes(2), b"\xff", b"\x00", b"\t", b"[" * 3000, b"9" * 5000, b"'", *_MARKS]
            )
        elif change == 2:
            del data[at:end]
        elif change == 3:
            data[at:at] = data[at:end] * dice.choice([1, 100])
        elif dice.random() < 0.3:
            del data[at:]
    return bytes(data)


def changed_text(text: str, dice: Random) -> str:
    """Text with words, numbers or lines replaced, left out, moved or doubled; or with tags and aliases of YAML."""
    lines = text.split("\n")
    for _ in range(dice.choice([1, 1, 2, 4])):
        at = dice.randrange(len(lines))
        change = dice.randrange(6)
        if change == 0:
            del lines[at : at + dice.choice([1, 1, 3])]
        elif change == 1:
            lines[at:at] = [lines[at]] * dice.choice([1, 2, 100])
        elif change == 2:
            other = dice.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif change == 3:
            lines[at] = dice.choice([" ", "  ", "\t", "- "]) + lines[at]
        elif words := lines[at].split(" "):
            word = dice.randrange(len(words))
            words[word] = dice.choice([str(value(dice))[:200_000], f"{dice.choice(TAGS)} {words[word]}", "*a"])
            lines[at] = " ".join(words)
        lines = lines or [""]
    return "\n".join([*lines, BOMB] if dice.random() < 0.02 else lines)


Field = tuple[int, int, Any]  # number, wire type, value


def changed_messages(content: bytes, dice: Random) -> bytes:
    """A file of protobuf messages, each after its length, with fields of one of them changed."""
    messages, at = [], 0
    while at < len(content):
        length, at = _varint(content, at)
        messages.append(content[at : at + length])
        at += length
    for _ in range(dice.choice([1, 1, 2])):
        chosen = dice.randrange(len(messages))
        if dice.random() < 0.2:
            messages[chosen : chosen + 1] = dice.choice([[], [messages[chosen]] * 2, [dice.choice(messages)]])
        else:
            messages[chosen] = _changed_message(messages[chosen], dice)
    return b"".join(_encoded(len(message)) + message for message in messages)


def _changed_message(message: bytes, dice: Random) -> bytes:
    fields = _fields(message)
    if not fields:
        return message
    number, kind, content = fields[chosen := dice.randrange(len(fields))]
    if kind == 0:
        content = dice.choice([0, 1, 2, 7, 99, 2**31, 2**32, 2**63, 2**64 - 1, content + 1])
    elif kind == 2:
        inner: list[Callable[[], bytes]] = [lambda: _changed_message(content, dice)] * 3
        inner += [lambda: changed_bytes(content, dice), lambda: dice.choice(TEXTS).encode(errors="replace")]
        content = dice.choice(inner)()
    else:
        content = dice.randbytes(len(content))
    fields[chosen] = (dice.choice([number] * 9 + [dice.randrange(1, 40)]), kind, content)
    if dice.random() < 0.2:
        fields[chosen : chosen + 1] = dice.choice([[], [fields[chosen]] * 2])
    parts = []
    for number, kind, content in fields:
        head = _encoded(number << 3 | kind)
        body = _encoded(content) if kind == 0 else content
        parts.append(head + (_encoded(len(body)) if kind == 2 else b"") + body)
    return b"".join(parts)


def _fields(message: bytes) -> list[Field]:
    """The fields of a message; none if it is no message, such as text."""
    found: list[Field] = []
    at = 0
    try:
        while at < len(message):
            tag, at = _varint(message, at)
            kind = tag & 7
            if kind == 0:
                content, at = _varint(message, at)
                found.append((tag >> 3, kind, content))
                continue
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                if kind != 2:
                    return []
                size, at = _varint(message, at)
            if at + size > len(message):
                return []
            found.append((tag >> 3, kind, message[at : at + size]))
            at += size
    except IndexError:
        return []
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (content[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if content[at - 1] < 128:
            return number, at


def _encoded(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
