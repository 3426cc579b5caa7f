"""How an explanation reads on the screen: blocks with the same fate on one line."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from experiments.explain import BlockStory, Explanation

WHY = {
    "never_seen": "nobody has computed this before",
    "in_flight": "another request is computing it right now",
    "evicted_from_gpu": "pushed out of GPU memory; there was no host place for it",
    "dropped_below_threshold": "pushed out of GPU memory and dropped: its priority is below secondary_offload_min_priority",
    "evicted_from_host": "pushed out of host memory",
    "evicted_from_disk": "pushed out of the disk tier",
    "expired": "pushed out after its retention had expired",
    "ancestor_evicted": "detached when a block before it was evicted",
    "overwritten_in_place": "taken over in place by a request that shared only its first tokens",
    "behind_a_gap": "still cached, but a block before it is not, so it cannot be reached",
    "last_prompt_token": "cached, but the last prompt token must be computed, so the whole block is",
    "shorter_than_a_block": "the prompt's last, part-filled block",
    "truncated": "forgotten on request (truncation)",
    "other_salt_or_lora": "cached under another salt or LoRA only",
}


def lines(story: Explanation) -> Iterator[str]:
    """A headline, then a line for each run of blocks with the same outcome."""
    share = story.hit_tokens / story.prompt_tokens
    yield (
        f"request {story.request}: {story.hit_tokens:,} of {story.prompt_tokens:,} prompt tokens found ({share:.1%}),"
        f" looked up at {story.looked_up_s:.3f} s"
    )
    for _, group in groupby(story.blocks, key=_kind):
        yield _line(list(group))


def _kind(block: BlockStory) -> tuple[object, ...]:
    part = block.hit_tokens < block.tokens if block.cause is None else False
    return block.outcome, block.cause, block.priority, block.pushed_out_s, block.pushed_out_by, part


def _line(blocks: Sequence[BlockStory]) -> str:
    first, last = blocks[0], blocks[-1]
    name = f"block {first.block}" if len(blocks) == 1 else f"blocks {first.block}-{last.block}"
    where = f"{name:>14}  tokens {first.first_token:,}-{last.first_token + last.tokens - 1:,}"
    if first.cause is None:
        tokens = sum(block.hit_tokens for block in blocks)
        part = "" if first.hit_tokens == first.tokens else f", {tokens} of its {first.tokens} tokens"
        return f"{where}: hit in {first.outcome} (priority {first.priority}{part})"
    by = ""
    if first.pushed_out_s is not None:
        names = ", ".join(str(r) for r in first.pushed_out_by)
        by = f" at {first.pushed_out_s:.3f} s, when request{'s' * (len(first.pushed_out_by) > 1)} {names} took blocks"
    return f"{where}: miss, {first.cause}: {WHY[first.cause]}{by}"
