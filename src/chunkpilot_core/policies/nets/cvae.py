"""The networks of ACT: a style is read out of a chunk, and a chunk is read out of the inputs."""

from chunkpilot_core.policies.nets import attention
import torch
from torch import nn, Tensor


class ActNet(nn.Module):
    """
    CVAE transformer of ACT (Zhao et al. 2023, arXiv 2304.13705) on E numbers instead of images.

    Each input is a token: its value times a direction of its own, plus its place.
    """

    def __init__(
        self, inputs: int, horizon: int, columns: int, width: int, heads: int, depth: int, z: int
    ) -> None:
        super().__init__()
        self.directions = nn.Parameter(0.5 * torch.randn(inputs, width))
        self.places = nn.Parameter(0.5 * torch.randn(inputs, width))
        self.reader = attention.encoder(width, heads, depth)
        self.queries = nn.Parameter(0.5 * torch.randn(horizon, width))
        self.writer = attention.decoder(width, heads, depth)
        self.rows = nn.Linear(width, columns)
        self.from_style = nn.Linear(z, width)
        self.row_in = nn.Linear(columns, width)
        self.inputs_in = nn.Linear(inputs, width)
        self.summary = nn.Parameter(0.5 * torch.randn(width))
        self.style_reader = attention.encoder(width, heads, depth)
        self.to_style = nn.Linear(width, 2 * z)
        self.register_buffer('row_places', attention.positions(horizon, width), persistent=False)

    def style(self, encoded: Tensor, chunks: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """
        Return mean and log-variance (B, Z) of the style of demonstrated chunks.

        :param encoded: (B, E)
        :param chunks: (B, H, A) normalised
        :param valid: (B, H), rows that are 0 are not looked at
        """
        rows = self.row_in(chunks) + self.row_places
        summary = self.summary.expand(len(rows), 1, -1)
        tokens = torch.cat((summary, self.inputs_in(encoded)[:, None], rows), dim=1)
        hidden = torch.cat((valid.new_ones(len(rows), 2), valid), dim=1) <= 0
        read = self.style_reader(tokens, src_key_padding_mask=hidden)[:, 0]
        mean, log_variance = self.to_style(read).chunk(2, dim=1)
        return mean, log_variance

    def forward(self, encoded: Tensor, style: Tensor) -> Tensor:
        """Map inputs (B, E) and a style (B, Z) to a chunk (B, H, A)."""
        tokens = encoded[..., None] * self.directions + self.places
        tokens = torch.cat((self.from_style(style)[:, None], tokens), dim=1)
        queries = self.queries.expand(len(encoded), -1, -1)
        rows: Tensor = self.rows(self.writer(queries, self.reader(tokens)))
        return rows
