"""A diffusion transformer over the rows of a chunk (Peebles and Xie 2023, arXiv 2212.09748)."""

from chunkpilot_core.policies.nets import attention
from chunkpilot_core.policies.nets.residual_mlp import TIME_FEATURES, time_features
from torch import nn, Tensor
from torch.nn import functional


class DiT(nn.Module):
    """
    Maps noisy rows to as many rows; each may have a noise level of its own.

    A row is a token. Inputs and noise level shift, scale and gate what each layer does to it
    (adaLN-Zero: at first a layer does nothing).
    """

    def __init__(
        self, inputs: int, horizon: int, columns: int, width: int, heads: int, depth: int
    ) -> None:
        super().__init__()
        self.row_in = nn.Linear(columns, width)
        self.condition = nn.Sequential(
            nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.level = nn.Sequential(
            nn.Linear(TIME_FEATURES, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(depth))
        self.modulate = nn.Linear(width, 2 * width)
        self.row_out = nn.Linear(width, columns)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        nn.init.zeros_(self.row_out.weight)
        nn.init.zeros_(self.row_out.bias)
        self.register_buffer('places', attention.positions(horizon, width), persistent=False)

    def forward(self, chunks: Tensor, encoded: Tensor, time: Tensor) -> Tensor:
        """
        Map noisy chunks (B, H, A) to (B, H, A).

        :param encoded: inputs (B, E)
        :param time: noise level of each row (B, H), or of all of them (B, 1), 0 to 1
        """
        levels = self.level(time_features(time.flatten(), TIME_FEATURES)).unflatten(0, time.shape)
        condition = functional.silu(levels + self.condition(encoded)[:, None])
        rows = self.row_in(chunks) + self.places
        for block in self.blocks:
            rows = block(rows, condition)
        shift, scale = self.modulate(condition).chunk(2, dim=-1)
        out: Tensor = self.row_out(self.norm(rows) * (1.0 + scale) + shift)
        return out


class _Block(nn.Module):
    """Attention among rows and a perceptron on each, both steered by the condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate='tanh'), nn.Linear(4 * width, width)
        )
        self.modulate = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.modulate.weight)
        nn.init.zeros_(self.modulate.bias)

    def forward(self, rows: Tensor, condition: Tensor) -> Tensor:
        """Map rows (B, H, width) with their condition (B, H or 1, width) to as many."""
        shift, scale, gate, shift2, scale2, gate2 = self.modulate(condition).chunk(6, dim=-1)
        rows = rows + gate * self._attend(self.norm(rows) * (1.0 + scale) + shift)
        out: Tensor = rows + gate2 * self.perceptron(self.norm(rows) * (1.0 + scale2) + shift2)
        return out

    def _attend(self, rows: Tensor) -> Tensor:
        split = self.queries_keys_values(rows).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        read = functional.scaled_dot_product_attention(queries, keys, values)
        joined: Tensor = self.joined(read.transpose(1, 2).flatten(2))
        return joined
