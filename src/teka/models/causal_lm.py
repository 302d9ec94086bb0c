"""Causal language model that generates text with linear attention."""

from typing import Any, cast

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn.functional import linear

from teka.checks import INTEGER_DTYPES, MAX_NUM_BLOCKS, check_number, check_sizes, check_tensor
from teka.grid import Grid
from teka.nn import TransformerBlock
from teka.nn.attention import States, check_decoding_states

# Initial standard deviation as in GPT-2, whose output projection shares the embedding weight too.
EMBEDDING_STD = 0.02
BlockStates = tuple[States, ...]


class CausalLM(nn.Module):
    """Causal language model: a token embedding, transformer blocks and an output projection.

    The output projection shares its weight with the embedding. With the default kernels, the cost
    of training and of reading a prompt is linear in the number of tokens. During generation, a
    state of constant size replaces the key-value cache, so that every token has the same cost.

    >>> import torch, teka
    >>> model = teka.models.CausalLM(100, dim=16, depth=2, heads=2).eval()
    >>> prompt = torch.tensor([[5, 17, 42]])
    >>> model(prompt).shape
    torch.Size([1, 3, 100])
    >>> model.generate(prompt, 4, temperature=0.0).shape
    torch.Size([1, 7])

    Args:
        num_tokens: Size of the vocabulary. Tokens are integers from 0 to `num_tokens` - 1.
        dim: Size of an embedding.
        depth: Number of blocks.
        heads: Number of heads.
        options: Keywords of `teka.nn.TransformerBlock`, such as `kernel` and `relative`. To
            generate, the kernels must support decoding.

    Raises:
        ValueError: A size is below 1, or options contradict each other.
    """

    def __init__(
        self, num_tokens: int, *, dim: int, depth: int, heads: int, **options: Any
    ) -> None:
        super().__init__()
        check_sizes({"num_tokens": num_tokens})
        check_sizes({"depth": depth}, most=MAX_NUM_BLOCKS)
        self.blocks = nn.ModuleList(
            TransformerBlock(dim, heads, causal=True, num_axes=1, **options) for _ in range(depth)
        )
        self.embedding = nn.Embedding(num_tokens, dim)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
        self.norm = nn.LayerNorm(dim)

    def forward(
        self, tokens: Integer[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length num_tokens"]:
        """Return the logits of the token that follows each token."""
        check_tensor("tokens", tokens, "batch", "length", dtypes=INTEGER_DTYPES)
        hidden = self.embedding(tokens.long())
        grid = Grid(tokens.shape[1])
        for block in self.blocks:
            hidden = block(hidden, grid)
        return self._logits(hidden)

    def step(
        self, tokens: Integer[Tensor, "batch *length"], state: BlockStates | None = None
    ) -> tuple[Float[Tensor, "batch *length num_tokens"], BlockStates]:
        """Read the next tokens of each sequence, and return the logits of the tokens that follow.

        The state summarizes all earlier tokens. One call can read a whole prompt.

        Args:
            tokens: The next tokens, shape (B,), or (B, L) for L tokens of each sequence.
            state: State that the previous call returned, or None before the first token.

        Returns:
            The logits of the token that follows each token, and the new state.
        """
        is_sequence = isinstance(tokens, Tensor) and tokens.ndim == 2
        sizes = ("batch", "length") if is_sequence else ("batch",)
        check_tensor("tokens", tokens, *sizes, dtypes=INTEGER_DTYPES)
        check_decoding_states(state, len(self.blocks))
        hidden = self.embedding(tokens.long())
        states = [None] * len(self.blocks) if state is None else state
        new_states = []
        for block, block_state in zip(self.blocks, states, strict=True):
            hidden, new_state = cast(TransformerBlock, block).step(hidden, block_state)
            new_states.append(new_state)
        return self._logits(hidden), tuple(new_states)

    def _logits(self, hidden: Tensor) -> Tensor:
        return linear(self.norm(hidden), self.embedding.weight)

    @torch.no_grad()
    def generate(
        self,
        prompt: Integer[Tensor, "batch length"],
        num_tokens: int,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Integer[Tensor, "batch new_length"]:
        """Return the prompt followed by new tokens.

        Args:
            prompt: Tokens to continue, at least one for each sequence.
            num_tokens: Number of new tokens.
            temperature: Divisor of the logits before sampling. With 0, take the most likely token.
            generator: Source of random numbers. By default, the global generator of PyTorch.
        """
        check_tensor("prompt", prompt, "batch", "length", dtypes=INTEGER_DTYPES)
        check_sizes({"num_tokens": num_tokens})
        check_number("temperature", temperature, "a number of at least 0", low=0)
        sequence = [prompt]
        state = None
        for _ in range(num_tokens):
            logits, state = self.step(sequence[-1], state)
            if temperature == 0:
                token = logits[:, -1].argmax(1, keepdim=True)
            else:
                last_logits = logits[:, -1]
                # The largest quotient is 0, so that no quotient overflows, for example in float16.
                largest = last_logits.amax(dim=1, keepdim=True)
                probabilities = ((last_logits - largest) / temperature).softmax(1)
                token = torch.multinomial(probabilities, 1, generator=generator)
            sequence.append(token)
        return torch.cat(sequence, dim=1)
