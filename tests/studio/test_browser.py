"""The whole way in Chromium: from a file to a release and its private report, by keyboard and on a narrow screen."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lightning_dpgen.data.tables.schema_file import read_yaml

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium")
# Milliseconds that a step may take on a machine that has much else to do.
PATIENCE = 180_000
ANSWERS = {
    "age": {"low": "0", "high": "110"}, "town": {"values": "Oslo\nBergen\nRome"}, "pay": {"low": "0", "high": "99999"},
}  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    root = tmp_path_factory.mktemp("studio")
    rng = np.random.default_rng(5)
    age, town, words = rng.integers(18, 90, 1500), rng.choice(["Oslo", "Bergen", "Rome"], 1500), np.array(["no", "yes"])
    pay = np.round(rng.lognormal(9, 0.5, 1500)).astype(int)
    rows = zip(age, town, pay, words[(age > 50).astype(int)], strict=True)
    (root / "people.csv").write_text("age,town,pay,smoker\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return root


def serve(root):
    """Start the program; return its process and the address that it prints."""
    command = [sys.executable, "-P", "-m", "lightning_dpgen.cli.main", "studio", str(root), "--no-browser"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, stderr=subprocess.DEVNULL)
    for line in server.stdout:
        if found := re.search(r"http://\S+", line):
            return server, found[0]
    raise AssertionError("no address was printed")


def end(server):
    """Kill the program, as a crash would."""
    server.kill()
    server.wait()
    server.stdout.close()


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no program chromium is on the path (CONTRIBUTING.md)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def look(page, shots, name):
    """Let axe look at a page, at 360 and 1,400 pixels, and keep what is seen."""
    from axe_playwright_python.sync_playwright import Axe

    for width in (1400, 360):
        page.set_viewport_size({"width": width, "height": 900})
        found = Axe().run(page).response["violations"]
        assert not found, [(one["id"], one["nodes"][0]["html"][:200]) for one in found]
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than {width} pixels"
        page.screenshot(path=shots / f"{name}-{width}.png", full_page=True)
    page.set_viewport_size({"width": 1400, "height": 900})


def press_to(page, selector):
    """Reach an element by the keyboard alone."""
    for _ in range(200):
        if page.evaluate("selector => document.activeElement?.matches(selector)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"the keyboard does not reach {selector}")


def test_the_whole_way(table, browser, tmp_path):
    shots = Path(os.environ.get("STUDIO_SHOTS", tmp_path))
    server, address = serve(table)
    try:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        wrong = []
        page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address)
        page.wait_for_selector("h1:has-text('Cases')")
        assert "token" not in page.url
        look(page, shots, "cases")
        # By the keyboard alone.
        for selector, text in (("#name", "people"), ("#path", str(table / "people.csv"))):
            press_to(page, selector)
            page.keyboard.type(text)
        press_to(page, "button")
        page.keyboard.press("Enter")
        page.wait_for_selector(".schema")
        columns = page.locator(".part .name label").all_inner_texts()
        for name, answers in ANSWERS.items():
            for key, text in answers.items():
                # As quick as a person types who does not wait.
                press_to(page, f"#part-{columns.index(name)}-{key}")
                page.keyboard.press("Control+a")
                page.keyboard.type(text, delay=30)
        page.keyboard.press("Tab")
        with page.expect_response("**/open"):
            page.fill("#part-table-label", "smoker")
            page.locator("#part-table-label").blur()
        page.wait_for_selector("#open .good")
        fields = read_yaml(table / "studio" / "people" / "table.schema.yaml")["columns"]
        for name, answers in ANSWERS.items():
            for key, text in answers.items():
                assert fields[name][key] == (text.splitlines() if key == "values" else int(text))
        # A type that is looked at by the keyboard changes nothing until it is asked for.
        page.focus(f"#part-{columns.index('town')}-type")
        page.keyboard.press("ArrowDown")
        page.wait_for_selector("button:has-text('Change the type') >> visible=true")
        assert read_yaml(table / "studio" / "people" / "table.schema.yaml")["columns"] == fields
        page.keyboard.press("ArrowUp")
        look(page, shots, "schema")
        page.click("text=Check the records")
        page.wait_for_selector("#check .good")
        page.click("text=Next: the budget")
        page.fill("[id='data.n']", "1500")
        page.fill("[id='privacy.epsilon']", "2")
        with page.expect_response("**/settings?live"):
            page.locator("[id='privacy.epsilon']").blur()
        page.wait_for_selector("#plan pre")
        look(page, shots, "budget")
        page.click("text=Start the run")
        page.wait_for_selector("progress")
        look(page, shots, "running")
        # The server is killed, and another one shows that the run went on.
        end(server)
        server, address = serve(table)
        page.goto(address)
        page.wait_for_selector("h1:has-text('Cases')")
        # The page that was open has asked for a server that was gone.
        wrong.clear()
        page.goto(page.url + "case/people/run/1")
        page.wait_for_selector("#verify .good:has-text('Verified')")
        page.click("text=Compare with the real records")
        page.wait_for_selector("#evaluate .good")
        page.click("#evaluate summary:has-text('The comparison')")
        private = page.frame_locator("iframe[title='The private report']")
        private.locator("img").first.wait_for()
        page.fill("#n", "50")
        page.click("text=Draw them")
        page.wait_for_selector("#sample .good")
        with page.expect_download() as download:
            page.click("#sample a")
        rows = Path(download.value.path()).read_text().splitlines()
        assert len(rows) == 51 and rows[0] == "age,town,pay,smoker"
        look(page, shots, "release")
        page.click("nav >> text=Studies")
        page.wait_for_selector("td:has-text('released')")
        look(page, shots, "studies")
        assert not wrong
    finally:
        end(server)


def test_another_site_reaches_nothing(table, browser, tmp_path):
    server, address = serve(table)
    try:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        page.wait_for_selector("h1:has-text('Cases')")
        root = page.url
        # A page of another origin in the same browser, which sends the cookies that the browser lets it send.
        page.route("http://evil.example/*", lambda route: route.fulfill(content_type="text/html", body="<p>evil"))
        page.goto("http://evil.example/")
        read = "url => fetch(url, {credentials: 'include'}).then(answer => answer.text()).catch(() => 'refused')"
        assert page.evaluate(read, root) == "refused"
        form = "url => { const form = document.createElement('form'); form.method = 'POST'; form.action = url; "
        with page.expect_navigation():
            page.evaluate(form + "document.body.append(form); form.submit(); }", f"{root}new")
        assert "expected a request of its own page" in page.content()
        page.goto("http://evil.example/")
        page.evaluate(
            "url => { const frame = document.createElement('iframe'); frame.src = url; document.body.append(frame); }", root
        )
        page.wait_for_timeout(1000)
        assert not any("Cases" in frame.content() for frame in page.frames)
    finally:
        end(server)
