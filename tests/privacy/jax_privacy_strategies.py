"""Write jax_privacy_strategies.json: strategies of jax_privacy 2.0.0, with their errors by its own code.

It runs in an environment of its own, since jax is no dependency here: ``pip install jax-privacy==2.0.0``, and then
``python tests/privacy/jax_privacy_strategies.py``.
"""

import json
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

from jax_privacy.matrix_factorization import toeplitz  # noqa: E402

BANDED = [(100, 2), (100, 8), (512, 16), (1000, 32)]


def _banded(steps, bands):
    coefficients = toeplitz.optimize_banded_toeplitz(steps, bands)
    coefficients = coefficients / coefficients[0]
    error = toeplitz.loss(coefficients, steps) ** 0.5
    return {
        "steps": steps,
        "bands": bands,
        "coefficients": [1.0, *map(float, coefficients[1:])],
        "error_of_one_pass": float(error),
    }


if __name__ == "__main__":
    values = {"banded": [_banded(*case) for case in BANDED]}
    Path(__file__).with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
