"""Drive the manager and the oracle with the same random operations, comparing after each.

Run `python -m tests.kvcache.long_run --operations 200000 --seeds 0,1,2,3`.
"""

import argparse
import random
import time
from collections import Counter

from tests.kvcache.naive import Rules
from tests.kvcache.pair import Ask, Pair


def random_rules(rng: random.Random) -> Rules:
    """Small pools, so that every queue runs empty and every tier overflows."""
    sizes = [rng.randint(3, 12), rng.choice((0, 1, 2, 4, 6, 9))]
    if rng.random() < 0.5:
        sizes.append(rng.choice((0, 1, 3, 6)))
    return Rules(
        tpb=rng.randint(2, 4),
        sizes=tuple(sizes),
        offload_min=rng.choice((0, 30, 35, 36, 50, 101)),
        cold_min=rng.choice((0, 35, 50)),
        partial=rng.random() < 0.85,
        copy_on_partial=rng.random() < 0.7,
        evict_descendants=rng.random() < 0.3,
        detached_first=rng.random() < 0.4,
        emptied_front=rng.random() < 0.4,
        onboard=rng.random() < 0.9,
        reuse=rng.random() < 0.95,
        sequential=rng.random() < 0.2,
    )


class Driver:
    """Random operations on one pair. Prompts are cut from few stories, so prefixes and near misses are common."""

    def __init__(self, rng: random.Random, rules: Rules) -> None:
        self.rng, self.pair, self.next_name = rng, Pair(rules), 0
        self.counts: Counter[str] = Counter()
        self.stories = [[rng.randrange(4) for _ in range(40)] for _ in range(3)]
        self.stories.append([*self.stories[0][:9], *self.stories[1][9:]])
        self.lengths = [rng.randint(1, 4 * rules.tpb) for _ in range(3)]
        self.operations = [
            *[self.add] * 5,
            *[self.grow] * 4,
            *[self.store_context] * 3,
            *[self.release] * 4,
            *[self.refresh] * 2,
            self.store_new_block,
            self.chunk,
            self.draft,
            self.pin,
            self.unpin,
            self.truncate,
        ]

    def step(self) -> None:
        operation = self.rng.choice(self.operations)
        crowded = len(self.pair.oracle.seqs) > 2 or not self.pair.oracle.order(0)
        if crowded and self.rng.random() < 0.5:
            operation = self.release
        self.counts[operation.__name__] += 1
        operation()
        self.pair.compare()

    def ask(self) -> Ask:
        rng, tpb = self.rng, self.pair.rules.tpb
        story = rng.choice(self.stories)
        n = rng.choice((*self.lengths, rng.randint(1, 5 * tpb), tpb * rng.randint(1, 4), tpb * rng.randint(0, 3) + 1))
        tokens = story[:n]
        if rng.random() < 0.25:
            tokens = [*tokens[: rng.randrange(n)], *[rng.randrange(4) for _ in range(n)]][:n]
        ranges: list[tuple[int, int | None, int, int | None]] = []
        start = rng.randint(0, tpb)
        for _ in range(rng.choice((0, 0, 1, 2))):
            end = start + rng.randint(1, 3 * tpb)
            ranges.append((start, end, rng.choice((0, 10, 29, 30, 35, 50, 100)), rng.choice((None, 0, 50, 200))))
            start = end + rng.choice((0, 0, 2))
        if ranges and rng.random() < 0.3:
            ranges[-1] = (ranges[-1][0], None, *ranges[-1][2:])
        odd = rng.random()
        return Ask(
            tuple(tokens),
            lora=7 if odd < 0.1 else None,
            salt=rng.choice((1, 2)) if 0.05 < odd < 0.15 else None,
            ranges=tuple(ranges),
            decode=rng.choice(((35, None), (35, None), (20, 100), (60, None))),
        )

    def live(self) -> int | None:
        names = list(self.pair.oracle.seqs)
        return self.rng.choice(names) if names else None

    def add(self) -> None:
        batch = {}
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            batch[self.next_name] = self.ask()
            self.next_name += 1
        if len(batch) == 2 and self.rng.random() < 0.3:
            batch[self.next_name - 1] = batch[self.next_name - 2]
        self.counts["refused batches"] += not self.pair.add(batch)

    def grow(self) -> None:
        name = self.live()
        if name is not None:
            story = self.rng.choice(self.stories)
            at = len(self.pair.oracle.seqs[name].tokens) % 30
            self.pair.grow(name, story[at : at + self.rng.randint(1, 5)])

    def store_context(self) -> None:
        name = self.live()
        if name is not None:
            if self.rng.random() < 0.7:
                self.pair.position(name, self.pair.oracle.seqs[name].prompt)
            self.pair.store_context(name)

    def chunk(self) -> None:
        name = self.live()
        if name is not None:
            seq = self.pair.oracle.seqs[name]
            self.pair.position(name, self.rng.randint(seq.position, max(seq.position, seq.prompt)))
            self.pair.store_context(name)

    def store_new_block(self) -> None:
        name = self.live()
        if name is not None:
            self.pair.store_new_block(name)

    def release(self) -> None:
        name = self.live()
        if name is not None:
            self.pair.release(name, store=self.rng.random() < 0.8)

    def draft(self) -> None:
        name = self.live()
        if name is not None:
            before = self.pair.oracle.seqs[name].slots
            self.pair.slots(name, self.rng.randint(1, 6))
            taken = self.pair.oracle.seqs[name].slots - before
            self.pair.rewind(name, self.rng.randint(0, taken))

    def pin(self) -> None:
        name = self.live()
        if name is not None and len(self.pair.pinned) < 2:
            self.pair.pin(name)

    def unpin(self) -> None:
        if self.pair.pinned:
            self.pair.unpin(self.rng.randrange(len(self.pair.pinned)))

    def truncate(self) -> None:
        ask = self.ask()
        self.pair.truncate(ask, self.rng.randint(0, len(ask.tokens)))

    def refresh(self) -> None:
        self.pair.refresh(self.rng.choice((0, 10, 50, 100)))


def drive(seed: int, operations: int, *, per_manager: int = 200) -> Counter[str]:
    """Run `operations` operations, a new manager under new rules every `per_manager`; what was done, counted."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    for start in range(0, operations, per_manager):
        driver = Driver(rng, random_rules(rng))
        for at in range(min(per_manager, operations - start)):
            try:
                driver.step()
            except AssertionError as error:
                error.add_note(f"seed {seed}, manager {start // per_manager}, operation {at}: {driver.pair.rules}")
                raise
        counts += driver.counts + Counter({str(name): n for name, n in driver.pair.oracle.stats.items()})
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=200_000, help="operations a seed")
    parser.add_argument("--seeds", default="0,1,2,3", help="comma list")
    options = parser.parse_args()
    for seed in (int(s) for s in options.seeds.split(",")):
        began = time.perf_counter()
        counts = drive(seed, options.operations)
        print(f"seed {seed}: {options.operations} operations, {time.perf_counter() - began:.1f} s, no difference")
        print("   " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())))


if __name__ == "__main__":
    main()
