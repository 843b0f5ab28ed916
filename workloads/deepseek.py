"""DeepSeek-V2 and V3: attention over a small latent a position (MLA), a few dense layers, then experts."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from compiler.ir.dtype import dtype_bytes
from compiler.ops import Binary, KvWrite, LatentAttention, Rope, SharedKeyAttention
from workloads.blocks import gated_mlp, linear, rms_norm
from workloads.llama import Decoder, LlamaModel


@dataclass(frozen=True, slots=True)
class MlaModel(LlamaModel):
    """Hyper-parameters; `head_dim` is that of the values, `intermediate` that of the dense layers."""

    q_latent: int = 0  # 0: queries come straight from the hidden state
    latent: int = 0
    nope: int = 0  # features of a query and key without positions
    rope: int = 0  # and with
    dense: int = 0  # layers in front that have no experts

    @override
    def kv_bytes_per_token(self, layers: int, dtype: str) -> int:
        """The latent and the rotary key, one for all heads."""
        return layers * (self.latent + self.rope) * dtype_bytes(dtype)

    @override
    def decoder(self) -> type[Decoder]:
        return _MlaDecoder


class _MlaDecoder(Decoder):
    """A decoder with MLA. A model cut to fewer layers keeps one with experts at least."""

    model: MlaModel

    @override
    def rope_dim(self) -> int:
        return self.model.rope

    @override
    def stack(self, x: str, layers: int) -> str:
        dense = min(self.model.dense, layers - 1)
        if dense:
            x = self.b.repeat("dense", dense, x, self._dense_layer)
        return self.b.repeat("layer", layers - dense, x, self.layer)

    def _dense_layer(self, x: str) -> str:
        b, model = self.b, self.model
        x = self.mixed(x)
        normed = rms_norm(b, "mlp_norm", x, model.eps)
        return b.op("mlp_add", Binary("add"), gated_mlp(b, normed, model.intermediate, model.activation), x)

    @override
    def attention(self, x: str) -> str:
        b, model = self.b, self.model
        q, q_rope = self._queries(x)
        latents = rms_norm(b, "latent_norm", linear(b, "latent", x, model.latent), model.eps)
        key = self.turned("k_rope", linear(b, "k", x, model.rope), 1)
        scale = (model.nope + model.rope) ** -0.5
        if not self.context:
            k = linear(b, "k_b", latents, model.heads * model.nope)
            v = linear(b, "v_b", latents, model.heads * model.head_dim)
            sizes = (self.batch, model.heads, model.heads, model.head_dim)
            prompt = SharedKeyAttention(*sizes, causal=True, scale=scale, rope=model.rope)
            return b.op("attention", prompt, q, k, v, q_rope, key)
        w_k = b.weight("k_b.weight", model.latent, model.heads * model.nope)
        w_v = b.weight("v_b.weight", model.latent, model.heads * model.head_dim)
        kept = b.state("latents", self.batch, 1, model.latent, self.context)
        keys = b.state("keys", self.batch, 1, model.rope, self.context)
        b.update("latent_write", KvWrite(self.first, axis_k=True, tokens=self.seq), kept, latents)
        b.update("key_write", KvWrite(self.first, axis_k=True, tokens=self.seq), keys, key)
        decode = LatentAttention(self.batch, model.heads, model.rope, self.context, scale, self.seq)
        return b.op("attention", decode, q, q_rope, kept, keys, w_k, w_v)

    def _queries(self, x: str) -> tuple[str, str]:
        """Queries of all heads without positions, and with."""
        b, model = self.b, self.model
        if model.q_latent:
            x = rms_norm(b, "q_norm", linear(b, "q_a", x, model.q_latent), model.eps)
        q = linear(b, "q", x, model.heads * model.nope)
        return q, self.turned("q_rope", linear(b, "q_pe", x, model.heads * model.rope), model.heads)

    def turned(self, name: str, x: str, heads: int) -> str:
        """`x` with rotary positions."""
        rope = Rope(heads, self.model.rope, self.seq, self.model.rope_base, self.first)
        return self.b.op(name, rope, x, *self.tables)
