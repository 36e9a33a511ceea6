"""Releases of any schema: a network that has learned nothing, under an account that was paid."""

import html.parser

import torch

from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import gaussian, rounded_gaussian
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.planning.calibration import make_plan
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.release.bundle import write_release
from lightning_dpgen.release.synthetic import SyntheticContent
from lightning_dpgen.verification.verify import verify

VOID = {"meta", "img", "br", "rect", "line", "polyline"}


def account(epsilon=2.0, seed=None, found=()):
    """Make a paid account, with a first pass of these finds; not private for an infinite epsilon, or with a seed."""
    training = StageSpec("training", {"gradient": 1.0}, 1, max_noise=1e3, sampler=Poisson(0.1))
    first = [StageSpec("first pass", dict.fromkeys(found, 0.1 / len(found)), 1, max_noise=1e3, share=0.1)] if found else []
    plan = make_plan([*first, training], epsilon=epsilon, delta=1e-5)
    paid = Account(plan, stream=PrivateStream(seed=seed))
    if found:
        with paid.open("first pass") as access:
            for name in found:
                rounded_gaussian(access, name, torch.zeros(1, dtype=torch.int64), sensitivity=1.0)
    with paid.open("training", draw=paid.sample("training", 9)[1]) as access:
        gaussian(access, "gradient", torch.zeros(1), sensitivity=1.0)
    paid.verify_complete()
    return paid


def released(folder, schema, *, rows=40, k=1, unit="one record of the data set", paid=None, figure=None, **declared):
    """Writes a release of made-up records and gives its certificate."""
    network = StackedVAE(schema, k, hidden=4, latent=2, generator=torch.Generator().manual_seed(0)).eval()
    about = {"data": "table", "n": 90, "schema": schema.as_json(), "model": "a model", "rows": rows} | declared
    content = SyntheticContent(Mixture(network, torch.ones(k)), rows, 0, figure=figure)
    paid = account(found=declared.get("discovered", ())) if paid is None else paid
    return write_release(folder, folder.with_name(f".{folder.name}"), content, paid, unit=unit, declared=about)


def other_problems(folder):
    """Return what is wrong with a release but that it declares a part of the settings of a run, as these do."""
    return [problem for problem in verify(folder).problems if "its settings are not whole" not in problem]


class Page(html.parser.HTMLParser):
    """A page as a browser reads it: tags, texts and labels; tags must match."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open, self.links = [], [], [], []
        self.feed(text)
        assert self.open == []
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        self.texts += [value for name, value in attrs if name in ("aria-label", "alt")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.texts += [value for name, value in attrs if name in ("aria-label", "alt")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)
