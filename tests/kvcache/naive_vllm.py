"""vLLM's iteration once more, as plainly as it can be said: lists, dictionaries, one object a request.

The oracle of `kvcache.vllm_engine`: block ids in an ordered free list, contents as tuples of all tokens before a
block's end. A content that two requests compute at once keeps the first one's block, as in the tables; the other one's
takes its place if it is gone when its request fills another block.
"""

from collections import deque

from kvcache.request import Requests


class Request:
    """One request: its tokens, and how far it is."""

    def __init__(self, number: int, prompt: tuple[int, ...], output: tuple[int, ...]) -> None:
        self.number, self.prompt, self.output = number, prompt, output
        self.wanted = max(1, len(output))
        self.made = 0
        self.coming = 0
        self.computed = 0
        self.blocks: list[int] = []
        self.published = 0
        self.first = self.finish = -1.0
        self.reused = -1

    @property
    def tokens(self) -> tuple[int, ...]:
        """What has been said so far."""
        return (self.prompt + self.output)[: len(self.prompt) + self.made]


class NaiveVllm:
    """The whole engine; `begin` and `end` as in `kvcache.vllm_engine`."""

    def __init__(self, requests: Requests, blocks: int, size: int, tokens: int, seqs: int, *, ahead: bool) -> None:
        self.size, self.budget, self.seqs, self.ahead = size, tokens, seqs, ahead
        self.free: deque[int] = deque(range(blocks))
        self.users = [0] * blocks
        self.content: dict[int, tuple[int, ...]] = {}
        self.found: dict[tuple[int, ...], int] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.steps: deque[dict[Request, tuple[int, bool]]] = deque()
        self.preemptions = 0
        assert requests.output_offset is not None
        assert requests.output_units is not None
        self.requests = [
            Request(
                r,
                tuple(requests.units[requests.unit_offset[r] : requests.unit_offset[r + 1]].tolist()),
                tuple(requests.output_units[requests.output_offset[r] : requests.output_offset[r + 1]].tolist()),
            )
            for r in range(len(requests))
        ]

    def _take(self, request: Request, tokens: int) -> bool:
        missing = -(-tokens // self.size) - len(request.blocks)
        if missing > len(self.free):
            return False
        for _ in range(missing):
            block = self.free.popleft()
            self.found.pop(self.content.pop(block, ()), None)
            self.users[block] = 1
            request.blocks.append(block)
        return True

    def _publish(self, request: Request, tokens: int) -> None:
        if tokens // self.size <= request.published:
            return
        request.published = tokens // self.size
        for i in range(request.published):
            content = (request.prompt + request.output)[: (i + 1) * self.size]
            if content not in self.found and len(content) == (i + 1) * self.size:
                self.found[content] = request.blocks[i]
                self.content[request.blocks[i]] = content

    def _release(self, request: Request) -> None:
        for block in reversed(request.blocks):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.free.append(block)
        request.blocks = []
        request.computed = request.coming = request.published = 0

    def _enter(self, step: dict[Request, tuple[int, bool]], request: Request, tokens: int, known: int) -> None:
        request.computed += tokens
        self._publish(request, min(request.computed, len(request.prompt) + request.made))
        makes = request.computed == known
        request.coming += makes
        step[request] = (tokens, makes)

    def _schedule(self) -> dict[Request, tuple[int, bool]]:
        step: dict[Request, tuple[int, bool]] = {}
        left, preempted = self.budget, False
        for request in list(self.running):
            if left == 0 or request not in self.running:
                break
            if request.made + request.coming >= request.wanted:
                continue
            known = len(request.prompt) + request.made + request.coming
            tokens = min(known - request.computed, left)
            while not self._take(request, request.computed + tokens):
                preempted = True
                self.preemptions += 1
                victim = self.running.pop()
                self._release(victim)
                self.waiting.appendleft(victim)
                if victim is request:
                    return step
            self._enter(step, request, tokens, known)
            left -= tokens
        while self.waiting and left > 0 and len(self.running) < self.seqs and not preempted:
            request = self.waiting[0]
            known = request.tokens
            hits: list[int] = []
            for i in range((len(known) - 1) // self.size):
                block = self.found.get(known[: (i + 1) * self.size])
                if block is None:
                    break
                hits.append(block)
            need = -(-len(known) // self.size) - len(hits) + sum(self.users[block] == 0 for block in hits)
            if need > len(self.free):
                break
            self.waiting.popleft()
            for block in hits:
                if self.users[block] == 0:
                    self.free.remove(block)
                self.users[block] += 1
            request.blocks = hits
            request.published = len(hits)
            request.computed = len(hits) * self.size
            request.reused = request.computed if request.reused < 0 else request.reused
            tokens = min(len(known) - request.computed, left)
            assert self._take(request, request.computed + tokens)
            self.running.append(request)
            self._enter(step, request, tokens, len(known))
            left -= tokens
        return step

    def begin(self) -> bool:
        """A step begins; False if there is nothing to do."""
        if not self.steps:
            self.steps.append(self._schedule())
        if not self.steps[0]:
            self.steps.clear()
            return False
        if self.ahead:
            self.steps.append(self._schedule())
        return True

    def end(self, now_s: float) -> None:
        """The step that runs has ended."""
        for request, (_, makes) in self.steps.popleft().items():
            if not makes:
                continue
            request.made += 1
            request.coming -= request in self.running
            request.first = now_s if request.first < 0 else request.first
            if request.made == request.wanted:
                request.finish = now_s
        if self.steps and not self.steps[0]:
            self.steps.clear()
        for request in [r for r in self.running if r.finish >= 0]:
            self._publish(request, request.computed)
            self._release(request)
        self.running = [r for r in self.running if r.finish < 0]
        self.waiting = deque(r for r in self.waiting if r.finish < 0)
