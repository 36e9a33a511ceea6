"""Settings of each kind of run, and the certificate that a run by them would have: no record is read, no noise drawn."""

import json

from lightning_dpgen.data.schema import kind_of
from lightning_dpgen.data.tables.description import VALUES
from lightning_dpgen.models.initial import TRAINED
from lightning_dpgen.privacy.access import PURE
from lightning_dpgen.privacy.accounting.events import encode
from lightning_dpgen.privacy.drawn_noise import NOISY_MAX, REAL_GAUSSIAN, ROUNDED_GAUSSIAN
from lightning_dpgen.privacy.noise.stream import SECURE, STANDARD
from lightning_dpgen.privacy.planning.calibration import PLANNER
from lightning_dpgen.release.drawing.description import COPULA
from lightning_dpgen.specs.first_pass import FIRST_PASS, first_stage, has_first_pass, reference_plan
from lightning_dpgen.specs.run import load_settings
from lightning_dpgen.specs.settings import complete_settings
from lightning_dpgen.specs.source import source_of

TABLE = ["data=table", "data.path=t.csv", "data.schema=t.schema.yaml", "data.n=5000"]
OPEN = ["data=table", "data.path=t.csv", "data.schema=open.schema.yaml", "data.n=5000", "data.outside=clamp",
        "data.discovery_share=0.1"]  # fmt: skip
SERIES = ["data=series", "data.path=s.csv", "data.n=4000", "data.length=24", "data.low=0", "data.high=1"]
BASKETS = ["data=baskets", "data.path=b.dat", "data.max_items=2", "data.n=4000"]
PERSONS = ["data.person=who", "data.max_rows=3"]
DIGITS, ONE = ["data=digits", "data.n=1500"], ["split.k=1", "model.steps=20"]
FILES = {
    "t.schema.yaml": """label: c
columns:
  who: {type: drop}
  a: {type: category, values: [x, y, z]}
  b: {type: category, values: [x, y]}
  number: {type: number, low: 0, high: 100, decimals: 1}
  c: {type: boolean}
""",
    "open.schema.yaml": """label: c
columns:
  who: {type: drop}
  a: {type: category, values: private}
  b: {type: category, values: [x, y]}
  number: {type: number, low: private, high: private, decimals: 1}
  other: {type: integer, low: 0, high: 5000}
  c: {type: boolean}
""",
    "numbers.schema.yaml": "columns:\n" + "".join(f"  a{place}: {{type: boolean}}\n" for place in range(100)),
    "values.schema.yaml": f"columns: {{many: {{type: category, values: {[*range(1001)]}}}, b: {{type: boolean}}}}",
    "b.txt": "x\ny\nz\n",
}
KINDS = {
    "table": [*TABLE, "model=measured", "data.bins_share=0", "model.label_share=0"],
    "table with all": [*TABLE, "model=measured", "model.label_share=0.2", "privacy.fidelity_share=0.1",
                       "data.bins_share=0.1"],
    "chosen": [*TABLE, "data.bins_share=0.1", "privacy.noise=secure"],
    "persons": [*TABLE, *PERSONS, "model=measured", "model.label_share=0"],
    "crossed": [*TABLE[:3], "data.n=50000", "model=measured", "data.bins_share=0"],
    "asked for": [*TABLE, "model=measured", "data.bins_share=0", "data.workload=[[a,c],[b,number,a]]"],
    "many numbers": ["data=table", "data.path=t.csv", "data.schema=numbers.schema.yaml", "data.n=800", "model=measured",
                     "privacy.epsilon=1"],
    "many values": ["data=table", "data.path=t.csv", "data.schema=values.schema.yaml", "data.n=5000", "model=measured"],
    "found": [*OPEN, "model=measured", "privacy.epsilon=8"],
    "found of persons": [*OPEN, *PERSONS, "model=measured", "privacy.epsilon=8"],
    "number": [*TABLE[:3], "data.n_share=0.05", "model=measured"],
    "number of a network": [*TABLE[:3], "data.n_share=0.05", "data.bins_share=0", "model=vae"],
    "found, and a network": [*OPEN, "model=vae", "model.rate=0.1", "model.steps=20", "split.k=1", "split.means_share=0.3"],
    "one cluster": [*TABLE, "data.bins_share=0", "model=wgan", "model.label_share=0", *ONE, "clipping=decay"],
    "a person's gradient": [*TABLE, "data.bins_share=0", *PERSONS, "model=vae", *ONE, "clipping=quantile",
                            "clipping.per_person=true", "clipping.smooth=0.5"],
    "labels of a network": [*TABLE, "data.bins_share=0", "model=vae", "model.label_share=0.2"],
    "no means": [*TABLE, "data.bins_share=0", "model=vae", "model.bias=zero", "clipping=normalised"],
    "network": [*DIGITS, "model=vae", "privacy.fidelity_share=0.1"],
    "features": [*DIGITS, "model=vae", "split.start=mean", "split.dimensions=null"],
    "given noise": [*DIGITS, "model=vae", "model.noise=6"],
    "given noise and steps": [*DIGITS, "model=vae", "model.noise=6", "model.steps=30", "privacy.epsilon=null"],
    "groups": [*DIGITS, "model=vae", *ONE, "model.divergence=mmd", "model.divergence_release=group"],
    "embedding": [*DIGITS, "model=vae", *ONE, "model.divergence=mmd", "model.prior=sparse"],
    "moments accountant": [*DIGITS, "model=vae", *ONE, "privacy.accountant=rdp"],
    "all features": [*DIGITS, "model=rbm", "split.kernel=laplacian", "split.start=random", "split.dimensions=null"],
    "records themselves": [*DIGITS, "model=rbm", "split.kernel=identity", "clipping=fixed"],
    "pictures": [*DIGITS, "model=measured"],
    "symmetries": [*DIGITS, "model=measured", "model.symmetries=handwriting"],
    "cells": [*DIGITS, "model=measured", "model.cells=4", "model.poses=measured"],
    "classifier": [*DIGITS, "model=classifier"],
    "series": [*SERIES, "model=measured"],
    "classified series": [*SERIES, "data.classes=[a,b]", "model=classifier"],
    "baskets": [*BASKETS, "data.items=b.txt", "model=measured"],
    "baskets of a network": [*BASKETS, "data.items=[x,y,z]", "model=vae", *ONE],
    "items": [*BASKETS, "data.items=private", "data.outside=clamp", "data.discovery_share=0.1", "model=measured"],
}  # fmt: skip
# The finds of a first pass, by part.
_FOUND = {
    "a": ["u", "v"],
    "number": {"bounds": [0, 700], "pieces": [[0, 0.4], [200, 0.6]], "noise": 0.01},
    "other": {"pieces": [[0, 0.4], [1000, 0.6]], "noise": 0.01},
    "many": {"counts": [float(place) for place in range(1001)], "noise": 2.5},
    "items": ["p", "q", "r"],
}


