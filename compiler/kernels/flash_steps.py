"""The order in which a few flash tiles go through their chunks of keys.

The steps of one chunk run at three pipeline stages, so that the array works on the next chunk's scores while
the vector engines finish this one's softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from compiler.builder import Builder, Tensor
from compiler.kernels.flash import SKEW, Chunk, FlashTile, Lane, Masked, Sizes, Source, Start, Weights


@dataclass(frozen=True, slots=True)
class Work:
    """A tile of query rows, its lanes, and where their keys and values come from."""

    tile: FlashTile
    lanes: tuple[Lane, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class Step:
    """One chunk of keys for several independent tiles; `done` is called when its output is in.

    `masks`, a list for each tile or none at all, are added to its scores.
    """

    work: Sequence[Work]
    start: Start
    width: int
    first: bool = False
    masks: Sequence[Sequence[Masked]] = ()
    done: Callable[[], None] | None = None


class _Open:
    """A step under way. Its tiles are interleaved, so that one fills the other's gaps."""

    def __init__(self, step: Step, skew: int) -> None:
        self.step = step
        sources: list[Source] = []
        self.chunks: list[Chunk] = []
        for item in step.work:  # tiles may share a source: load it once
            known = next((c for s, c in zip(sources, self.chunks, strict=True) if s is item.source), None)
            sources.append(item.source)
            self.chunks.append(known or item.source.chunk(step.start, step.width))
        both = list(zip(step.work, self.chunks, strict=True))
        scores = [item.tile.scores(item.lanes, chunk, step.start, step.width) for item, chunk in both]
        masks = step.masks or ((),) * len(scores)
        self.weights: list[Weights] = []
        for item, s, mask in zip(step.work, scores, masks, strict=True):
            shift = item.tile.shifts(s, mask, first=step.first)
            self.weights.append(item.tile.weights(s, shift, skew=skew))
            item.tile.add_sums(self.weights[-1])
        self.kept: list[Tensor] = []

    def transpose(self) -> None:
        for item, weights in zip(self.step.work, self.weights, strict=True):
            self.kept.append(item.tile.transpose(weights))

    def accumulate(self) -> None:
        for i, item in enumerate(self.step.work):
            item.tile.accumulate(item.lanes, self.chunks[i], self.kept[i], self.weights[i])
            if self.step.done is not None:
                item.tile.divide()

    def finish(self) -> None:
        if self.step.done is not None:
            self.step.done()


def run_steps(b: Builder, steps: Sequence[Step]) -> None:
    """A sequence of steps, each one's softmax under the array's work for the next ones."""
    under_way: list[_Open] = []
    for i in range(len(steps) + SKEW + 1):
        if i < len(steps):
            under_way.append(_Open(steps[i], 0))
        if 0 <= i - SKEW // 2 < len(steps):
            under_way[i - SKEW // 2].transpose()
        if 0 <= i - SKEW < len(steps):
            under_way[i - SKEW].accumulate()
        if i > SKEW:
            under_way[i - SKEW - 1].finish()


def run_staged(b: Builder, step: Step) -> None:
    """The same for the one step in a loop, over its iterations."""
    opened = _Open(step, SKEW)
    with b.stage(SKEW // 2):
        opened.transpose()
    with b.stage(SKEW):
        opened.accumulate()
    with b.stage(SKEW + 1):
        opened.finish()


def all_chunks(b: Builder, work: Sequence[Work], sizes: Sizes, length: int, last: Step) -> None:
    """Every whole chunk of the first `length` keys, most of them in a loop; then `last`."""
    chunk = sizes.chunk
    run_steps(b, [Step(work, 0, min(chunk, length), first=True)])
    whole, rest = divmod(max(0, length - chunk), chunk)
    tail = [Step(work, length - rest, rest)] if rest and length > chunk else []
    middle_chunks(b, work, chunk, chunk, whole)
    run_steps(b, [*tail, last])


def middle_chunks(b: Builder, work: Sequence[Work], chunk: int, start: int, count: int) -> None:
    """`count` whole chunks from key `start` on that are seen by all; two and more in a loop."""
    if count > 1:
        with b.loop(count, "c") as c:
            run_staged(b, Step(work, c * chunk + start, chunk))
    elif count:
        run_steps(b, [Step(work, start, chunk)])


def split_last(b: Builder, work: Sequence[Work], sizes: Sizes, length: int, done: Callable[[], None]) -> None:
    """All `length` keys in chunks; a single chunk is pipelined over the loop around it."""
    if length <= sizes.chunk:
        run_staged(b, Step(work, 0, length, first=True, done=done))
        return
    before = (length - 1) // sizes.chunk * sizes.chunk
    all_chunks(b, work, sizes, before, Step(work, before, length - before, done=done))


def run_cells(
    b: Builder, work: Sequence[Work], sizes: Sizes, steps: Sequence[Step], done: Callable[[], None]
) -> None:
    """Steps from the first keys to the last; whole ones without masks in a loop.

    A single one is pipelined over the loop around it.
    """
    last = replace(steps[-1], done=done)
    if len(steps) == 1:
        run_staged(b, last)
        return
    plain = [i > 0 and not s.masks and s.width == sizes.chunk for i, s in enumerate(steps[:-1])]
    first = plain.index(True) if any(plain) else len(plain)
    end = next((i for i in range(first, len(plain)) if not plain[i]), len(plain))
    run_steps(b, steps[:first])
    if end > first:
        start = steps[first].start
        assert isinstance(start, int)
        middle_chunks(b, work, sizes.chunk, start, end - first)
    run_steps(b, [*steps[end:-1], last])
