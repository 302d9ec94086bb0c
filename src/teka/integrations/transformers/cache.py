"""Constant-size cache for text generation with transformers."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from teka.errors import wrong_argument
from teka.functional import DecodingState

Heads = Float[Tensor, "batch heads tokens dim"]


class StateLayer(CacheLayerMixin):
    """Decoding state of one attention layer in a `StateCache`."""

    is_sliding = False

    def __init__(self, **_: object) -> None:  # transformers passes the config to every layer
        super().__init__()
        self.state: DecodingState | None = None
        self.num_tokens = 0

    def lazy_initialization(self, key_states: Heads, value_states: Heads) -> None:
        """Mark this layer of the cache as initialized, as transformers expects.

        Nothing is allocated, because the first call of `attention_forward` creates the state.
        """
        self.is_initialized = True

    def update(
        self, key_states: Heads, value_states: Heads, *_: object, **__: object
    ) -> tuple[Heads, Heads]:
        """Count the new tokens, and return their keys and values for `attention_forward`.

        This method does not change the state. It attaches this object to the returned keys, so that
        `attention_forward` can update the state.

        Raises:
            ValueError: The attention of the model did not update the state in an earlier call.
        """
        if self.num_tokens and self.state is None:
            raise wrong_argument(
                "the model's attn_implementation",
                "another one",
                "'teka' or a variant such as 'teka:focused'",
                "No other attention can use a StateCache.",
            )
        self.lazy_initialization(key_states, value_states)
        self.num_tokens += key_states.shape[2]
        key_states = key_states.view_as(key_states)
        key_states.state_layer = self  # pyright: ignore[reportAttributeAccessIssue]
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys in the mask and the position of the first key, which is 0."""
        return self.num_tokens + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of tokens in the cache."""
        return self.num_tokens

    def get_max_length(self) -> int:
        """Return −1, which means that the cache takes any number of tokens."""
        return -1

    get_max_cache_shape = get_max_length  # its name in older versions of transformers

    def reset(self) -> None:
        """Delete the state, so that the next token is the first one."""
        self.state = None
        self.num_tokens = 0

    def reorder_cache(self, beam_idx: Int[Tensor, "beams"]) -> None:
        """Keep only the states of the beams with which beam search continues.

        Args:
            beam_idx: Index of the old beam that each new beam continues.
        """
        self.state = _select_samples(self.state, beam_idx)


class StateCache(Cache):
    """Constant-size cache for text generation with teka's attention.

    The cache stores sums over all earlier keys and values instead of the keys and values. The cost
    of a new token therefore does not grow with the number of earlier tokens. Kernels that cannot be
    computed from sums, for example softmax, raise a ValueError.

    >>> import torch, transformers
    >>> from teka.integrations.transformers import StateCache, register
    >>> register()
    >>> sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 50}
    >>> config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    >>> kind = transformers.AutoModelForCausalLM
    >>> model = kind.from_config(config, attn_implementation="teka")
    >>> cache, length = StateCache(), {"min_new_tokens": 5, "max_new_tokens": 5}
    >>> model.generate(torch.tensor([[1, 2, 3]]), cache=cache, pad_token_id=0, **length).shape
    torch.Size([1, 8])
    >>> cache.get_seq_length(), cache.layers[0].state.sums.values.shape
    (7, torch.Size([1, 2, 8, 8]))
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=StateLayer)


def _select_samples(state: Any, samples: Int[Tensor, "rows"]) -> Any:
    """Select samples along the first axis of every tensor in a state of nested dataclasses."""
    if isinstance(state, Tensor):
        return state.index_select(0, samples.to(state.device))
    if isinstance(state, tuple):
        return tuple(_select_samples(item, samples) for item in state)
    if is_dataclass(state):
        selected = {
            field.name: _select_samples(getattr(state, field.name), samples)
            for field in fields(state)
        }
        return replace(state, **selected)  # pyright: ignore[reportArgumentType]
    return state
