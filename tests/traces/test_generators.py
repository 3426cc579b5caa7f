"""Streamed generators: the same seed gives the same bytes, and what they draw has the distribution they promise."""

from pathlib import Path

import numpy as np
import pytest

from kvcache.request import Requests
from traces.arrivals import Clock, weibull_cv, weibull_shape
from traces.draws import Zipf
from traces.errors import TraceError
from traces.read import opened, read
from traces.stats import hits

BLOCK_NAMES = ("chat", "agents", "rag", "servegen")


@pytest.fixture(scope="module")
def chat() -> Requests:
    return read("synthetic:chat?requests=30000&tenants=50&turns_mean=3&requests_per_s=20&block_tokens=16")


@pytest.fixture(scope="module")
def agents() -> Requests:
    return read("synthetic:agents?requests=20000&block_tokens=64&sub_agent_share=0.1")


def content(trace: str) -> bytes:
    parts = []
    for piece in opened(trace).pieces:
        assert piece.output_units is not None
        arrays = (piece.arrival_s, piece.prompt_tokens, piece.units, piece.output_units, piece.session, piece.think_s)
        parts += [a.tobytes() for a in arrays]
    return b"".join(parts)


@pytest.mark.parametrize("name", BLOCK_NAMES)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(name: str) -> None:
    one = content(f"synthetic:{name}?requests=400&seed=3")
    assert one == content(f"synthetic:{name}?requests=400&seed=3")
    assert one != content(f"synthetic:{name}?requests=400&seed=4")