def write_files(folder):
    """Write the public descriptions that `KINDS` name."""
    for name, text in FILES.items():
        (folder / name).write_text(text)


def planned(words):
    """Return settings, those of a first pass filled in with finds, and their plan as a run makes it."""
    spec = load_settings(words)
    source = source_of(spec.data)
    if spec.data.n_share is not None:
        spec = spec.changed(data=spec.data.changed(n=5000))
    parts = source.open_parts
    found = {name: _FOUND[name] for name in parts}
    for name, part in parts.items():
        if part.find == VALUES:
            found[name] = {key: value for key, value in found[name].items() if key != "bounds"}
    settings = complete_settings(spec, source, found or None)
    if not has_first_pass(spec, parts) or "split.means_share=0.3" in words:
        return settings, settings.plan()
    return settings, settings.plan(reference_plan(spec, first_stage(spec, parts)))


def stated(settings, plan):
    """Return those fields of a certificate, and of the description of a model, that are held against a plan."""
    counted = () if settings.clipping is None else settings.clipping.noise_shares
    sums, others, bounds = [], [], {}
    if settings.schema.kind == "table" and not settings.trains_network:
        bounds = {
            name: own.bound for name, own in settings.recipe.statistics(settings.recipe.workloads[0].stage, {}).items()
        }
    for stage in plan.stages:
        for name, multiplier in stage.access.multipliers.items():
            entry = {"stage": stage.name, "access": 0, "names": [name], "multiplier": multiplier}
            if stage.access.kind(name) == PURE:
                others.append(entry | {"mechanism": NOISY_MAX.name})
            elif stage.name == "training" and name not in counted:
                others.append(entry | {"mechanism": REAL_GAUSSIAN.name})
            else:
                of_unit = stage.name == "training" or (stage.name == FIRST_PASS and name[:6] in ("bounds", "keys o"))
                records = 1 if of_unit else plan.max_rows
                bound = {"unit": "1", "bound_in_units": bounds.get(name, 1.0)}
                sums.append(entry | {"mechanism": ROUNDED_GAUSSIAN.name, "records": records} | bound)
    certificate = {
        "target_epsilon": plan.target_epsilon,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "relation": plan.relation,
        "unit": settings.unit,
        "accountant": {} if plan.accountant == "pld" else {"chosen": plan.accountant},
        "event": encode(plan.event),
        "stages": [{"name": name, "event": encode(event)} for name, event in plan.stage_events],
        "noise": {
            "source": SECURE if settings.spec.privacy.noise == "secure" else STANDARD,
            "sums": sums,
            "others": others,
        },
        "declared": settings.dump_public(),
        "released": ["model.json", "model.safetensors", "synthetic.parquet"],
        "selection": "none",
        "versions": {"planner": str(PLANNER)},
    }
    if plan.reference is not None:
        certificate["reference"] = {"after": 1, "replaceable": plan.reference.replaceable}
    spec, schema = settings.spec.model, settings.schema
    kind = TRAINED[spec.name].kind if settings.trains_network else kind_of(schema).measured_networks[0]
    kind = COPULA if schema.kind == "table" and not settings.trains_network and spec.components is None else kind
    model = {"model": kind, "schema": schema.as_json(), "k": settings.split.k}
    model |= {"labelled": True} if spec.label_share else {}
    return json.loads(json.dumps(certificate)), json.loads(json.dumps(model))
