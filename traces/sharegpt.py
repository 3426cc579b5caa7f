"""Reads ShareGPT conversations: each turn of the human is a request, its prompt everything said before.

It does not invent times: conversations start at 0 s and a turn comes with the one before it; how they are spread is for
the workload section of a spec, or `kvtier trace scale`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from traces import fields
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import SKIP, Place, shown
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.source import Source
from traces.texts import Texts, first_of, say_how_cut

TURNS = ("conversations", "conversation", "items")
ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), "assistant"),
}
SHAREGPT = Convention("s", 1, ids_are_blocks=False, rows_are_in_time_order=False, times_are_optional=True)


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like a conversation."""
    return isinstance(first_of([row], TURNS), list)


def read(source: Source, options: ReadOptions) -> FileOrder:
    """A set of conversations."""
    texts = Texts(options)

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        yield from _requests(fields.fields_of(value, place), place, to, texts)

    return say_how_cut(collected(source, options, SHAREGPT, rows), texts)


def _requests(conversation: Mapping[str, Any], place: Place, to: Collector, texts: Texts) -> Iterator[Row]:
    name = next((name for name in TURNS if conversation.get(name) is not None), TURNS[0])
    turns = [_turn(turn, place, texts) for turn in fields.sequence(conversation, name, place) or []]
    session = (fields.label(conversation, ("id",), place), place)
    said: list[int] = []
    is_first = True
    for number, (role, tokens) in enumerate(turns):
        said = [*said, texts.mark(f"role {role}"), *tokens]
        if role != "user" or (number + 1 < len(turns) and turns[number + 1][0] == "user"):
            continue
        answer = turns[number + 1][1] if number + 1 < len(turns) else None
        if answer is None and to.options.default_output is None:
            to.doubts.see(
                "a question at the end of a conversation has no answer: left out; --default-output keeps it", place
            )
            continue
        prompt = [*said, texts.mark("role assistant")]
        yield Row(
            prompt_tokens=len(prompt),
            output_tokens=len(answer) if answer is not None else to.options.default_output or 0,
            time=None,
            delay=None if is_first else 0,
            ids=prompt,
            all_ids=[*prompt, *answer] if answer else (),
            session=session,
        )
        is_first = False


def _turn(turn: Any, place: Place, texts: Texts) -> tuple[str, list[int]]:
    if not isinstance(turn, dict):
        raise place.error(f"a turn must be a JSON object, this is {shown(turn)}; {SKIP}")
    who = fields.label(turn, ("from", "role"), place)
    if who is None:
        raise place.error(f"a turn does not say whom it is from; {SKIP}")
    return ROLES.get(who, who), texts.content(first_of([turn], ("value", "content", "text")), place)
