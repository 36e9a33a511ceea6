"""Rules of the functions of k components at once."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lightning_dpgen.gradients.component_factors import OneComponent
from lightning_dpgen.gradients.factors import Dense, GradientFactors, outer
from lightning_dpgen.gradients.isolation.isolation import HiddenOffsets
from lightning_dpgen.gradients.stacked_ops import segmented_conv2d, segmented_conv_transpose2d, segmented_linear
from lightning_dpgen.gradients.tape import Rule, Tape, TracedParameter, factor_dtype, value_of
from lightning_dpgen.gradients.tape_rules.convolutions import conv_factors, conv_transpose_factors


def _segmented(function: Callable, weight_factors: Callable[..., GradientFactors]) -> Rule:
    def rule(tape: Tape, x, weight, bias, offsets, **options):
        rows, isolation = tape.rows(x), tape.isolation
        if isinstance(offsets, HiddenOffsets):
            ends = isolation.offsets
        elif rows is not None:
            ends = (0, isolation.size)
        else:
            return NotImplemented
        if rows is not None and (rows.shape[1] != 1 or len(ends) != len(weight) + 1):
            raise ValueError(
                f"a stack of {len(weight)} components takes (1, ...) for one record of a lot, with the lot's offsets; "
                f"found {tuple(x.shape)} and {len(ends) - 1} components"
            )
        with isolation.outside():
            inputs = isolation.rows_or_copies(x).squeeze(1)

        def note(gradient):
            if isinstance(weight, TracedParameter):
                dtype = factor_dtype(gradient, weight)
                factors = weight_factors(inputs.detach().to(dtype), gradient.to(dtype), weight.source.shape[1:], **options)
                yield weight.source, OneComponent(factors, ends)
            if isinstance(bias, TracedParameter):
                total = (
                    gradient.to(factor_dtype(gradient, bias))
                    if gradient.dim() == 2
                    else gradient.flatten(2).sum(dim=2, dtype=bias.source.dtype)
                )
                yield bias.source, OneComponent(Dense(total), ends)

        return tape.note(
            lambda: function(inputs, value_of(weight), value_of(bias), ends, **options), note, lambda y: y.unsqueeze(1)
        )

    return rule


def _linear(x: Tensor, gradient: Tensor, shape) -> GradientFactors:
    return outer([(gradient[:, None], x[:, None])], shape, shape)


def _conv(x, gradient, shape, stride, padding) -> GradientFactors:
    return conv_factors(x, gradient, len(x), tuple(shape), stride, padding, 1, 1)


def _conv_transpose(x, gradient, shape, stride, padding, output_padding) -> GradientFactors:
    return conv_transpose_factors(x, gradient, len(x), tuple(shape), stride, padding, 1, 1)


RULES: dict[Callable, Rule] = {
    segmented_linear: _segmented(segmented_linear, _linear),
    segmented_conv2d: _segmented(segmented_conv2d, _conv),
    segmented_conv_transpose2d: _segmented(segmented_conv_transpose2d, _conv_transpose),
}
