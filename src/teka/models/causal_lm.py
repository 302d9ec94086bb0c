"""A causal language model that generates with a state of constant size."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from teka.checks import INTEGER_DTYPES, MAX_NUM_BLOCKS, check_number, check_sizes, check_tensor
from teka.grid import Grid
from teka.nn import TransformerBlock
from teka.nn.attention import States

EMBEDDING_STD = 0.02  # As in GPT-2, whose output projection is the embedding too.
BlockStates = tuple[States, ...]


class CausalLM(nn.Module):
    """Token embedding, causal pre-norm transformer blocks, a norm, and logits of the next token.

    The output projection shares its weight with the embedding. Training reads whole sequences at
    linear cost. Generation reads one token at a time: a token costs the same however many tokens
    precede it, and the state does not grow.

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
        options: Keywords of `teka.nn.TransformerBlock`, such as `kernel` and `relative`. The kernels
            must support decoding.
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
        self, tokens: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length num_tokens"]:
        """Return the logits of the token that follows each token."""
        check_tensor("tokens", tokens, "batch", "length", dtypes=INTEGER_DTYPES)
        states = self.embedding(tokens)
        grid = Grid(tokens.shape[1])
        for block in self.blocks:
            states = block(states, grid)
        return linear(self.norm(states), self.embedding.weight)

    def step(
        self, tokens: Int[Tensor, "batch"], state: BlockStates | None = None
    ) -> tuple[Float[Tensor, "batch num_tokens"], BlockStates]:
        """Return the logits after one more token of each sequence, and the state for the next step.

        Args:
            tokens: The next token of each sequence.
            state: State that the previous step returned. None before the first token.
        """
        check_tensor("tokens", tokens, "batch", dtypes=INTEGER_DTYPES)
        hidden = self.embedding(tokens)
        new_state = []
        for index, block in enumerate(self.blocks):
            assert isinstance(block, TransformerBlock)
            block_state = None if state is None else state[index]
            hidden, block_state = _step_block(block, hidden, block_state)
            new_state.append(block_state)
        return linear(self.norm(hidden), self.embedding.weight), tuple(new_state)

    @torch.no_grad()
    def generate(
        self,
        prompt: Int[Tensor, "batch length"],
        num_tokens: int,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch new_length"]:
        """Return the prompt followed by new tokens.

        Args:
            prompt: Tokens to continue, at least one for each sequence.
            num_tokens: Number of new tokens.
            temperature: Divisor of the logits before sampling. With 0, take the most likely token.
            generator: Source of random numbers. By default torch's global generator.
        """
        check_tensor("prompt", prompt, "batch", "length", dtypes=INTEGER_DTYPES)
        check_sizes({"num_tokens": num_tokens})
        check_number("temperature", temperature, "a number of at least 0", low=0)
        state = None
        for token in prompt[:, :-1].unbind(1):
            _, state = self.step(token, state)
        sequence = [prompt]
        token = prompt[:, -1]
        for _ in range(num_tokens):
            logits, state = self.step(token, state)
            if temperature == 0:
                token = logits.argmax(1)
            else:
                probabilities = (logits / temperature).softmax(1)
                token = torch.multinomial(probabilities, 1, generator=generator).squeeze(1)
            sequence.append(token[:, None])
        return torch.cat(sequence, dim=1)


def _step_block(
    block: TransformerBlock, token: Tensor, state: States | None
) -> tuple[Tensor, States]:
    attended, state = block.attention.step(block.attention_norm(token), state)
    token = token + attended
    return token + block.mlp(block.mlp_norm(token)), state
