"""The private split of 60,000 x 784, and a Lloyd iteration beside scikit-learn's on the same features.

    python benchmarks/split.py [--quick]

k = 10, T = 20, noise of epsilon 1. Seconds are processor time of one thread, from records to clusters and means.
scikit-learn's Lloyd iteration is a tenth of the difference of fits of 12 and 2 iterations: its start is not counted.
"""

from __future__ import annotations

import statistics

import torch
from interleaved import Line, Ratio, parser, ratios, start, table
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from lightning_dpgen.clustering.block_sums import lloyd
from lightning_dpgen.clustering.features import FourierFeatures, KeptFeatures
from lightning_dpgen.clustering.kmeans import private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.records import Records, encode_images
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_mu
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.sampling.as_store import store_of

ROWS, K, T, D, SIDE = 60_000, 10, 20, 200, 28
COLUMNS = SIDE * SIDE
EPSILON, DELTA = 1.0, 1e-5
FEW, MANY = 2, 12


def a_split(records: Records, dimensions: int | None, features: int) -> None:
    settings = SplitSettings(k=K, iterations=T, features=features, dimensions=dimensions, gamma=0.005)
    n, mu = len(records), gaussian_mu(EPSILON, DELTA)
    stages = tuple(
        Stage(spec.access((spec.count / spec.share) ** 0.5 / mu), spec.count, spec.share) for spec in settings.specs(n)
    )
    account = Account(Plan(stages, EPSILON, DELTA), stream=PrivateStream())
    private_split(records, torch.ones(COLUMNS), settings, n, account, torch.Generator().manual_seed(0))


def main() -> None:
    arguments = parser(__doc__.splitlines()[0]).parse_args()
    size = start(arguments)
    rows, rounds = (2_000, 1) if arguments.quick else (ROWS, 9)
    generator = torch.Generator().manual_seed(0)
    # The data have no clusters: scikit-learn would stop once they are found.
    shares = torch.rand(COLUMNS, generator=generator).pow(4)
    pictures = (torch.rand(rows, COLUMNS, generator=generator) < shares).to(torch.uint8)
    records = encode_images(pictures.view(-1, SIDE, SIDE).numpy(), None, ImageSchema(SIDE, SIDE, levels=1))
    features = FourierFeatures(torch.ones(COLUMNS), D, 0.005, generator)
    kept = KeptFeatures(features, store_of(records), 2**32)
    centres = features(pictures[:K].float())
    plain = torch.cat([block for _, block in kept]).mul_(kept.unit).numpy()

    def peer(iterations: int) -> None:
        KMeans(K, init=centres.numpy(), n_init=1, max_iter=iterations, tol=0.0, algorithm="lloyd").fit(plain)

    with threadpool_limits(1):
        whole = ratios(
            {
                "16 directions of 200": lambda: a_split(records, 16, 200),
                "16 directions of 400": lambda: a_split(records, 16, 400),
                "all 200": lambda: a_split(records, None, 200),
            },
            rounds=rounds,
            warmup=1,
        )
        own = ratios(
            {"own": lambda: lloyd(kept, centres), "few": lambda: peer(FEW), "many": lambda: peer(MANY)},
            rounds=size.rounds,
            warmup=size.warmup,
        )
    took = own.processor
    each = [a / ((b - c) / (MANY - FEW)) for a, b, c in zip(took["own"], took["many"], took["few"], strict=True) if b > c]
    low, median, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
    must = {"16 directions of 200": (2.0, 1.0), "all 200": (2.0, 1.0)}
    lines = [
        Line(f"split in {name}, seconds", whole.milliseconds(name) / 1e3, *must.get(name, (None, None)))
        for name in whole.processor
    ]
    lines.append(Line.of("Lloyd iteration, d = 200 / scikit-learn", Ratio(median, low, high), must=2.0, aim=1.3))
    print(table(lines))
    print(f"wall over processor time, less 1: {max(whole.disagreement(), own.disagreement()):.2f}")


if __name__ == "__main__":
    main()
