"""A cache for `generate` that holds what tokens have left, and no keys: its size does not grow."""

from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from teka.errors import wrong_argument
from teka.functional import DecodingState

T = TypeVar("T")
Heads = Float[Tensor, "batch heads tokens dim"]


class StateLayer(CacheLayerMixin):
    """The state of one layer's attention; it hands on the new keys alone, with itself for `attend` to find."""

    is_sliding = False

    def __init__(self, **_: object) -> None:  # of a config, which transformers hands to every layer
        super().__init__()
        self.state: DecodingState | None = None
        self.num_tokens = 0

    def lazy_initialization(self, key_states: Heads, value_states: Heads) -> None:
        """Nothing is kept before the first state."""
        self.is_initialized = True

    def update(
        self, key_states: Heads, value_states: Heads, *_: object, **__: object
    ) -> tuple[Heads, Heads]:
        """Count new tokens, and hand their keys and values on; a ValueError if those before have left no state."""
        if self.num_tokens and self.state is None:
            expected = "'teka' or a variant with a StateCache"
            raise wrong_argument("the model's attn_implementation", "another's", expected)
        self.lazy_initialization(key_states, value_states)
        self.num_tokens += key_states.shape[2]
        key_states = key_states.view_as(key_states)
        key_states.state_layer = self  # pyright: ignore[reportAttributeAccessIssue]
        return key_states, value_states

    def get_mask_sizes(self, query_length: int | Int[Tensor, "queries"]) -> tuple[int, int]:
        """Of how many keys a mask is, and where it begins; until 5.x transformers gives the queries' places."""
        return self.num_tokens + (
            query_length if isinstance(query_length, int) else len(query_length)
        ), 0

    def get_seq_length(self) -> int:
        """Tokens so far."""
        return self.num_tokens

    def get_max_length(self) -> int:
        """No most: −1."""
        return -1

    get_max_cache_shape = get_max_length  # as older transformers call it

    def reset(self) -> None:
        """Begin anew."""
        self.state, self.num_tokens = None, 0

    def reorder_cache(self, beam_idx: Int[Tensor, "beams"]) -> None:
        """Go on from these samples, as a search with beams does."""
        self.state = _of_samples(self.state, beam_idx)


class StateCache(Cache):
    """A cache with a state of fixed size per layer, for causal models with `attn_implementation="teka"`.

    The cost of a new token does not depend on the number of tokens before it, unlike that of a cache of keys. Kernels
    without such a state, for example softmax, raise a ValueError. Older versions of transformers call the argument
    `past_key_values` instead of `cache`.

    >>> import torch, transformers
    >>> from teka.integrations.transformers import StateCache, register
    >>> register()
    >>> config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=0)
    >>> model, cache = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="teka"), StateCache()
    >>> words, length = torch.tensor([[1, 2, 3]]), {"min_new_tokens": 5, "max_new_tokens": 5}
    >>> model.generate(words, cache=cache, pad_token_id=0, **length).shape
    torch.Size([1, 8])
    >>> cache.get_seq_length(), cache.layers[0].state.sums.values.shape
    (7, torch.Size([1, 2, 8, 8]))
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=StateLayer)


def _of_samples(state: T, samples: Int[Tensor, "rows"]) -> T:
    """A state of these samples of the batch: the first axis of every tensor in it."""
    if isinstance(state, Tensor):
        return state.index_select(0, samples.to(state.device))
    if isinstance(state, tuple):
        return tuple(_of_samples(one, samples) for one in state)  # pyright: ignore[reportReturnType]
    if is_dataclass(state) and not isinstance(state, type):
        return replace(
            state,
            **{one.name: _of_samples(getattr(state, one.name), samples) for one in fields(state)},
        )
    return state
