"""Table 2 of DPGM: TRANSIT and CDR as they are simulated (`data=transit`, `data=cdr`), beside the printed numbers.

    python -m experiments.dpgm.table2 transit [--records N]      342 stations, 1,200,000 riders
    python -m experiments.dpgm.table2 cdr [--records N]          1,303 towers, 4,427,486 customers

The command prints Table 2's row beside the simulated one, the spread of the sizes of items, and the correlations of
pairs of items.
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.sparse

from experiments.common.arguments import read_count
from lightning_dpgen.data.simulated.baskets import WORLDS, draw_baskets

# Baskets at a time.
_AT_ONCE = 1 << 17


def correlations(baskets: scipy.sparse.csr_array) -> np.ndarray:
    """Return (items (items - 1) / 2,) correlations, of each pair of items over all baskets."""
    n, items = baskets.shape
    both = np.zeros((items, items))
    for start in range(0, n, _AT_ONCE):
        part = baskets[start : start + _AT_ONCE].astype(np.int32)
        both += (part.T @ part).toarray()
    shares = both.diagonal() / n
    spread = np.sqrt(shares * (1.0 - shares))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (both / n - np.outer(shares, shares)) / np.outer(spread, spread)
    # An item that no basket holds, or every basket, correlates with none.
    return np.nan_to_num(found[np.triu_indices(items, 1)])


def described(name: str, baskets: scipy.sparse.csr_array) -> str:
    """Write Table 2's row beside the simulated one, and the other figures that the recipe was adjusted to."""
    printed, (n, items) = WORLDS[name], baskets.shape
    sizes = np.diff(baskets.indptr)
    shares = np.bincount(baskets.indices, minlength=items) / n
    pairs = correlations(baskets)
    lines = [
        f"{name:<10}{'records':>12}{'items':>8}{'largest':>9}{'mean':>8}",
        f"{'Table 2':<10}{printed.records:>12,}{printed.items:>8,}{printed.largest:>9}{printed.mean:>8.2f}",
        f"{'simulated':<10}{n:>12,}{items:>8,}{sizes.max():>9}{sizes.mean():>8.2f}",
        f"sizes of baskets: median {np.median(sizes):.0f}, 90th percentile {np.percentile(sizes, 90):.0f}, 99th "
        f"{np.percentile(sizes, 99):.0f}",
        f"shares of items: mean {shares.mean():.2%}, sd {shares.std():.2%}"
        + (f" (printed: {printed.mean / printed.items:.2%}, {printed.share_sd:.2%})" if printed.share_sd else "")
        + f", least {shares.min():.3%}, most {shares.max():.1%}",
        f"correlations of pairs: 99th percentile {np.percentile(pairs, 99):.3f}, largest {pairs.max():.3f}",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(WORLDS))
    parser.add_argument("--records", type=read_count, help="number of records, in place of Table 2's")
    asked = parser.parse_args()
    records = asked.records or WORLDS[asked.name].records
    print(described(asked.name, draw_baskets(asked.name, records)))


if __name__ == "__main__":
    main()
