"""Names of torch, private to it, that this package rests on: an import fails where the installed torch lacks one."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint

_NAMES = (
    *(f"torch._C._functorch.{word}" for word in (
        "_add_batch_dim", "_grad_decrement_nesting", "_grad_increment_nesting", "_unwrap_batched", "_unwrap_for_grad",
        "_vmap_decrement_nesting", "_vmap_increment_nesting", "_wrap_for_grad", "get_unwrapped", "is_batchedtensor",
        "is_functorch_wrapped_tensor", "maybe_current_level", "maybe_get_bdim", "pop_dynamic_layer_stack",
        "push_dynamic_layer_stack",
    )),
    *(f"torch._C._autograd._saved_tensors_hooks_{word}" for word in ("disable", "enable", "get_disabled_error_message")),
    *(f"torch._C.{word}" for word in (
        "DisableTorchFunction", "DisableTorchFunctionSubclass", "ScriptFunction", "ScriptMethod", "TensorBase",
        "_AutoDispatchBelowAutograd", "_DisableFuncTorch", "_VariableFunctions._from_blob", "_fft",
        "_get_deterministic_algorithms", "_get_fp32_precision_getter", "_is_any_autocast_enabled",
        "_len_torch_dispatch_stack", "_len_torch_function_stack", "_linalg", "_nn.pad_sequence",
        "_set_fp32_precision_setter", "_special", "_storage_Use_Count", "_swap_tensor_impl",
    )),
    *(f"torch.{word}" for word in (
        "Tensor._base", "Tensor._make_subclass", "_assert", "ops.aten._local_scalar_dense.default",
        "ops.aten._to_copy.default", "Tensor._version", "_make_dual", "_pack_padded_sequence",
        "_sample_dirichlet", "_standard_gamma", "_tensor_str._str", "cpu._is_amx_tile_supported",
        "distributions.Distribution._validate_args", "nn.modules.batchnorm._BatchNorm",
        "nn.modules.module._global_backward_hooks", "nn.modules.module._global_backward_pre_hooks",
        "utils.checkpoint.CheckpointFunction", "utils._pytree.tree_leaves", "utils._pytree.tree_map",
        "utils.checkpoint._checkpoint_without_reentrant_generator",
    )),
)  # fmt: skip


def find(name: str) -> Any:
    """Return what a dotted name in torch stands for, or None where this version has nothing there.

    Example:
        >>> find("torch.Tensor.T.__get__") == torch.Tensor.T.__get__
        True
        >>> find("torch.nothing")
    """
    value: Any = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    return value


def check(names: tuple[str, ...] = _NAMES) -> None:
    """Check that the installed torch has all of the names.

    Raises:
        ImportError: naming those that it lacks.
    """
    lacking = [name for name in names if find(name) is None]
    if lacking:
        raise ImportError(
            f"torch {torch.__version__} lacks {', '.join(lacking)}, by which lightning_dpgen hides the records of a lot: "
            "install a version that `pip show lightning_dpgen` asks for"
        )


check()
