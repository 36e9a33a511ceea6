"""JSON from outside has the same value for every reader, and is bounded before it is built."""

import json
import math
import random

import pytest

from lightning_dpgen.common.strict_json import parse_json, read_json

REFUSED = {
    "deep lists": (b"[" * 100_000, "deeper than 64"),
    "deep and closed": (b"[" * 65 + b"]" * 65, "deeper than 64"),
    "deep objects": (b'{"a":' * 65 + b"1" + b"}" * 65, "deeper than 64"),
    "many values": (b"[" + b"1," * 1_000_000 + b"1]", "more than 1000000 values"),
    "many empty lists": (b"[" + b"[]," * 700_000 + b"[]]", "more than 1000000 values"),
    "a key twice": (b'{"a": 1, "a": 2}', "appears twice"),
    "not a number": (b"[NaN]", "NaN is not a number of JSON"),
    "infinity": (b"-Infinity", "is not a number of JSON"),
    "too large a fraction": (b"[1e999]", "more than a double"),
    "too large a whole number": (b"1" + b"0" * 400, "more than a double"),
    "a number that is a book": (b"0." + b"1" * 2_000_000, "longer than"),
    "half a pair": (b'["\\ud800"]', "surrogate"),
    "half a pair in a key": (b'{"\\udcff": 1}', "surrogate"),
    "not UTF-8": (b'"\xff"', "byte 2 is not UTF-8"),
    "nothing": (b"", "Expecting value"),
    "a quote that is never closed": (b'"' + b'\\"' * 500_000, "Unterminated"),
    "many quotes and brackets": (b'"\\' + b'"[' * 700_000, "deeper"),
}


@pytest.mark.parametrize("content, why", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_refused_as_a_value_error_in_one_line(content, why, tmp_path):
    with pytest.raises(ValueError, match=why) as said:
        parse_json(content)
    assert len(str(said.value)) < 200 and "\n" not in str(said.value)
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^a.json: .*{why}"):
        read_json(path)


def _value(random_, depth):
    kind = random_.randrange(8 if depth else 6)
    if kind < 6:
        text = "".join(random_.choices('ab"\\[]{},:\n\u00e9\U0001f600', k=random_.randrange(6)))
        whole, fraction = random_.randrange(-(10**20), 10**20), random_.gauss(0.0, 1e9)
        return (None, True, whole, fraction, text, text)[kind]
    if kind == 6:
        return [_value(random_, depth - 1) for _ in range(random_.randrange(4))]
    return {str(i) + '"[': _value(random_, depth - 1) for i in range(random_.randrange(4))}


def test_the_bounds_count_as_the_values_do():
    """By an independent count over the values themselves, the bound refuses exactly the values beyond it."""

    def depth(value):
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inside is None else 1 + max(map(depth, inside), default=0)

    def count(value):
        """Count values, where an empty list or object counts as one more than its elements."""
        inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        return isinstance(value, (dict, list)) + max(0, len(inside) - 1) + sum(map(count, inside))

    random_ = random.Random(5)
    for _ in range(300):
        value = _value(random_, 5)
        content = json.dumps(value, ensure_ascii=random_.random() < 0.5).encode()
        parsed = parse_json(content, most_depth=depth(value), most_values=count(value) + 1)
        assert parsed == value and json.dumps(parsed) == json.dumps(value)
        if depth(value):
            with pytest.raises(ValueError, match="deeper"):
                parse_json(content, most_depth=depth(value) - 1)
            with pytest.raises(ValueError, match="values"):
                parse_json(content, most_depth=0, most_values=count(value))


def test_a_file_has_a_largest_size_and_holds_an_object(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert read_json(path, most_bytes=8) == {"a": 1}
    with pytest.raises(ValueError, match="larger than 7 bytes"):
        read_json(path, most_bytes=7)
    path.write_text("[]")
    with pytest.raises(ValueError, match="expected a JSON object"):
        read_json(path)


def test_names_of_files_may_hold_halves_of_pairs_where_it_is_said():
    assert parse_json(b'["\\udcff"]', lone_surrogates=True) == ["\udcff"]
    assert math.isclose(parse_json(b"1e308"), 1e308) and parse_json(b"1" + b"0" * 308) == 10**308
