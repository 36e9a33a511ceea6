"""Mutations that are nearly sound: inputs are changed at the level at which a reader understands them.

Where they have checksums they are sealed again, so that the change is read and not only noticed.
"""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from lightning_dpgen.privacy import chain
from lightning_dpgen.release.certificate import digest, statement

_NUMBERS = [
    0, 1, -1, 2, 3, 7, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64,
    10**7, 10**15, 10**40, 0.0, -0.0, 0.5, 1e-9, 1e-300, 1e300, 1.7976931348623157e308, -1.5, 0.1, 1e-5, 5e-6, 0.001, 1e22,
]  # fmt: skip
_TEXTS = [
    "", " ", "x", "a" * 300, "a" * 70_000, "\n", "\0", "\x1b[31m", "../x", "/etc/passwd", "é", "\ud7ff",
    "\U0001f600", "nan", "inf", "null", "true", "1e999", "-", "0", "1", "???", "TODO", "{}", "[]", "=1+1", "label",
    "items", "conv", "dense", "private", "GaussianDpEvent", "LaplaceDpEvent", "PoissonSampledDpEvent",
    "SelfComposedDpEvent", "ComposedDpEvent", "NonPrivateDpEvent", "RepeatAndSelectDpEvent", "EpsilonDeltaDpEvent",
    "OneOfDpEvent", "add_or_remove_one", "replace_one", "closed form", "dp_accounting.pld", "vae_mixture",
    "rbm_mixture", "wgan_mixture", "gaussian_mixture", "series_mixture", "product_mixture", "forest_mixture", "copula",
    "projection", "images", "table", "baskets", "series", "weights", "2024-01-01", "category", "integer", "number",
    "boolean", "date",
]  # fmt: skip
_PIECES = [
    b"\n", b"\r\n", b'"', b",", b"\t", b";", b"nan", b"\xef\xbb\xbf", b"\xff", b"\0", b"1e999", b"-", b" ", b"{",
    b"[", b"]", b"}", b":", b"\x80", b"99999999999999999999", b"'", b"\\", b"&a", b"*a", b"|", b"!!int", b"#", b"%",
    b"\xed\xa0\x80", b"1" * 400,
]  # fmt: skip
_SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    np.nan,
    np.inf,
    -np.inf,
    1e-45,
    1e38,
    3e38,
    1e300,
    1e-300,
    255,
    256,
    2**31,
    -(2**31),
    2**63 - 1,
]


def mutated(random: Random, name: str, content: bytes, others: list[bytes]) -> bytes:
    """Return the content of an input, changed in one to a few ways that go with its name."""
    for _ in range(1 + int(random.expovariate(0.9))):
        # An archive of several files is only the form in which an input is kept: no boundary reads it.
        if random.random() < 0.12 and not name.endswith(".zip"):
            content = of_bytes(random, content, others)
            continue
        try:
            content = _by_name(name)(random, content, others)
        except (RecursionError, OverflowError):
            # A tree that is too deep for Python's own writer, or a number that is too large, stays as it is.
            continue
    return content


