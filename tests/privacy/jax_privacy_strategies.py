"""Write jax_privacy_strategies.json: strategies of jax_privacy 2.0.0, with their errors and sensitivities by its own code.

It runs in an environment of its own, since jax is no dependency here: ``pip install jax-privacy==2.0.0``, and then
``python tests/privacy/jax_privacy_strategies.py``.
"""

import json
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)

from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz  # noqa: E402

BANDED = [(100, 2), (100, 8), (512, 16), (1000, 32)]
# Steps, steps of a pass.
BUFFERED = [(100, 100), (400, 100), (1000, 250)]


def _banded(steps, bands):
    coefficients = toeplitz.optimize_banded_toeplitz(steps, bands)
    coefficients = coefficients / coefficients[0]
    error = toeplitz.loss(coefficients, steps) ** 0.5
    squared = toeplitz.minsep_sensitivity_squared(coefficients, bands, None, steps)
    return {
        "steps": steps,
        "bands": bands,
        "coefficients": [1.0, *map(float, coefficients[1:])],
        "error_of_one_pass": float(error),
        "sensitivity_at_bands": float(squared**0.5),
    }


def _buffered(steps, period):
    passes = -(-steps // period)
    found = buffered_toeplitz.optimize(
        n=steps, min_sep=period, max_participations=passes, error="mean", min_buffers=3, max_buffers=3
    )
    column = found.toeplitz_coefs(steps)
    squared = toeplitz.minsep_sensitivity_squared(column, period, passes, steps, skip_checks=True)
    mean = toeplitz.per_query_error(strategy_coef=column, n=steps, skip_checks=True).mean()
    return {
        "steps": steps,
        "period": period,
        "decays": [float(v) for v in found.buf_decay],
        "scales": [float(v) for v in found.output_scale],
        "sensitivity": float(squared**0.5),
        "error": float((squared * mean) ** 0.5),
    }


if __name__ == "__main__":
    values = {"banded": [_banded(*case) for case in BANDED], "buffered": [_buffered(*case) for case in BUFFERED]}
    Path(__file__).with_suffix(".json").write_text(json.dumps(values, indent=1) + "\n")
