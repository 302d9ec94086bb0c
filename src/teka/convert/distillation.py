"""Attention by kernels learns the weights of the softmax that it has replaced: Hedgehog's loss."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from teka.checks import POSITIVE_NUMBER, check_module, is_positive
from teka.errors import EXTERNAL_ERRORS, error_message, wrong_argument, wrong_type, wrong_value
from teka.functional import attention
from teka.nn import AttentionHeads

BATCHES = "a list of a model's inputs"
LEAST_WEIGHT = 1e-6  # of a key, where its logarithm is taken


def distill_attention(
    model: nn.Module, batches: Iterable[Any], *, learning_rate: float = 0.01
) -> list[float]:
    """Train the kernels of a model to imitate softmax attention, and return the loss of every batch.

        loss = − Σ_j p_j log w_j,   p = softmax(scale · qᵀk),   w: the weights of the kernels

    The loss is averaged over queries, heads and layers. Only the parameters of `AttentionHeads` are
    trained, with Adam. Every layer receives the softmax outputs of the layers before it, so that the
    model is its own teacher. Masked keys are ignored. All L² weights are computed.

    Source: Zhang et al. 2024 (Hedgehog), equation 4.

    >>> import torch, teka
    >>> encoder = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(encoder, 2)
    >>> _ = teka.convert.replace_attention(model, kernel="hedgehog", relative=None)
    >>> batches = [torch.randn(2, 12, 16) for _ in range(3)]
    >>> len(teka.convert.distill_attention(model, batches))
    3

    Args:
        model: Model after `replace_attention` with a learned kernel, such as "hedgehog".
        batches: Inputs of the model: tensors, sequences of arguments, or mappings of argument names.
        learning_rate: Learning rate of Adam.

    Raises:
        ValueError: `AttentionHeads` of the model have no parameters, or the learning rate is not
            positive.
    """
    check_module("model", model)
    if isinstance(batches, (str, bytes, Mapping)):
        raise wrong_type("batches", batches, BATCHES)
    try:
        each = iter(batches)
    except TypeError as error:
        raise wrong_type("batches", batches, BATCHES) from error
    layers = [module for module in model.modules() if isinstance(module, AttentionHeads)]
    learned = [parameter for layer in layers for parameter in layer.parameters()]
    if not learned:
        raise wrong_argument(
            "model",
            f"{len(layers)} AttentionHeads without parameters",
            "kernels that learn: 'hedgehog'",
        )
    if not is_positive(learning_rate):
        raise wrong_value("learning_rate", learning_rate, POSITIVE_NUMBER)
    optimizer = torch.optim.Adam(learned, lr=learning_rate)
    losses: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(partial(_compare, losses=losses), with_kwargs=True)
        for layer in layers
    ]
    modes, history = [(module, module.training) for module in model.modules()], []
    model.eval()
    try:
        for batch in each:
            losses.clear()
            with torch.enable_grad():
                try:
                    _call(model, batch)
                except EXTERNAL_ERRORS as error:
                    raise ValueError(
                        f"the model raised {type(error).__name__} on one of the batches: {error_message(error)}"
                    ) from error
                loss = torch.stack(losses).mean()
                optimizer.zero_grad()
                loss.backward(inputs=learned)
            optimizer.step()
            history.append(float(loss.detach()))
    finally:
        for hook in hooks:
            hook.remove()
        optimizer.zero_grad()
        for module, mode in modes:
            module.training = mode
    return history


def _call(model: nn.Module, batch: object) -> None:
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, Sequence):
        model(*batch)
    else:
        model(batch)


def _compare(
    layer: AttentionHeads,
    given: tuple[Any, ...],
    named: dict[str, Any],
    _: Tensor,
    *,
    losses: list[Tensor],
) -> Float[Tensor, "batch heads queries dim_value"]:
    """Keep the loss of a layer, and give on what softmax makes of its values."""
    query, key, value = (one.detach() for one in given[:3])
    others = given[3:]
    key_mask = others[1] if len(others) > 1 else named.get("key_mask")
    each = torch.eye(key.shape[2], dtype=query.dtype, device=query.device).expand(
        *key.shape[:3], -1
    )
    causal = named.get("is_causal", False) and query.shape[2] > 1
    options = {"key_mask": key_mask, "is_causal": causal, "scale": named.get("scale")}
    truth = attention(query, key, each, kernel="softmax", **options)
    weights = layer.forward(query, key, each, *others, **named)
    losses.append(-(truth * weights.clamp_min(LEAST_WEIGHT).log()).sum(dim=-1).mean())
    return truth @ value
