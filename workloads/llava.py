"""LLaVA-style vision-language models: the patches of images are the first tokens of a language model."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from compiler.ops import Concat, Embedding, Reshape, Slice, Unary
from workloads.blocks import linear
from workloads.clip import Vision
from workloads.llama import Chunk, Decode, Decoder, LlamaModel, Prefill, Verify
from workloads.request import Request


@dataclass(frozen=True, slots=True)
class LlavaModel(LlamaModel):
    """Hyper-parameters: the language model's, the image tower and how many of its layers count."""

    vision: Vision | None = None
    vision_layers: int = 0
    projector: str = "gelu_erf"

    @override
    def decoder(self) -> type[Decoder]:
        return _LlavaDecoder

    @override
    def problems(self, layers: int, length: int) -> list[str]:
        assert self.vision
        found = LlamaModel.problems(self, layers, length)
        if length <= self.vision.patches:
            found.append(f"tokens: got {length}, want more than the {self.vision.patches} of the image")
        return found


def phases(model: LlavaModel, layers: int) -> tuple[Request, ...]:
    """Prefill has the image of each sequence in front; the others are those of the language model."""
    assert model.vision
    seq = model.vision.patches + 64
    return (
        Prefill(model, layers, seq=seq),
        Decode(model, layers, context=seq),
        Chunk(model, layers, chunk=64, context=model.vision.patches),
        Verify(model, layers, context=seq),
    )


class _LlavaDecoder(Decoder):
    """A decoder whose prompts begin with an image, in prefill."""

    model: LlavaModel

    @override
    def embedded(self) -> str:
        if self.context:
            return super().embedded()
        b, model, batch = self.b, self.model, self.batch
        vision = model.vision
        assert vision
        texts, patches = self.seq - vision.patches, vision.patches
        x = vision.tokens(b, batch, min(model.vision_layers, vision.layers))
        whole = b.op("patches.all", Reshape((batch, patches + 1, vision.hidden)), x)
        stops = (batch, patches + 1, vision.hidden)
        kept = b.op("patches", Slice((0, 1, 0), stops), whole)
        flat = b.op("patches.flat", Reshape((batch * patches, vision.hidden)), kept)
        wide = b.op("projector.act", Unary(model.projector), linear(b, "fc1", flat, model.hidden, bias=True))
        image = b.op(
            "image", Reshape((batch, patches, model.hidden)), linear(b, "fc2", wide, model.hidden, bias=True)
        )
        ids = b.input("ids", batch * texts, dtype="int32")
        words = b.op("embed", Embedding(), ids, b.weight("embed.weight", model.vocab, model.hidden))
        text = b.op("words", Reshape((batch, texts, model.hidden)), words)
        joined = b.op("joined", Concat(1), image, text)
        return b.op("prompt", Reshape((batch * self.seq, model.hidden)), joined)
