"""The benchmark of the studio opens each page."""

import sys

import studio_pages


def test_each_page_has_a_time(monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["studio_pages.py", "--quick"])
    studio_pages.main()
    shown = capfd.readouterr().out
    for name in ("start", "first plan", "cases", "schema", "a column is kept", "budget", "studies"):
        assert f"\n{name}" in f"\n{shown}", shown
