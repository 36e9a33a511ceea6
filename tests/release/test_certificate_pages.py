"""The pages about certificates: every field of the JSON schema is described, and what they quote is in a real one."""

import contextlib
import json
import re
import zipfile
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from keep_releases import KEPT

from lightning_dpgen.release.certificate import FORMAT_VERSION, digest
from lightning_dpgen.release.files import CERTIFICATE, NotARelease
from lightning_dpgen.verification.verify import verify

ROOT = Path(__file__).parent.parent.parent
REFERENCE, READ = ROOT / "docs/reference/certificate.md", ROOT / "docs/how_to/read_a_certificate.md"
SCHEMA = json.loads((resources.files("lightning_dpgen.release") / "privacy.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
FUZZED = sorted((ROOT / "tests/fuzz/corpus/verify").glob("certificate_*.json"))
TODAY = KEPT / f"format_{FORMAT_VERSION}"


def _of_archive(path):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(CERTIFICATE))


def _fields(schema, before=""):
    """Yield the path of each field that a schema names."""
    for own in schema.get("anyOf", []):
        yield from _fields(own, before)
    if "items" in schema:
        yield from _fields(schema["items"], f"{before.removesuffix('.')}[].")
    for name, own in schema.get("properties", {}).items():
        if "const" not in own or name == "format_version":
            yield before + name
        yield from _fields(own, f"{before}{name}.")


def test_the_page_describes_the_fields_of_the_schema():
    described = re.findall(r"^\| `([\w.\[\]]+)` \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    described = [name for name in described if name not in SCHEMA["properties"]["relation"]["enum"]]
    fields = set(_fields(SCHEMA))
    assert len(fields) > 40 and len(described) == len(set(described))
    assert fields - set(described) == set()
    # `declared` may hold more than its schema names.
    assert all(name.startswith("declared.") for name in set(described) - fields)
    assert f"`format_version` {FORMAT_VERSION}" in REFERENCE.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted(TODAY.glob("*.zip")), ids=lambda path: path.stem)
def test_a_kept_certificate_has_the_form(path):
    certificate = _of_archive(path)
    assert [error.message for error in VALIDATOR.iter_errors(certificate)] == []
    for name in SCHEMA["required"]:
        assert not VALIDATOR.is_valid({key: value for key, value in certificate.items() if key != name})
    assert not VALIDATOR.is_valid(certificate | {"more": 1})


def test_the_digest_is_computed_as_the_page_says():
    [code] = re.findall(r"^```python\n(.*?)^```", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    exec(code, names := {})
    certificate = _of_archive(TODAY / "persons.zip")
    assert names["compute_digest"](certificate) == certificate["digest"] == digest(certificate)


@pytest.mark.parametrize("path", FUZZED, ids=lambda path: path.stem)
def test_a_certificate_without_the_form_is_refused(path, tmp_path):
    try:
        certificate = json.loads(path.read_text(encoding="utf-8"))
        valid = VALIDATOR.is_valid(certificate)
    except ValueError:
        valid = False
    if path.stem in ("certificate_one", "certificate_run"):
        assert valid
    if not valid:
        (tmp_path / CERTIFICATE).write_bytes(path.read_bytes())
        # A file that is no JSON of this kind is refused before it is verified.
        with contextlib.suppress(NotARelease):
            assert verify(tmp_path).problems


def _holds(whole, part):
    """Return whether a JSON value holds the fields of another, and is equal elsewhere."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(name in whole and _holds(whole[name], own) for name, own in part.items())
    return whole == part


def test_what_the_page_for_officers_quotes_is_in_the_kept_certificate():
    certificate, text = _of_archive(TODAY / "persons.zip"), READ.read_text(encoding="utf-8")
    quoted = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(quoted) > 5
    for block in quoted:
        assert _holds(certificate, json.loads(block)), block
    sentence = " ".join(re.findall(r"^> (.*)$", text, re.MULTILINE))
    assert certificate["statement"].startswith(sentence)
    assert not _holds(certificate, {"epsilon": 1.0})