@pytest.mark.parametrize("name", BLOCK_NAMES)
def test_requests_are_as_many_as_wanted_in_order_and_made_of_whole_blocks(name: str) -> None:
    requests = read(f"synthetic:{name}?requests=3000&block_tokens=32")
    assert len(requests) == 3000
    assert (np.diff(requests.arrival_s) >= 0).all()
    assert np.diff(requests.unit_offset).tolist() == (requests.prompt_tokens // 32).tolist()
    total = requests.prompt_tokens.astype(np.int64) + requests.output_tokens
    assert requests.output_offset is not None
    assert np.diff(requests.output_offset).tolist() == (total // 32 - requests.prompt_tokens // 32).tolist()
    assert requests.source == f"synthetic:{name}?requests=3000&block_tokens=32"


@pytest.mark.parametrize("name", ["chat", "agents"])
def test_fewer_requests_are_the_first_of_more_even_over_several_batches(name: str) -> None:
    many, few = (
        read(f"synthetic:{name}?requests=50000&block_tokens=512"),
        read(f"synthetic:{name}?requests=700&block_tokens=512"),
    )
    assert few.arrival_s.tolist() == many.arrival_s[:700].tolist()
    assert few.units.tolist() == many.units[: len(few.units)].tolist()


@pytest.mark.parametrize(("process", "cv"), [("poisson", 1.0), ("gamma", 0.4), ("gamma", 3.0), ("weibull", 2.0)])
def test_gaps_have_the_rate_and_the_burstiness_asked_for(process: str, cv: float) -> None:
    # 200,000 gaps: the mean is known to cv / 447 of itself, its cv to a few per cent even where tails are long
    clock = Clock(np.random.default_rng(1), 4.0, process, cv)
    gaps_s = np.diff(np.concatenate([clock.next(70_000) for _ in range(3)]))
    assert gaps_s.mean() == pytest.approx(0.25, rel=0.02)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.04)


def test_weibull_shapes_known_in_closed_form() -> None:
    # shape 1 is the exponential distribution (cv 1); shape 1/2: mean 2, second moment 24, so cv = sqrt(20)/2
    assert weibull_cv(1) == pytest.approx(1)
    assert weibull_cv(0.5) == pytest.approx(20**0.5 / 2)
    assert weibull_shape(20**0.5 / 2) == pytest.approx(0.5)


def test_zipf_ranks_fall_by_the_exponent() -> None:
    count = np.bincount(Zipf(1000, 0.8).draw(np.random.default_rng(2), 400_000), minlength=1000)
    ranks = np.arange(1, 101)
    slope = np.polyfit(np.log(ranks), np.log(count[:100]), 1)[0]
    assert slope == pytest.approx(-0.8, abs=0.03)


def test_recorded_times_are_those_of_the_trace_and_start_again_one_mean_gap_after_its_end(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,1\n1,5,1\n6,5,1\n", encoding="utf-8")
    made = read(f"synthetic:rag?requests=5&arrival=recorded&times_of={path}")
    assert made.arrival_s.tolist() == [0, 1, 6, 9, 10]


class TestChat:
    def test_a_turns_prompt_is_the_one_before_its_answer_and_new_tokens(self, chat: Requests) -> None:
        assert chat.output_units is not None
        assert chat.output_offset is not None
        last: dict[int, tuple[int, list[int]]] = {}
        continued = 0
        for i in range(3000):
            prompt, session = chat.prompt_units(i).tolist(), int(chat.session[i])
            if session in last:
                tokens, before = last[session]
                assert chat.prompt_tokens[i] > tokens
                assert prompt[: len(before)] == before
                continued += 1
            answer = chat.output_units[chat.output_offset[i] : chat.output_offset[i + 1]].tolist()
            last[session] = int(chat.prompt_tokens[i] + chat.output_tokens[i]), prompt + answer
        assert continued > 1000

    def test_sessions_have_three_turns_in_the_mean_and_a_geometric_share_has_one(self, chat: Requests) -> None:
        # of the sessions that began early enough to have ended: P(1 turn) = 1/3
        turns = np.bincount(chat.session)[:5000]
        assert turns.mean() == pytest.approx(3, rel=0.05)
        assert (turns == 1).mean() == pytest.approx(1 / 3, abs=0.03)

    def test_requests_settle_at_the_rate_asked_for(self, chat: Requests) -> None:
        late = chat.arrival_s[15_000:]
        assert (len(late) - 1) / (late[-1] - late[0]) == pytest.approx(20, rel=0.07)

    def test_first_turns_of_a_tenant_share_its_system_prompt_and_nothing_with_others(self, chat: Requests) -> None:
        owner: dict[int, int] = {}
        tenant, seen = chat.labels["tenant"].codes, set[int]()
        shared = 0
        for i in range(3000):
            first = int(chat.units[chat.unit_offset[i]])
            assert owner.setdefault(first, int(tenant[i])) == tenant[i]
            if int(chat.session[i]) not in seen and int(tenant[i]) in owner.values():
                shared += 1
            seen.add(int(chat.session[i]))
        assert len(owner) <= 50

    def test_think_times_have_the_mean_asked_for_and_first_turns_none(self, chat: Requests) -> None:
        first = np.unique(chat.session, return_index=True)[1]
        assert np.isnan(chat.think_s[first]).all()
        later = np.delete(chat.think_s, first)
        assert np.isnan(later).sum() == 0
        assert later.mean() == pytest.approx(20, rel=0.05)


class TestAgents:
    def test_every_loop_grows_and_a_tenth_of_the_steps_starts_a_sub_agent(self, agents: Requests) -> None:
        kind = agents.labels["tenant"]
        is_sub = np.array([name.startswith("sub") for name in kind.names])[kind.codes]
        sessions, first = np.unique(agents.session, return_index=True)
        subs, tasks = int(is_sub[first].sum()), int((~is_sub).sum())
        assert subs / tasks == pytest.approx(0.1, rel=0.15)
        order = np.lexsort((agents.arrival_s, agents.session))
        same = np.diff(agents.session[order]) == 0
        assert (np.diff(agents.prompt_tokens[order])[same] > 0).all()
        assert len(sessions) > 1000

    def test_a_prompt_begins_with_the_system_prompt_of_its_kind(self, agents: Requests) -> None:
        first = agents.units[agents.unit_offset[:-1]]
        kind = agents.labels["tenant"].codes
        for code in np.unique(kind):
            assert len(np.unique(first[kind == code])) == 1

    def test_steps_wait_for_the_sub_agent_they_started(self) -> None:
        # One task at a time, every step starts a sub-agent, tools take no time worth counting: while a sub-agent
        # runs no step of a task comes.
        made = read(
            "synthetic:agents?requests=400&requests_per_s=0.001&sub_agent_share=1&tool_median_s=0.001&tool_sigma=0"
            "&block_tokens=64"
        )
        names = made.labels["tenant"].names
        is_sub = [names[code].startswith("sub") for code in made.labels["tenant"].codes]
        switches = [i for i in range(1, 400) if is_sub[i] and not is_sub[i - 1]]
        assert len(switches) == sum(
            1 for sub in is_sub[:-1] if not sub
        )  # each step of a task is followed by a sub-agent


def test_documents_are_whole_blocks_the_most_popular_first_and_found_again_behind_the_same_ones() -> None:
    requests = read("synthetic:rag?requests=4000&documents=30&per_request=2&block_tokens=32&system_prompt_tokens=64")
    starts = requests.units[requests.unit_offset[:-1] + 2]
    asked = np.sort(np.unique(starts, return_counts=True)[1])[::-1]
    assert asked[0] > 3 * asked[-1]
    assert (requests.units[requests.unit_offset[:-1]] == 0).all()
    found = hits(requests)
    assert found.sum() / len(requests.units) > 0.8


def test_lengths_of_a_trace_keep_their_order_and_share_as_much_as_asked() -> None:
    azure = read("mooncake_arxiv_first1000")
    made = read("synthetic:lengths?lengths_of=mooncake_arxiv_first1000&requests=1500&groups=4&shared_share=0.25")
    assert made.prompt_tokens.tolist() == [*azure.prompt_tokens, *azure.prompt_tokens[:500]]
    assert made.output_tokens[:1000].tolist() == azure.output_tokens.tolist()
    share = hits(made)[200:].sum() / np.diff(made.unit_offset)[200:].sum()
    assert share == pytest.approx(0.25, abs=0.03)


class TestServeGen:
    def test_clients_have_the_rates_of_the_statistics_and_start_where_asked(self) -> None:
        # Noon of the bundled day: client 35 asks most (its mean over the day is 4.6 of 10.8 requests a second).
        made = read("synthetic:servegen?requests=20000")
        clients = made.labels["tenant"]
        busiest = clients.names[int(np.argmax(np.bincount(clients.codes)))]
        assert busiest == "client-35"
        assert 5 < len(made) / made.arrival_s[-1] < 20

    def test_a_directory_as_servegen_writes_it(self, tmp_path: Path) -> None:
        rows = "".join(f"{600 * w},{2 if w < 2 else 0},1.5,{'Gamma' if w < 2 else ''},0.5,1.0\n" for w in range(3))
        (tmp_path / "chunk-7-trace.csv").write_text(rows, encoding="utf-8")
        (tmp_path / "chunk-7-dataset.json").write_text(
            '{"0": {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{10: 1.0}"}}', encoding="utf-8"
        )
        made = read(f"synthetic:servegen?data={tmp_path}&requests=6000&start_s=0")
        assert set(made.prompt_tokens.tolist()) == {100, 200}
        assert set(made.output_tokens.tolist()) == {10}
        assert (made.prompt_tokens == 100).mean() == pytest.approx(0.5, abs=0.05)
        # two windows of 600 s at 2 a second, then a silent one, and again
        silent = (made.arrival_s % 1800 >= 1200).sum()
        assert silent == 0
        assert (made.arrival_s < 1800).sum() == pytest.approx(2400, rel=0.1)
        faster = read(f"synthetic:servegen?data={tmp_path}&requests=6000&start_s=600&rate_scale=3")
        assert (faster.arrival_s < 600).sum() == pytest.approx(3600, rel=0.1)

    @pytest.mark.parametrize(
        ("row", "message"),
        [("0,2,1.5,Cauchy,1,1\n", "not Gamma or Weibull"), ("0,2\n", "not as ServeGen writes it"), ("", "no chunk")],
    )
    def test_statistics_that_cannot_be_used_are_refused(self, tmp_path: Path, row: str, message: str) -> None:
        (tmp_path / "chunk-0-trace.csv").write_text(row, encoding="utf-8")
        with pytest.raises(TraceError, match=message):
            read(f"synthetic:servegen?data={tmp_path}&requests=10")


class TestFiles:
    def write(self, tmp_path: Path, text: str) -> str:
        path = tmp_path / "workload.yaml"
        path.write_text(text, encoding="utf-8")
        return f"synthetic:{path}"

    def test_a_file_says_what_a_name_says_and_is_changed_by_what_follows_it(self, tmp_path: Path) -> None:
        trace = self.write(tmp_path, "generator: chat\nseed: 5\nrequests: 200\n")
        assert content(trace) == content("synthetic:chat?seed=5&requests=200")
        assert content(f"{trace}?seed=6") == content("synthetic:chat?seed=6&requests=200")

    def test_a_mixture_has_its_parts_by_weight_and_shares_nothing_between_them(self, tmp_path: Path) -> None:
        text = (
            "generator: mix\nrequests: 6000\nparts:\n"
            "  - {generator: rag, weight: 3, requests_per_s: 10}\n  - {generator: servegen, rate_scale: 1}\n"
            "  - {generator: rag, requests_per_s: 10}\n"
        )
        made = read(self.write(tmp_path, text))
        part = made.labels["part"]
        assert part.names == ("0-rag", "1-servegen", "2-rag")
        assert (np.diff(made.arrival_s) >= 0).all()
        count = np.bincount(part.codes)
        assert len(made) == 6000
        assert count[0] / count[2] == pytest.approx(3, rel=0.1)
        for column in (made.units, made.session):
            owner = np.repeat(part.codes, np.diff(made.unit_offset)) if column is made.units else part.codes
            mixed = [np.unique(owner[column == number]) for number in np.unique(column)[:300]]
            assert all(len(owners) == 1 for owners in mixed)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("- 1\n", "it must be keys and values, with generator"),
            ("generator: [\n", "cannot be read as YAML"),
            ("generator: chat\ntenants: many\n", "tenants is 'many'; it must be a whole number"),
            ("generator: mix\nparts: 3\n", "parts must be a list"),
            ("generator: mix\nweight: 3\nparts: []\n", "mix has no parameter 'weight'"),
            ("generator: mix\nparts:\n  - {generator: chat, block_tokens: 16}\n  - {generator: rag, block_tokens: 32}\n",
             "need blocks of one size"),
        ],
    )  # fmt: skip
    def test_a_file_that_cannot_be_meant_is_refused(self, tmp_path: Path, text: str, message: str) -> None:
        with pytest.raises(TraceError, match=message):
            read(self.write(tmp_path, text))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("chat?cv=2", "cv is 2.0 and arrival is poisson"),
        ("chat?arrival=pareto", "arrival is 'pareto'; it must be one of poisson"),
        ("chat?turns_mean=0.5", "turns_mean is 0.5; it must be at least 1"),
        ("chat?prompt_max_tokens=100", "each must be below the next"),
        ("agents?sub_agent_share=2", "sub_agent_share is 2.0"),
        ("rag?arrival=recorded", "name the trace whose times to take with times_of"),
        ("rag?block_tokens=0", "block_tokens is 0; it must be a finite number above 0"),
        ("lengths?shared_share=1.5", "shared_share is 1.5"),
        ("lengths?lengths_of=nothing.csv", "nothing.csv: no such file"),
        ("servegen?data=/nowhere", "no chunk-"),
    ],
)
def test_parameters_no_workload_can_have_are_refused_by_name(query: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(f"synthetic:{query}")