def of_bytes(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """Change bytes: flip, cut, double or insert them, or take them from another input."""
    at, far = sorted(random.randrange(len(content) + 1) for _ in range(2))
    what = random.randrange(7)
    if what == 0 and content:
        at = min(at, len(content) - 1)
        return content[:at] + bytes([content[at] ^ (1 << random.randrange(8))]) + content[at + 1 :]
    if what == 1:
        return content[:at]
    if what == 2:
        return content[:at] + content[far:]
    if what == 3:
        return content[:at] + random.choice(_PIECES) * random.choice([1, 1, 1, 2, 50]) + content[at:]
    if what == 4:
        return content[:far] + content[at : at + 2000] + content[far:]
    if what == 5 and others:
        other = random.choice(others)
        return content[:at] + other[random.randrange(len(other) + 1) :]
    packed = struct.pack(random.choice(["<I", "<Q", ">I", "<d"]), random.choice([0, 1, 2**31, 2**32 - 1, 1000]))
    return content[:at] + packed + content[at + len(packed) :]


def of_text(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """Change lines and words, move or double them."""
    lines = content.split(b"\n")
    at = random.randrange(len(lines))
    what = random.randrange(6)
    if what == 0:
        lines.insert(random.randrange(len(lines) + 1), lines[at])
    elif what == 1:
        del lines[at]
    elif what == 2:
        lines[at] = random.choice(
            [b"", lines[at] * 2, lines[at] + random.choice(_PIECES), random.choice(_PIECES) + lines[at]]
        )
    elif what == 3:
        lines = lines[:at] + [lines[at]] * random.choice([2, 10, 300]) + lines[at:]
    else:
        for cut in random.sample([b",", b"\t", b" ", b":", b";"], 5):
            words = lines[at].split(cut)
            if len(words) > 1:
                place = random.randrange(len(words))
                value = random.choice([*map(str, _NUMBERS), *_TEXTS]).encode()
                words[place] = random.choice(
                    [value, b"", b'"' + value + b'"', random.choice(words), random.choice(_PIECES)]
                )
                lines[at] = cut.join(words)
                break
    return b"\n".join(lines)


def of_json(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """Change a value of a tree, leave it out, double or wrap it."""
    value = _parsed(content)
    if value is None:
        return of_bytes(random, content, others)
    return json.dumps(of_value(random, value)).encode()


def of_value(random: Random, value: Any) -> Any:
    """Return the same tree but for one of its values."""
    places = list(_places(value))
    if not places or random.random() < 0.02:
        return _odd(random, value)
    value = copy.deepcopy(value)
    *way, last = random.choice(places)
    inner = value
    for step in way:
        inner = inner[step]
    if isinstance(inner, dict) and random.random() < 0.15:
        what = random.randrange(3)
        if what == 0:
            del inner[last]
        elif what == 1:
            inner[random.choice(_TEXTS)] = inner[last]
        else:
            key = random.choice(list(inner))
            inner[key] = inner.pop(last)
    elif isinstance(inner, list) and random.random() < 0.3:
        what = random.randrange(4)
        if what == 0:
            del inner[last]
        elif what == 1:
            inner[last:last] = [copy.deepcopy(inner[last]) for _ in range(random.choice([1, 1, 5, 60, 1500]))]
        elif what == 2:
            random.shuffle(inner)
        else:
            inner.append(_odd(random, inner[last]))
    else:
        inner[last] = _odd(random, inner[last])
    return value


def _odd(random: Random, value: Any) -> Any:
    """Return another value, often of the same kind."""
    if isinstance(value, bool) or random.random() < 0.25:
        return random.choice(
            [None, True, False, [], {}, [value], {"x": value}, random.choice(_NUMBERS), random.choice(_TEXTS)]
        )
    if isinstance(value, int | float) and random.random() < 0.6:
        near = [
            value + 1,
            value - 1,
            value * 2,
            value / 2,
            value * 1.0001,
            value * 0.999,
            value * 1e-3,
            value * 1e6,
            -value,
            str(value),
        ]
        return random.choice(near)
    if isinstance(value, str):
        return random.choice(
            [value * 2, value[:-1], value + random.choice(_TEXTS), random.choice(_TEXTS), value.upper(), "." + value]
        )
    if random.random() < 0.1:
        for _ in range(random.choice([5, 20, 70, 2000])):
            value = [value]
        return value
    return random.choice([*_NUMBERS, *_TEXTS])


def _places(value: Any, way: tuple = ()) -> Any:
    """Yield the paths to all values of a tree."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*way, key)
        if len(way) < 30:
            yield from _places(part, (*way, key))


def of_certificate(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """Change a certificate, and mostly give it a statement and a digest that go with its fields."""
    certificate = _parsed(content)
    if not isinstance(certificate, dict):
        return of_json(random, content, others)
    certificate = of_value(random, certificate)
    if random.random() < 0.3 and isinstance(certificate, dict) and isinstance(certificate.get("stages"), list):
        events = [stage.get("event") for stage in certificate["stages"] if isinstance(stage, dict)]
        certificate["event"] = events[0] if len(events) == 1 else {"type": "ComposedDpEvent", "events": events}
    return sealed(certificate) if random.random() < 0.85 else json.dumps(certificate).encode()


def sealed(certificate: Any) -> bytes:
    """Return the text of a certificate, with its own statement and digest where it still has one."""
    try:
        certificate["statement"] = statement(certificate)
        certificate["digest"] = digest(certificate)
    except Exception:
        pass
    return json.dumps(certificate).encode()


def of_chain(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """Change lines of a ledger or study, and mostly chain them again."""
    lines = [_parsed(line) for line in content.split(b"\n") if line]
    if not lines or not all(isinstance(line, dict) for line in lines):
        return of_text(random, content, others)
    at = random.randrange(len(lines))
    what = random.randrange(8)
    if what == 0:
        lines.insert(random.randrange(len(lines) + 1), copy.deepcopy(lines[at]))
    elif what == 1:
        del lines[at]
    else:
        lines[at] = of_value(random, lines[at])
    if random.random() < 0.15:
        return b"\n".join(json.dumps(line).encode() for line in lines) + b"\n"
    return chained(lines)


def chained(lines: list[Any]) -> bytes:
    """Return lines with checksums that follow from each other."""
    head, texts = "", []
    for line in lines:
        if isinstance(line, dict):
            line = {key: value for key, value in line.items() if key != "check"}
            head = chain.check(head, line)
            line["check"] = head
        texts.append(json.dumps(line).encode())
    return b"".join(text + b"\n" for text in texts)


def of_safetensors(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """Change names, shapes, types and places of the header, or numbers behind it."""
    if len(content) < 10:
        return of_bytes(random, content, others)
    length = struct.unpack("<Q", content[:8])[0]
    header = _parsed(content[8 : 8 + length])
    if not isinstance(header, dict):
        return of_bytes(random, content, others)
    body = content[8 + length :]
    if random.random() < 0.5 and body:
        at = random.randrange(len(body))
        at -= at % 4
        body = body[:at] + struct.pack("<f", random.choice([0.0, np.nan, np.inf, -1.0, 3e38, 1e-45, 1.0])) + body[at + 4 :]
    else:
        header = of_value(random, header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", random.choice([len(text)] * 9 + [2**40])) + text + body


def of_npy(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """Change the numbers, type or shape of an array."""
    try:
        # Only a file that numpy itself writes: one with another format within would be read as that format.
        array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except Exception:
        return of_bytes(random, content, others)
    what = random.randrange(6)
    with np.errstate(all="ignore"):
        if what <= 2 and array.size and array.dtype.kind in "iufb":
            array = array.copy()
            for _ in range(random.choice([1, 1, 3])):
                value = np.float64(random.choice(_SPECIAL))
                if array.dtype.kind == "f":
                    array.reshape(-1)[random.randrange(array.size)] = value
                else:
                    whole = int(np.nan_to_num(value, posinf=0, neginf=0)) % 2**64
                    array.reshape(-1)[random.randrange(array.size)] = (
                        np.array([whole], np.uint64).view(np.int64).astype(array.dtype)[0]
                    )
        elif what == 3:
            kinds = ["<f4", "<f8", ">f8", "u1", "<i4", "<i8", ">i4", "<u8", "?", "<f2", "<c16", "S3", "<U2", "M8[D]", "i1"]
            array = array.astype(random.choice(kinds), casting="unsafe") if array.dtype.kind in "iufb" else array
        elif what == 4:
            flat = array.reshape(-1)
            array = random.choice([array[None], array[..., None], flat, flat[:0], flat[: array.size // 2]])
        else:
            return of_bytes(random, content, others)
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def of_zip(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """Change one file of an archive, and mostly its hash in a release's certificate or the heads of its ledger."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    except Exception:
        return of_bytes(random, content, others)
    if not files:
        return content
    names = sorted(files)
    weights = [3 if name.endswith((".json", ".jsonl")) else 1 for name in names]
    name = random.choices(names, weights)[0]
    if random.random() < 0.04:
        moved = files.pop(name)
        files[random.choice([*names, "other.bin"])] = moved
    else:
        files[name] = _by_name(name)(random, files[name], [])
    if random.random() < 0.85:
        _resealed(files)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", random.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for name, part in files.items():
            archive.writestr(zipfile.ZipInfo(name), part)
    return file.getvalue()


def _resealed(files: dict[str, bytes]) -> None:
    certificate = _parsed(files.get("privacy.json", b""))
    if isinstance(certificate, dict) and isinstance(certificate.get("files"), dict):
        hashes = {name: hashlib.sha256(part).hexdigest() for name, part in files.items() if name != "privacy.json"}
        certificate["files"] |= {name: hashed for name, hashed in hashes.items() if name in certificate["files"]}
        files["privacy.json"] = sealed(certificate)
    for name in [name for name in files if name.endswith(".jsonl")]:
        checks = [_parsed(line) for line in files[name].splitlines()]
        heads = [line["check"] for line in checks if isinstance(line, dict) and isinstance(line.get("check"), str)]
        files[f"{name}.heads"] = "".join(f"\n{head}\n" for head in heads).encode()


def of_packed(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """Change the content that is packed by gzip."""
    try:
        inner = gzip.decompress(content)
    except Exception:
        return of_bytes(random, content, others)
    return gzip.compress(of_text(random, inner, []), mtime=0)


def of_words(random: Random, content: bytes, others: list[bytes]) -> bytes:
    """Change settings as they are given on a command line."""
    words = _parsed(content)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return b"[]"
    pool = [word for other in others for word in (_parsed(other) or []) if isinstance(word, str)] or words or ["seed=1"]
    what = random.randrange(6)
    at = random.randrange(len(words) + 1)
    if what == 0 and words:
        del words[min(at, len(words) - 1)]
    elif what <= 2:
        words.insert(at, random.choice(pool))
    elif words:
        at = min(at, len(words) - 1)
        name, _, value = words[at].partition("=")
        values = [
            *map(str, _NUMBERS),
            *(text for text in _TEXTS if len(text) < 400),
            "null",
            "[1,2]",
            "{a: 1}",
            "${oc.env:HOME}",
            "auto",
        ]
        others_value = random.choice(pool).partition("=")[2]
        value = random.choice([random.choice(values), value * 2, f"-{value}", f"'{value}'", others_value, value[:-1]])
        name = random.choice([name] * 6 + [f"+{name}", f"++{name}", f"~{name}", f"{name}.x", name[:-1], name.split(".")[0]])
        words[at] = f"{name}={value}"
    return json.dumps(words).encode()


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


_KINDS: dict[str, Callable[[Random, bytes, list[bytes]], bytes]] = {
    ".json": of_json, ".jsonl": of_chain, ".safetensors": of_safetensors, ".npy": of_npy, ".npz": of_zip, ".zip": of_zip,
    ".xlsx": of_zip, ".ndjson": of_text,
    ".gz": of_packed, ".csv": of_text, ".tsv": of_text, ".dat": of_text, ".txt": of_text, ".yaml": of_text,
}  # fmt: skip


def _by_name(name: str) -> Callable[[Random, bytes, list[bytes]], bytes]:
    if name == "privacy.json" or name.startswith("certificate"):
        return of_certificate
    if name.startswith("words"):
        return of_words
    return _KINDS.get(Path(name).suffix, of_bytes)
