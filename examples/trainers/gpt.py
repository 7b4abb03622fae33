"""The model and the text of the examples in this folder that are plain PyTorch."""

from torch import nn

from contextile.torch import attention

BATCH = {"heads": (4, 2), "head_dim": 16, "dtype": "f32"}
WIDTH, WORDS = 64, 50


class Text:
    """Documents that a seed would make from your files."""

    lengths = (70, 26, 64, 50, 38, 14, 90, 33, 55, 72)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return [(7 * index + 3 * i * i) % WORDS for i in range(self.lengths[index])]


class Layer(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend = attend  # of q, k and v: [tokens, heads, 16] each
        self.norm, self.feed_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, heads * 16, bias=False) for heads in (4, 2, 2))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 96, bias=False), nn.Linear(96, WIDTH, bias=False)

    def forward(self, x):
        normed = self.norm(x)
        q, k, v = (linear(normed).unflatten(-1, (-1, 16)) for linear in (self.q, self.k, self.v))
        x = x + self.out(self.attend(q, k, v).flatten(-2))
        return x + self.down(nn.functional.silu(self.up(self.feed_norm(x))))


class Gpt(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(128, WIDTH)
        self.layers = nn.ModuleList(Layer(attend) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens, positions):
        x = self.embed(tokens) + self.places(positions)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def by_plan(executor):
    """Attention by the plan that the executor is prepared for."""
    return lambda q, k, v: attention(q, k, v, executor=executor)
