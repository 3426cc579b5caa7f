"""`kvtier size`, `breakeven`, `xfer` and `figures`: users' own cases, sums worked out by hand, faults as one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from experiments.breakeven import Ask as Break
from experiments.breakeven import Scales, breakeven, lines
from experiments.cli import app
from experiments.sizing import Ask, size
from experiments.xfer import Route, sweep, transfers

GIB = 1024**3
QWEN3_4B = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": True,
}


def kvtier(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def complaint(*arguments: object) -> str:
    """The one line on stderr of a command that ends with 2 and prints nothing else."""
    result = kvtier(*arguments)
    assert result.exit_code == 2
    assert not result.stdout
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("kvtier: ").strip()


@pytest.fixture
def qwen3_4b(tmp_path: Path) -> str:
    path = tmp_path / "Qwen3-4B" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(QWEN3_4B), encoding="utf-8")
    return str(path)


class TestSize:
    def test_a_context_beyond_the_gpu_pool_is_called_impossible(self, qwen3_4b: str) -> None:
        # NVIDIA/TensorRT-LLM issue 7281: 128K of context with a 4B model on a 16 GB card, by way of host memory.
        # 131,072 x 147,456 B = 18 GiB; 16 GiB less 7.49 of weights, x 0.9, is 7.66: not even half.
        answer = size(Ask(qwen3_4b, gpu_gib=16, host_cache_gib=64, isl=131_072))
        assert answer.warnings[0].startswith("active context cannot exceed the GPU pool: needs 18.00 GiB, has 7.6")
        assert "not one such request fits" in answer.warnings[0]
        assert "host memory does not lengthen it" in answer.warnings[0]

    def test_the_issue_s_44k_tokens_fit(self, qwen3_4b: str) -> None:
        assert not any("active" in w for w in size(Ask(qwen3_4b, gpu_gib=16, isl=44_000)).warnings)

    def test_the_log_s_631_blocks_are_explained(self, tmp_path: Path) -> None:
        # NVIDIA/TensorRT-LLM issue 2268: 21.89 GiB, 512 KiB a token, 64 tokens: 630.4, rounded up
        shape = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
        rest = {"vocab_size": 151936, "max_position_embeddings": 32768, "intermediate_size": 11008}
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**shape, **rest}), encoding="utf-8")
        answer = size(Ask(str(path), free_gib=21.89, tokens_per_block=64, route="cpp"))
        assert answer.counts.windows[0].primary_blocks == 631
        assert "full attention: / 64 tokens a block = 631 GPU blocks (rounded up)" in answer.steps
        assert any("524,288 B a token" in step for step in answer.steps)

    def test_the_steps_lead_from_memory_to_blocks(self) -> None:
        # 79.65 - 14.96 = 64.69 GiB; x 0.9 / 4 MiB = 14,904.6
        answer = size(Ask("llama-3.1-8b", "h100-sxm", host_cache_gib=40))
        text = "\n".join(answer.steps)
        assert "79.65 GiB (h100-sxm) - 14.96 GiB weights (bf16) = 64.69 GiB free" in text
        assert "GPU 14,904 blocks = 476,928 tokens, 58.22 GiB; host 10,240 blocks = 327,680 tokens, 40.00 GiB" in text
        assert len(answer.steps) < 20

    def test_a_host_pool_below_the_gpu_pool_is_warned_of(self) -> None:
        [small] = size(Ask("llama-3.1-8b", "h100-sxm", host_cache_gib=40)).warnings
        assert small.startswith(
            "the host pool (40.00 GiB) is smaller than the GPU pool (58.22 GiB): with inclusive tiers"
        )
        assert size(Ask("llama-3.1-8b", "h100-sxm", host_cache_gib=60)).warnings == ()

    def test_no_host_pool_is_warned_of_and_one_below_a_block_refused(self) -> None:
        [none] = size(Ask("llama-3.1-8b", "h100-sxm")).warnings
        assert none.startswith("zero host blocks")
        with pytest.raises(ValueError, match=r"host_cache_size gives it .* bytes and a block takes 4194304"):
            size(Ask("llama-3.1-8b", "h100-sxm", host_cache_gib=0.001))

    def test_pinned_memory_is_that_of_all_ranks_and_mla_copies_are_counted(self) -> None:
        # 8 ranks x 40 GiB hold 40 GiB of different blocks
        answer = size(Ask("deepseek-r1", "h200", tensor_parallel=8, dtype="fp8", host_cache_gib=40))
        assert "pinned host memory of the node: 8 ranks x 40.00 GiB = 320.00 GiB (host_cache_size is per rank)" in (
            answer.steps
        )
        assert answer.warnings[-1] == (
            "replicated host copies: MLA keeps the same cache on every rank, so 320.00 GiB pinned hold 40.00 GiB of"
            " different blocks (8 copies of each)"
        )

    def test_fewer_kv_heads_than_ranks_are_replicated_too(self) -> None:
        found = size(Ask("qwen2.5-7b", "h100-sxm", tensor_parallel=8, host_cache_gib=80)).warnings
        assert found[-1].startswith("replicated host copies: 4 KV heads on 8 ranks, so 640.00 GiB pinned hold 320.00")

    def test_a_sliding_window_needs_itself_and_a_block(self) -> None:
        # gpt-oss, 10,000 tokens: 313 blocks of full attention, (128 + 32) / 32 = 5 of the window
        answer = size(Ask("gpt-oss-120b", "h200", host_cache_gib=200, isl=10_000))
        assert any("= 318 blocks" in step for step in answer.steps)

    def test_longer_than_the_model_takes_is_warned_of(self) -> None:
        found = size(Ask("llama-3.1-8b", "h100-sxm", isl=131_072, osl=1)).warnings
        assert "131,073 tokens are more than llama-3.1-8b takes (131,072)" in found

    def test_the_command_prints_steps_and_warnings_or_json(self, tmp_path: Path) -> None:
        out = tmp_path / "size.json"
        result = kvtier("size", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--json", out)
        assert result.exit_code == 0
        assert "14904 GPU blocks" in result.stdout
        assert "warning: zero host blocks" in result.stdout
        data = json.loads(out.read_text())
        assert data["gpu_tokens"] == 476_928
        printed = kvtier("size", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--json", "-")
        assert json.loads(printed.stdout) == data

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--gpu", "h100"], "hardware 'h100' is not known; nearest: "),
            ([], "give one of --gpu, --gpu-gib and --free-gib: they say how much memory there is"),
            (["--gpu", "h200", "--gpu-gib", "80"], "give one of --gpu, --gpu-gib and --free-gib"),
            (["--free-gib", "0"], "--free-gib is 0.0; it must be a number of GiB above 0"),
            (["--free-gib", "0.001"], "full attention: the GPU pool of 966366 bytes holds no block"),
            (["--free-gib", "9", "--fraction", "1.5"], "free_gpu_memory_fraction is 1.5; it must be in (0, 1)"),
            (["--free-gib", "9", "--dtype", "fp6"], "KV cache dtype is 'fp6'; known: "),
            (["--free-gib", "9", "--host-cache-gib", "-1"], "--host-cache-gib is -1.0; it must be a number of GiB"),
            (["--free-gib", "9", "--route", "rust"], "--route rust is not known; known: python, cpp"),
            (["--gpu-gib", "10"], "the weights of llama-3.1-8b (14.96 GiB a GPU in bf16 at --tp 1) leave no room"),
        ],
    )
    def test_a_fault_is_one_line(self, more: list[str], message: str) -> None:
        assert complaint("size", "--model", "llama-3.1-8b", *more).startswith(message)


class TestBreakeven:
    def test_question_47_comes_out_at_2_91_gb_per_s(self) -> None:
        # ai-dynamo/dynamo issue 6101: 20,000 tokens of an 8B model take 0.9 s to compute; 2.62 GB / 0.9 s
        answer = breakeven(Break("llama-3.1-8b", link="disk", isl=20_000, prefill_s=0.9))
        [point] = answer.points
        assert point.bytes == 20_000 * 131_072
        assert point.computed_s == pytest.approx(0.9)
        assert point.least_gb_per_s == pytest.approx(2.91, abs=0.005)
        assert "crossing in bandwidth at 20,000 tokens: 2.91 GB/s (2.621 GB / 900 ms given" in lines(answer)[0]

    def test_its_66_mb_per_s_are_far_slower_than_computing(self, tmp_path: Path) -> None:
        # 40 s for 2.62 GB
        path = tmp_path / "slow.yaml"
        way = "{latency_s: 0, bandwidth_bytes_per_s: 66e6}"
        path.write_text(f"base: h100-sxm\nlinks: {{gds: {{h2d: {way}, d2h: {way}}}}}\n", encoding="utf-8")
        [point] = breakeven(Break("llama-3.1-8b", str(path), "gds", 20_000, 0.9)).points
        assert point.copy_s == pytest.approx(39.7, abs=0.1)

    @pytest.mark.parametrize("link", ["host", "disk", "gds", "c2c", "host_batched"])
    @pytest.mark.parametrize("block", [1, 16, 64])
    def test_the_crossing_is_where_the_faster_way_changes(self, link: str, block: int) -> None:
        scales = Scales(Break("llama-3.1-8b", link=link, tokens_per_block=block))
        crossing = scales.crossing_tokens()
        assert crossing is not None
        assert scales.loading_wins(crossing)
        assert not scales.loading_wins(crossing - 1)
        assert all(scales.loading_wins(n) for n in range(crossing, crossing + 2_000))

    def test_a_faster_link_pays_for_shorter_prompts(self) -> None:
        at = [Scales(Break("llama-3.1-8b", link=link)).crossing_tokens() or 0 for link in ("c2c", "host", "gds")]
        assert at == sorted(at)
        assert at[0] < at[-1]

    def test_a_link_too_slow_for_any_prompt_has_no_crossing(self, tmp_path: Path) -> None:
        path = tmp_path / "slow.yaml"
        way = "{latency_s: 0, bandwidth_bytes_per_s: 1e6}"
        path.write_text(f"base: h100-sxm\nlinks: {{host: {{h2d: {way}, d2h: {way}}}}}\n", encoding="utf-8")
        answer = breakeven(Break("llama-3.1-8b", str(path), isl=1000))
        assert answer.crossing_tokens is None
        assert lines(answer)[-1].startswith("crossing in tokens: none up to 4,194,304")

    def test_reuse_saves_a_small_model_next_to_nothing(self) -> None:
        # NVIDIA/TensorRT-LLM issue 2631: Qwen2.5-0.5B, 384 tokens, prefix reuse never pays
        [point] = breakeven(Break("qwen2.5-0.5b", isl=384)).points
        assert 1 < point.computed_s / point.loaded_s < 1.2

    def test_a_sliding_window_is_loaded_no_further_than_it_reaches(self) -> None:
        # gpt-oss, 10,000 tokens: 18 full layers of 2,048 B a token, 18 layers of its last 128
        [point] = breakeven(Break("gpt-oss-120b", isl=10_000)).points
        assert point.bytes == pytest.approx((10_000 + 128) * 36_864)

    def test_the_command_prints_a_table_and_the_crossing(self) -> None:
        result = kvtier("breakeven", "--model", "llama-3.1-8b")
        assert result.exit_code == 0
        assert "131,072" in result.stdout
        assert "crossing in tokens: loading is faster from" in result.stdout
        printed = kvtier("breakeven", "--model", "llama-3.1-8b", "--isl", 20_000, "--prefill-s", 0.9, "--json", "-")
        data: dict[str, Any] = json.loads(printed.stdout)
        assert data["points"][0]["least_gb_per_s"] == pytest.approx(2.9127, abs=1e-4)

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--link", "usb"], "--link usb is not known; "),
            (["--prefill-s", "1"], "--prefill-s is the time of a prompt; give its length with --isl"),
            (["--isl", "20000", "--prefill-s", "0"], "--prefill-s is 0.0; it must be a number of seconds above 0"),
            (["--isl", "99999999"], "--isl is 99999999; it must be between 2 and 4,194,304 tokens"),
            (["--gpu", "l40s", "--link", "nvlink"], "hardware l40s has no nvlink link"),
        ],
    )
    def test_a_fault_is_one_line(self, more: list[str], message: str) -> None:
        assert complaint("breakeven", "--model", "llama-3.1-8b", *more).startswith(message)


class TestXfer:
    def test_time_is_descriptors_and_bytes(self) -> None:
        # 1,000 x (10 us + 1 MB / 50 GB/s = 20 us) = 30 ms: a third for descriptors
        [one] = transfers(Route(latency_us=10, gb_per_s=50), 1e9, 1000)
        assert one.seconds == pytest.approx(0.030)
        assert (one.descriptor_s, one.bytes_s) == pytest.approx((0.010, 0.020))

    def test_112_thousand_descriptors_spend_most_of_their_time_posting(self) -> None:
        # vllm-project/vllm issue 55434: 4.9 GB in 112,000 descriptors, 56.9 % of the time posting
        host, network = transfers(Route(links="host,network"), 4.9e9, 112_000)
        assert (host.link, network.link) == ("host", "network")
        assert host.descriptor_s / host.seconds > 0.5
        [merged] = transfers(Route(), 4.9e9, 2_340)
        assert merged.seconds < host.seconds / 4

    def test_both_directions_at_once_take_longer(self) -> None:
        # 83.4 of 93.9 GB/s
        alone, busy = (transfers(Route(busy=b), 2e9, 1000)[0].seconds for b in (False, True))
        assert busy / alone == pytest.approx(93.9 / 83.4, rel=0.001)

    def test_submitters_post_side_by_side_up_to_the_host_link(self) -> None:
        one, four, many = (transfers(Route("l40s", "gds", submitters=n), 1e10, 1000)[0].gb_per_s for n in (1, 4, 64))
        assert one == pytest.approx(13.5, rel=0.02)
        assert four == pytest.approx(26.0, rel=0.02)
        assert many == pytest.approx(26.0, rel=0.01)

    def test_larger_blocks_are_faster(self) -> None:
        rows = sweep(Route(down=True), 1e9, "llama-3.1-8b")
        assert [row.tokens_per_block for row in rows] == [1 << n for n in range(11)]
        assert rows[4].bytes_per_descriptor == 16 * 131_072
        assert rows[4].gb_per_s == pytest.approx(46.2, rel=0.001)  # 2 MiB, as published
        rates = [row.gb_per_s for row in rows]
        assert rates == sorted(rates)

    def test_without_a_model_descriptors_are_swept(self) -> None:
        rows = sweep(Route(links="host_batched"), 1e9, None)
        assert [row.bytes_per_descriptor for row in rows] == [1024 << n for n in range(2, 15)]
        assert rows[3].gb_per_s > 6 * rows[2].gb_per_s  # the step between 16 and 32 KiB

    def test_the_command_prints_one_line_a_link(self) -> None:
        result = kvtier("xfer", "--bytes", "4.9e9", "--descriptors", "112000", "--link", "host,gds,c2c")
        assert result.exit_code == 0
        assert [line.split()[0] for line in result.stdout.splitlines()] == ["link", "host", "gds", "c2c"]
        swept = kvtier("xfer", "--sweep-block", "--model", "qwen3-8b", "--json", "-")
        assert len(json.loads(swept.stdout)) == 11

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--link", "usb"], "--link usb is not known; "),
            (["--link", ","], "--link names no link; known: host, disk"),
            (["--bytes", "0"], "--bytes is 0; it must be above 0"),
            (["--bytes", "nan"], "--bytes is nan; it must be above 0"),
            (["--gbps", "0"], "--gbps is 0; it must be above 0"),
            (["--latency-us", "-1"], "--latency-us is -1.0; it must be a number, at least 0"),
            (["--sweep-block", "--bytes", "-5"], "--bytes is -5; it must be above 0"),
            (["--sweep-block", "--model", "gpt-7"], "model 'gpt-7' is not known"),
        ],
    )
    def test_a_fault_is_one_line(self, more: list[str], message: str) -> None:
        assert complaint("xfer", *more).startswith(message)


class TestFigures:
    def test_the_command_prints_published_and_ours_side_by_side(self) -> None:
        result = kvtier("figures", "--section", "G")
        assert result.exit_code == 0
        assert "issue 2894, blocks" in result.stdout
        assert "7 of 7 figures within tolerance" in result.stdout
        assert "source: NVIDIA/TensorRT-LLM issues 2894" in result.stdout

    def test_json_holds_source_and_verdict(self) -> None:
        rows = json.loads(kvtier("figures", "--section", "F", "--json", "-").stdout)
        assert {row["verdict"] for row in rows} == {"ok"}
        assert all(row["source"].startswith("gds-bench") for row in rows)

    def test_a_figure_out_of_tolerance_is_exit_code_1(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from experiments import figures
        from experiments.published.figure import Figure, Group

        wrong = Group("X", "title", "nobody", (Figure("X", "x", "s", 1.0, 2.0, 0.1),))
        monkeypatch.setattr(figures, "SECTIONS", {"G": lambda: [wrong]})
        result = kvtier("figures", "--section", "G")
        assert result.exit_code == 1
        assert "0 of 1 figures within tolerance" in result.stdout

    def test_an_unknown_section_is_one_line(self) -> None:
        assert complaint("figures", "--section", "Z") == "--section Z is not known; known: B, C, D, E, F, G, Q"
