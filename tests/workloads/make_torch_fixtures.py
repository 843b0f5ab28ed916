"""Write the exported programs that the tests read: run `python tests/workloads/make_torch_fixtures.py`.

It needs torch. Small models with seeded weights: the JSON of the archive, the weights, inputs and outputs.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

from workloads.importers.torch_export.make import export, graph_alone

HERE = Path(__file__).parent / "exported"


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(size))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Block(nn.Module):
    def __init__(self, width, heads, kv):
        super().__init__()
        self.heads, self.kv, self.dim = heads, kv, width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv * self.dim, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)
        self.n1, self.n2 = Norm(width), Norm(width)

    def cut(self, x, heads):
        return x.view(*x.shape[:2], heads, self.dim).transpose(1, 2)

    def repeated(self, x):
        b, kv, s, d = x.shape
        group = self.heads // self.kv
        return x[:, :, None].expand(b, kv, group, s, d).reshape(b, kv * group, s, d)

    def forward(self, x, cos, sin, mask):
        y = self.n1(x)
        q = rotated(self.cut(self.q(y), self.heads), cos, sin)
        k = rotated(self.cut(self.k(y), self.kv), cos, sin)
        v = self.cut(self.v(y), self.kv)
        a = scaled_dot_product_attention(q, self.repeated(k), self.repeated(v), attn_mask=mask)
        x = x + self.o(a.transpose(1, 2).reshape(x.shape))
        y = self.n2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, width=32, heads=4, kv=2, layers=3, vocab=50):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Block(width, heads, kv) for _ in range(layers))
        self.norm, self.head = Norm(width), nn.Linear(width, vocab, bias=False)
        self.dim = width // heads

    def forward(self, ids):
        seq = ids.shape[1]
        at = torch.arange(seq)
        angles = at[:, None] * (10000.0 ** (-torch.arange(0, self.dim, 2) / self.dim))[None]
        both = torch.cat((angles, angles), -1)
        cos, sin = both.cos()[None, None], both.sin()[None, None]
        mask = (at[None, :] <= at[:, None])[None, None]
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.head(self.norm(x))


class Classifier(nn.Module):
    """Convolution with a batch norm, a class token in front of the patches, attention, a softmax."""

    def __init__(self, width=24, heads=3):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, width, 4, 4, bias=False), nn.BatchNorm2d(width)
        self.cls, self.pos = (nn.Parameter(torch.randn(1, n, width)) for n in (1, 10))
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, pixels):
        x = torch.relu(self.bn(self.stem(pixels))).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), 1) + self.pos
        b, s, f = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        a = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, f)
        return torch.softmax(self.head((x + self.o(a))[:, 0]), -1)


def save(name, model, inputs, dynamic=None):
    buffer = io.BytesIO()
    torch.export.save(export((model, inputs, None, dynamic)), buffer)
    (HERE / f"{name}.json.gz").write_bytes(graph_alone(buffer))
    arrays = {f"w:{n}": t.numpy() for n, t in model.state_dict().items()}
    arrays |= {f"in:{i}": t.numpy() for i, t in enumerate(inputs)}
    np.savez_compressed(HERE / f"{name}.npz", out=model(*inputs).numpy(), **arrays)


if __name__ == "__main__":
    torch.manual_seed(0)
    HERE.mkdir(exist_ok=True)
    seq = torch.export.Dim("seq", min=2, max=4096)
    save("decoder", Decoder(), (torch.randint(0, 50, (2, 7)),), {"ids": {1: seq}})
    save("classifier", Classifier(), (torch.randn(2, 3, 12, 12),))
