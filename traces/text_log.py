"""Reads logs of requests with their text: OpenAI chat and batch files, plain prompt/answer lines, aiperf's `text_input`.

One row is one request. It does not join rows into conversations: a chat's earlier turns are in its messages. An answer
is the text logged with the request, or a closing message of the assistant; without text its length is the one stated,
or `max_tokens`, which is noted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from traces import fields
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import SKIP, Place
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.source import Source
from traces.texts import Texts, first_of, guessed_unit, say_how_cut

TIME = ("timestamp", "created_time", "created_at", "created", "time", "request_time")
DELAY = ("delay", "delay_ms")
PROMPT = ("text_input", "prompt", "input", "text", "question", "query")
ANSWER = ("output", "completion", "answer", "output_text", "response")
LENGTH = ("output_length", "output_tokens", "completion_tokens", "output_len")
SESSION = ("session_id", "conversation_id", "user")
LOG = Convention(time_unit="s", block_tokens=1, ids_are_blocks=False, times_are_optional=True)


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like a request with its text."""
    body = _body(row)
    return isinstance(body.get("messages"), list) or isinstance(first_of([body], PROMPT), str | list)


def read(source: Source, options: ReadOptions) -> FileOrder:
    """A log of requests with text."""
    texts = Texts(options)

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        yield _row(fields.fields_of(value, place), place, to, texts)

    first = next((value for _, value in source.rows() if isinstance(value, dict)), {})
    time = first_of([first, _body(first)], TIME)
    unit = guessed_unit(fields.as_number(time))
    note = f"timestamps are read as {unit} by their size" if isinstance(time, int | float) else ""
    convention = replace(LOG, time_unit=unit, time_note=note)
    return say_how_cut(collected(source, options, convention, rows), texts)


def _body(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was sent: the row itself, or what the batch and logging formats wrap."""
    return next((row[name] for name in ("body", "request", "payload") if isinstance(row.get(name), dict)), row)


def _row(row: Mapping[str, Any], place: Place, to: Collector, texts: Texts) -> Row:
    body = _body(row)
    prompt, answer = _prompt(body, place, texts)
    said = _answer(row, place, texts)
    answer = answer if said is None else said
    if not prompt:
        raise place.error(f"the prompt is empty; {SKIP}")
    n = len(answer) if answer is not None else _stated(row, body, place, to)
    model = fields.label(body, ("model",), place)
    return Row(
        prompt_tokens=len(prompt),
        output_tokens=n,
        time=fields.moment({**body, **row}, TIME, place, to),
        delay=fields.number(row, DELAY, place),
        ids=prompt,
        all_ids=[*prompt, *answer] if answer else (),
        session=fields.label({**body, **row}, SESSION[:2], place),
        labels={} if model is None else {"model": model},
    )


def _prompt(body: Mapping[str, Any], place: Place, texts: Texts) -> tuple[list[int], list[int] | None]:
    """Tokens of the prompt, and of the assistant's closing message if there is one."""
    content = body.get("messages")
    if content is None:
        content = first_of([body], PROMPT)
    if isinstance(content, str):
        return texts.ids(content), None
    if not isinstance(content, list):
        raise place.error(f"there is neither a list of messages nor one of {', '.join(PROMPT)}; {SKIP}")
    if content and all(isinstance(message, str) for message in content):
        return [token for message in content for token in texts.ids(message)], None
    tokens = [texts.message(message, place) for message in content]
    is_answered = len(content) > 1 and content[-1].get("role") == "assistant"
    before = tokens[:-1] if is_answered else tokens
    prompt = [token for message in before for token in message]
    asked = [*prompt, texts.mark("role assistant")] if prompt else prompt
    return asked, tokens[-1][1:] if is_answered else None


def _answer(row: Mapping[str, Any], place: Place, texts: Texts) -> list[int] | None:
    answer = first_of([row], ANSWER)
    if isinstance(answer, dict):
        answer = answer.get("body", answer)
    choices = first_of([answer, row] if isinstance(answer, dict) else [row], ("choices",))
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        choice = choices[0]
        message = choice.get("message")
        answer = message.get("content") if isinstance(message, dict) else choice.get("text")
    if answer is None or isinstance(answer, dict):
        return None
    return texts.content(answer, place)


def _stated(row: Mapping[str, Any], body: Mapping[str, Any], place: Place, to: Collector) -> int:
    """The answer's length as the row gives it; `max_tokens` at the last, with a note."""
    length = fields.tokens({**body, **row}, LENGTH, place, at_least=0)
    if length is not None:
        return length
    most = fields.tokens(body, ("max_tokens",), place, at_least=0)
    most = fields.tokens(body, ("max_completion_tokens",), place, at_least=0) if most is None else most
    if most is None or to.options.default_output is not None:
        return fields.output_tokens({}, LENGTH, place, to.options.default_output)
    to.infer("answers without text are as long as max_tokens allows; --default-output N overrides", place)
    return most
