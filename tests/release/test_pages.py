"""Pages are read on a dark screen, on paper, on a phone and aloud; in a browser where there is one."""

import html
import itertools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from metrics.test_evaluation import evaluated
from metrics.test_table_evaluation import evaluated as evaluated_table
from release.released import Page, released
from release.test_history_pictures import SCHEMAS as HISTORIES
from release.test_history_pictures import histories, write_of_histories
from release.test_synthetic_pages import SCHEMAS

from lightning_dpgen.cli.main import main
from lightning_dpgen.release.pages import plot_style, report
from lightning_dpgen.release.pages.private_report import write_private_report

STYLE = (Path(report.__file__).parent / "templates" / "style.css.jinja").read_text()
# Least contrast of text by WCAG 2.2 (1.4.3).
LEAST = 4.5
CHROMIUM, AXE = shutil.which("chromium"), os.environ.get("DPGEN_AXE")


def _colours(rule):
    return dict(re.findall(r"--([\w-]+): (#\w+);", rule))


LIGHT = _colours(re.search(r"^:root \{(.*)\}", STYLE, re.MULTILINE)[1])
DARK = LIGHT | _colours(re.search(r"^  :root \{(.*)\}", STYLE, re.MULTILINE)[1])


def _luminance(colour):
    digits = colour.lstrip("#")
    digits = "".join(2 * one for one in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """Return the ratio of WCAG, from 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_is_that_of_known_pairs():
    assert contrast("#fff", "#000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01) and contrast("#777777", "#ffffff") < LEAST


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_all_text_can_be_read(colours):
    for text in ("ink", "soft", "accent"):
        for paper in ("paper", "wash"):
            assert contrast(colours[text], colours[paper]) >= LEAST, (text, paper)
    assert contrast(colours["alarm"], colours["alarm-paper"]) >= LEAST <= contrast(colours["ink"], colours["alarm-paper"])


def test_a_dark_page_is_dark_and_changes_every_colour():
    assert _luminance(DARK["paper"]) < 0.05 < 0.9 < _luminance(LIGHT["paper"])
    assert not [name for name, colour in LIGHT.items() if DARK[name] == colour]


def test_each_colour_of_a_plot_has_one_for_dark_pages():
    light = (plot_style.REAL, plot_style.SYNTHETIC, plot_style.SOFT, plot_style.LINE)
    for colour in light:
        assert plot_style.DARK_RULES.count(colour) == 2
    dark = dict(re.findall(r'fill: (#\w+)"\] \{ fill: (#\w+)', plot_style.DARK_RULES))
    assert contrast(dark[plot_style.SOFT], DARK["paper"]) >= LEAST


def check_markup(text):
    """Check what a screen reader and a keyboard need, of a page as it is written."""
    assert '<html lang="en">' in text and text.count("<main>") == 1 == text.count("<h1>")
    assert all('scope="' in tag for tag in re.findall(r"<th\b[^>]*>", text))
    assert all(re.search(r'alt="[^"]+"', tag) for tag in re.findall(r"<img\b[^>]*>", text))
    assert all('role="img"' in tag and 'aria-label="' in tag for tag in re.findall(r"<svg\b[^>]*>", text))
    assert all('tabindex="0"' in tag for tag in re.findall(r"<pre\b[^>]*>", text))
    levels = [int(level) for level in re.findall(r"<h([1-6])", text)]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert "prefers-color-scheme: dark" in text and "@media print" in text and "max-width: 560px" in text


@pytest.mark.parametrize("kind", ["table", "grey pictures", "series", "baskets"])
def test_a_public_page_can_be_heard_and_walked_through(tmp_path, kind):
    released(tmp_path / "release", SCHEMAS[kind][0])
    text = (tmp_path / "release" / "report.html").read_text(encoding="utf-8")
    check_markup(text)
    assert Page(text).text


def test_a_private_page_can_be_heard_and_walked_through(tmp_path):
    write_private_report(tmp_path / "page.html", evaluated("images", 60, 50, shape=(2, 3)), title="records")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    check_markup(text)
    assert '<header class="banner"' in text


_LOOK = """<script>%s</script><script>
addEventListener("load", async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  parent.postMessage(JSON.stringify({
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    bad: found.violations.filter(v => ["serious", "critical"].includes(v.impact)).map(v => v.id + " " + v.nodes[0].html)
  }), "*");
});</script>"""
_AROUND = """<!doctype html><iframe id="page" width="%d" height="900" src="page.html"></iframe><script>
addEventListener("message", e => { document.body.insertAdjacentHTML("beforeend", "<pre id=found></pre>");
  document.getElementById("found").textContent = e.data; });</script>"""


def look(page, folder, width, dark):
    """Return what axe-core finds on a page in Chromium, and whether it is wider than its window."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    script = Path(AXE).read_text(encoding="utf-8")
    (folder / "page.html").write_text(text.replace("</head>", _LOOK % script + "</head>"), encoding="utf-8")
    (folder / "around.html").write_text(_AROUND % width, encoding="utf-8")
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"]
    words += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--user-data-dir={folder / 'profile'}"]
    words += ["--virtual-time-budget=20000", "--dump-dom", f"file://{folder / 'around.html'}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    told = re.search(r"<pre id=\"found\">(.*?)</pre>", done.stdout, re.DOTALL)[1]
    found = json.loads(html.unescape(told))
    assert found["dark"] == dark
    return found


@pytest.mark.slow
@pytest.mark.skipif(not (CHROMIUM and AXE), reason="needs chromium, and DPGEN_AXE=.../axe-core/axe.min.js (npm)")
def test_a_browser_finds_nothing_serious(tmp_path):
    """All kinds of pages, wide and 320 px, light and dark; and a page that is bad is found to be."""
    pages = []
    for number, kind in enumerate(("table", "grey pictures", "series", "baskets")):
        released(tmp_path / f"release{number}", SCHEMAS[kind][0])
        pages.append(tmp_path / f"release{number}" / "report.html")
    assert main(["project", "project.radius=10", f"run_dir={tmp_path / 'projected'}"]) == 0
    pages.append(tmp_path / "projected" / "release" / "report.html")
    for kind in ("table", "images", "series", "baskets"):
        pages.append(tmp_path / f"{kind}.html")
        of_kind = {"shape": (2, 3)} if kind == "images" else {}
        found = evaluated_table(240, 120, 120) if kind == "table" else evaluated(kind, 60, 50, **of_kind)
        write_private_report(pages[-1], found, title="records")
    pages.append(tmp_path / "histories.html")
    write_of_histories(pages[-1], HISTORIES["two"], *(histories(HISTORIES["two"], [9, 0, 1, 30], seed) for seed in (0, 1)))
    for page in pages:
        for width in (320, 1200):
            for dark in (False, True):
                found = look(page, tmp_path, width, dark)
                assert not found["bad"] and found["wide"] <= 0, (page, width, dark, found)
    bad = tmp_path / "bad.html"
    bad.write_text(pages[0].read_text().replace("<h1>", '<div style="width: 2000px"><img src="data:,"></div><h1>'))
    found = look(bad, tmp_path, 320, False)
    assert found["bad"] and found["wide"] > 0
