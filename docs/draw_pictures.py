"""Draw the book's diagrams into docs/_static: python docs/draw_pictures.py"""

from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent / "_static"
# Readers choose a light or a dark page; a picture that stands in a page as a file follows the system's choice.
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1b2430; text-anchor: middle }
.small { font-size: 12px; fill: #4a5563 } .left { text-anchor: start } .code { font: 13px monospace; white-space: pre }
.box { fill: #f4f6f9; stroke: #7a8699; rx: 6px }
.private { fill: #fdeeee; stroke: #b04a4a }
.public { fill: #eaf5ec; stroke: #3d7d4c }
.line { stroke: #4a5563; stroke-width: 1.5; fill: none; marker-end: url(#head) } #head path { fill: #4a5563 }
.page { fill: #ffffff }
"""


class Picture:
    """An SVG of boxes and arrows; `title` is read to those who do not see it."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title, self.parts = width, height, title, []

    def box(self, x: int, y: int, width: int, words: str, kind: str = "box", height: int = 44) -> None:
        """Draw a box with lines of text; the first is larger."""
        self.parts.append(f'<rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>')
        lines = words.split("\n")
        first = y + height / 2 + 5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + 17 * number, line, "" if number == 0 else "small")

    def text(self, x: float, y: float, words: str, kind: str = "small") -> None:
        """Write one line."""
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>')

    def arrow(self, *points: tuple[int, int]) -> None:
        """Draw an arrow through points."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(f'<path class="line" d="{path}"/>')

    def svg(self) -> str:
        """Return the file."""
        head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img">'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style>"
            f'<defs>{head}<path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
            f'<rect class="page" width="{self.width}" height="{self.height}"/>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def draw_way() -> Picture:
    """Draw the way of a record, from a file to a release."""
    picture = Picture(880, 330, "The way of a record: private on the left, public from the noise on")
    top = ["schema", "records", "lot", "gradient of\neach record", "clip to C", "sum + noise", "step"]
    kinds = ["public", "private", "private", "private", "private", "public", "public"]
    for number, (words, kind) in enumerate(zip(top, kinds, strict=True)):
        x = 12 + 124 * number
        picture.box(x, 40, 104, words, kind)
        if number:
            picture.arrow((x - 20, 62), (x - 2, 62))
    picture.text(250, 26, "private: never leaves the machine")
    picture.text(720, 26, "public: covered by the ledger")
    picture.box(12, 150, 228, "plan\neach look, with its noise", "public", 52)
    picture.box(330, 150, 240, "ledger\none line a look, before its noise", "public", 52)
    picture.box(640, 150, 228, "network, mixture, statistics", "public", 52)
    picture.arrow((240, 176), (328, 176))
    picture.text(284, 168, "equal?")
    picture.arrow((684, 86), (520, 148))
    picture.arrow((806, 86), (780, 148))
    picture.box(330, 250, 240, "certificate\nepsilon, recomputed by anyone", "public", 52)
    picture.box(640, 250, 228, "synthetic records, report", "public", 52)
    picture.arrow((450, 202), (450, 248))
    picture.arrow((754, 202), (754, 248))
    picture.arrow((126, 202), (126, 276), (328, 276))
    return picture


def draw_terms() -> Picture:
    """Draw the three kinds of a term of a loss."""
    picture = Picture(880, 300, "The three kinds of a term: per record, per group, and without data")
    rows = [
        ("PerRecord", "is handed one record", "clipped to C", "moves by at most C"),
        ("PerGroup", "is handed a random group", "each group clipped to C", "moves by at most 2 C"),
        ("DataFree", "is handed no record", "not clipped, no noise", "does not move"),
    ]
    for x, words in ((90, "term"), (300, "what it sees"), (530, "its gradient"), (760, "the sum, by one record")):
        picture.text(x, 24, words)
    for number, (name, sees, clipped, moved) in enumerate(rows):
        y = 44 + 84 * number
        picture.box(12, y, 156, name, "box", 56)
        picture.box(200, y, 200, sees, "public" if name == "DataFree" else "private", 56)
        picture.box(432, y, 196, clipped, "public" if name == "DataFree" else "private", 56)
        picture.box(660, y, 208, moved, "public", 56)
        for x in (168, 400, 628):
            picture.arrow((x, y + 28), (x + 30, y + 28))
    return picture


def draw_plan() -> Picture:
    """Draw plan and ledger over the time of a run that is interrupted once."""
    picture = Picture(880, 300, "Plan and ledger: the promise comes first, lines come before noise, both agree at the end")
    picture.text(12, 40, "plan", "left")
    picture.box(110, 18, 120, "split\n5 looks", "public")
    picture.box(236, 18, 300, "training\n60 lots", "public")
    picture.box(542, 18, 120, "means\n1 look", "public")
    picture.text(690, 44, "before any record is read", "small left")
    picture.text(12, 124, "ledger", "left")
    for number in range(9):
        lost = number == 5
        picture.box(
            110 + 62 * number, 102, 54, "lost" if lost else f"line {number + 1}", "private" if lost else "public", 36
        )
    picture.text(690, 125, "written, then the noise", "small left")
    picture.arrow((440, 180), (440, 142))
    picture.text(440, 196, "a crash here: the line stands, so the look is paid for, and is never drawn twice")
    picture.box(110, 226, 552, "at the end: are these the looks that were promised? If so, the certificate", "public", 52)
    return picture


def draw_certificate() -> Picture:
    """Draw a certificate beside the question that each part of it answers."""
    picture = Picture(880, 560, "A certificate: the lines on the left answer the questions on the right")
    parts = [
        (['"private": true,', '"noise": {"seeded": false, ...'], "Is anything protected?", "noise from a secret source"),
        (['"unit": "one person with at most 3 records",', '"relation": "add_or_remove_one",'], "Who is protected?",
         "a person, with all records"),
        (['"epsilon": 3.99977,', '"delta": 1e-05,'], "How much?", "odds change by e^3.99977 at most"),
        (['"event": {"type": "GaussianDpEvent",', '          "noise_multiplier": 1.0812...},'], "Where does it come from?",
         "epsilon follows from this line"),
        (['"noise": {"sums": [{"stage": "tables", "records": 3,',
          '          "names": ["singles"], "scale": 10.257...}, ...'],
         "Which noise is on which sum?", "the scale, in released numbers"),
        (['"declared": {"n": 600, "max_rows": 3, ...', '             "schema": {...}},'], "What is taken as public?",
         "it is not protected"),
        (['"files": {"model.safetensors": ...},', '"digest": "..."'], "Is it this release?",
         "a hash of each file, and of all"),
    ]  # fmt: skip
    picture.text(12, 24, "privacy.json", "left code")
    picture.text(560, 24, "answers", "left")
    for number, (lines, question, answer) in enumerate(parts):
        y = 40 + 74 * number
        picture.parts.append(f'<rect class="box public" x="12" y="{y}" width="470" height="60"/>')
        for place, line in enumerate(lines):
            picture.text(24, y + 25 + 20 * place, line, "left code")
        picture.arrow((482, y + 30), (548, y + 30))
        picture.box(550, y, 318, f"{question}\n{answer}", "box", 60)
    return picture


PICTURES = {
    "way_of_a_record": draw_way,
    "terms": draw_terms,
    "plan_and_ledger": draw_plan,
    "certificate": draw_certificate,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
