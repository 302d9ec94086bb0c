"""Distillation of softmax attention into learned attention kernels (Hedgehog)."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.audit.model_call import evaluation_mode
from teka.checks import POSITIVE_NUMBER, check_module, is_positive
from teka.errors import first_line_of_error, wrong_argument, wrong_type, wrong_value
from teka.functional import attention
from teka.nn import AttentionHeads

MIN_WEIGHT = 1e-6  # smallest attention weight in the logarithm of the loss


def distill_attention(
    model: nn.Module, batches: Iterable[Any], *, learning_rate: float = 0.01
) -> list[float]:
    """Train the attention kernels of a model to imitate softmax attention.

    In each layer, the attention weights w of the kernel should equal the softmax weights p for the
    same queries and keys. The loss is their cross-entropy, averaged over queries, heads and layers:

        loss = − Σ_j p_j log w_j,   p = softmax(scale · qᵀk)

    Adam trains only the parameters of `teka.nn.AttentionHeads`. Each layer passes the output of the
    softmax to the next layer, so that the model is its own teacher. If queries and keys are already
    trained, a tenth of an epoch is often enough. Then train the whole model as usual.

    The cost is O(L²) for L tokens, because the loss needs the weights of all pairs. Key masks are
    supported.

    >>> import torch, teka
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 1)
    >>> _ = teka.convert.replace_attention(model, kernel="hedgehog", relative=None)
    >>> batches = [torch.randn(2, 12, 16) for _ in range(3)]
    >>> len(teka.convert.distill_attention(model, batches))
    3

    Args:
        model: Model after `teka.convert.replace_attention`, with a kernel that has parameters, such
            as "hedgehog".
        batches: Inputs of the model. Each input is a tensor, a sequence of positional arguments, or
            a mapping of keyword arguments.
        learning_rate: Step size of Adam.

    Returns:
        The loss of every batch.

    Raises:
        ValueError: The kernels of the model have no parameters, the model does not take a batch, or
            the learning rate is not positive.

    Source: Zhang et al. 2024 (Hedgehog), equation 4 and the recipe for pretrained models.
    """
    check_module("model", model)
    try:
        inputs = iter(batches)
    except TypeError as error:
        raise wrong_type("batches", batches, "a list of a model's inputs") from error
    layers = [module for module in model.modules() if isinstance(module, AttentionHeads)]
    parameters = [
        parameter for layer in layers for parameter in layer.parameters() if parameter.requires_grad
    ]
    if not parameters:
        raise wrong_argument(
            "model",
            f"{len(layers)} AttentionHeads without parameters that require gradients",
            "a model with trainable attention kernels",
            "Replace its attention with kernel='hedgehog', for example.",
        )
    if not is_positive(learning_rate):
        raise wrong_value("learning_rate", learning_rate, POSITIVE_NUMBER)
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    layer_losses: list[Tensor] = []
    imitate = partial(_replace_output_by_softmax, losses=layer_losses)
    hooks = [layer.register_forward_hook(imitate, with_kwargs=True) for layer in layers]
    batch_losses = []
    try:
        with evaluation_mode(model), torch.enable_grad():
            for batch in inputs:
                layer_losses.clear()
                try:
                    if isinstance(batch, Mapping):
                        model(**batch)
                    else:
                        model(*(batch if isinstance(batch, Sequence) else [batch]))
                except Exception as error:  # its kind depends on the model
                    raise wrong_argument(
                        "batches",
                        f"an input for which it fails ({first_line_of_error(error)})",
                        "inputs that the model accepts",
                    ) from error
                loss = torch.stack(layer_losses).mean()
                optimizer.zero_grad()
                loss.backward(inputs=parameters)
                optimizer.step()
                batch_losses.append(float(loss.detach()))
    finally:
        for hook in hooks:
            hook.remove()
        optimizer.zero_grad()
    return batch_losses


def _replace_output_by_softmax(
    layer: AttentionHeads,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    _: Tensor,
    *,
    losses: list[Tensor],
) -> Float[Tensor, "batch heads queries dim_value"]:
    """Forward hook that replaces a layer's output by that of softmax attention.

    Because of the hook, the next layer receives the same input as with softmax attention. The
    distillation loss of the layer is appended to `losses`: the cross-entropy between its attention
    weights and the softmax weights.
    """
    query, key, value = (tensor.detach() for tensor in arguments[:3])
    others = arguments[3:]
    key_mask = others[1] if len(others) > 1 else keywords.get("key_mask")
    # With one-hot vectors as values, the outputs are the attention weights.
    one_hot = torch.eye(key.shape[2], dtype=query.dtype, device=query.device)
    one_hot = one_hot.expand(*key.shape[:3], -1)
    softmax_weights = attention(
        query,
        key,
        one_hot,
        kernel="softmax",
        key_mask=key_mask,
        is_causal=keywords.get("is_causal", False) and query.shape[2] > 1,
        scale=keywords.get("scale"),
    )
    log_weights = (
        layer.forward(query, key, one_hot, *others, **keywords).clamp_min(MIN_WEIGHT).log()
    )
    losses.append(-(softmax_weights * log_weights).sum(dim=-1).mean())
    return softmax_weights @ value
