"""Train a language model on letters, and generate text with a state of constant size.

    python examples/language.py

The blocks use causal squared ReLU × rotary attention. The cost of training is linear in the length
of a passage, and generation takes constant time per letter. The text is Python's own
`pydoc_data.topics`.
"""

import math
from pydoc_data.topics import topics

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from teka import Grid
from teka.nn import TransformerBlock
from training import arguments, train

LENGTH, HELD_OUT = 128, 50_000
TEXT = torch.tensor(list("\n".join(topics.values()).encode("ascii", "replace")))


class Writer(nn.Module):
    """Transformer that predicts the next letter."""

    def __init__(self, dim: int = 96, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.letters = nn.Embedding(128, dim)
        options = {"causal": True, "num_axes": 1}
        self.blocks = nn.ModuleList(TransformerBlock(dim, heads, **options) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 128))

    def forward(self, letters: Tensor) -> Tensor:
        """Return logits (batch, length, 128) for letters (batch, length)."""
        tokens, grid = self.letters(letters), Grid(letters.shape[1])
        for block in self.blocks:
            tokens = block(tokens, grid)
        return self.head(tokens)

    def step(self, letter: Tensor, states: list) -> tuple[Tensor, list]:
        """Return logits (batch, 128) after one more letter (batch,), and the new states."""
        token = self.letters(letter)
        new_states = []
        for block, state in zip(self.blocks, states, strict=True):
            assert isinstance(block, TransformerBlock)
            attended, state = block.attention.step(block.attention_norm(token), state)
            token = token + attended
            token = token + block.mlp(block.mlp_norm(token))
            new_states.append(state)
        return self.head(token), new_states


def draw_passages(count: int, text: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draw passages (count, LENGTH) and the next letter of each letter."""
    starts = torch.randint(len(text) - LENGTH, (count, 1), generator=generator)
    passages = text[starts + torch.arange(LENGTH + 1)]
    return passages[:, :-1], passages[:, 1:]


@torch.no_grad()
def write(model: Writer, beginning: str, count: int) -> str:
    """Return the beginning, followed by `count` letters that the model generates."""
    generator, states, letters = (
        Generator().manual_seed(0),
        [None] * len(model.blocks),
        list(beginning.encode()),
    )
    for position in range(len(letters) + count - 1):
        logits, states = model.step(torch.tensor([letters[position]]), states)
        if position == len(letters) - 1:
            letters.append(
                int(torch.multinomial((1.5 * logits[0]).softmax(dim=0), 1, generator=generator))
            )
    return bytes(letters).decode("ascii", "replace")


def main() -> None:
    """Train and measure the model, compare steps with whole passages, and generate text."""
    options = arguments(__doc__, steps=1500, inputs=64)
    torch.manual_seed(options.seed)
    text, unseen = TEXT[:-HELD_OUT], TEXT[-HELD_OUT:]
    model = Writer()
    letter_loss = lambda logits, letters: cross_entropy(logits.flatten(0, 1), letters.flatten())  # noqa: E731
    train(model, lambda generator: draw_passages(32, text, generator), letter_loss, options.steps)
    passages, following = draw_passages(options.inputs, unseen, Generator().manual_seed(1))
    with torch.no_grad():
        bits = float(letter_loss(model(passages), following)) / math.log(2)
        shares = torch.bincount(text, minlength=128).add(1).double()
        alone = -float((shares / shares.sum()).log2()[following].mean())
        print(
            f"{bits:.2f} bits per letter on held-out text; {alone:.2f} from letter frequencies alone"
        )
        whole, states, model = (
            model.double()(passages[:2]),
            [None] * len(model.blocks),
            model.double(),
        )
        change = 0.0
        for position in range(32):
            logits, states = model.step(passages[:2, position], states)
            change = max(
                change, float((logits - whole[:, position]).abs().max() / whole.abs().max())
            )
    print(
        f"  largest change   {change:8.0e} of the output's size, letter by letter or whole, in float64"
    )
    print(write(model, "The ", 200))


if __name__ == "__main__":
    main()
