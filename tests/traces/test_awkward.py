"""Every tiny file after a real oddity is read as its row in `awkward/README.md` says, or refused in one line."""

from pathlib import Path

import pytest

from kvcache.request import Requests
from traces.errors import TraceError
from traces.options import ReadOptions
from traces.read import opened, read
from traces.stats import hits
from traces.stream import joined

AWKWARD = Path(__file__).parent / "awkward"
PLAIN = "12_bom.jsonl"  # the same three rows as 14, 15 and 26


def refusal(name: str, **options: object) -> str:
    """The one line with which a file is refused, without its folder."""
    with pytest.raises(TraceError) as caught:
        read(AWKWARD / name, options=ReadOptions(**options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{AWKWARD}/", "")


def hit_tokens(name: str, **options: object) -> list[int]:
    workload = read(AWKWARD / name, options=ReadOptions(**options))  # type: ignore[arg-type]
    return [int(min(h * workload.unit_tokens, p)) for h, p in zip(hits(workload), workload.prompt_tokens, strict=True)]


@pytest.mark.parametrize("file", sorted(AWKWARD.iterdir()), ids=lambda file: file.name)
@pytest.mark.parametrize("skip_bad_lines", [False, True])
def test_no_awkward_file_raises_anything_but_a_trace_error(file: Path, skip_bad_lines: bool) -> None:
    try:
        line = "" if len(read(file, options=ReadOptions(skip_bad_lines=skip_bad_lines))) else "no requests, no error"
    except TraceError as error:
        line = str(error)
    assert not line or (str(file) in line and len(line.splitlines()) == 1)


def test_01_rows_out_of_time_order_are_sorted_and_the_first_in_time_misses() -> None:
    workload = read(AWKWARD / "01_unsorted_timestamps.jsonl")
    assert workload.arrival_s.tolist() == [0, 5, 5, 9]
    assert workload.prompt_tokens.tolist() == [1024, 1024, 512, 1536]  # the two at 5 s stay in file order
    assert hits(workload).tolist() == [0, 2, 1, 2]
    assert "2 of 4 rows were out of time order" in workload.notes[0]
    assert "out of time order" in refusal("01_unsorted_timestamps.jsonl", strict=True)


def test_03_missing_output_is_refused_unless_a_default_is_given() -> None:
    assert refusal("03_null_or_missing_output.jsonl").startswith(
        "03_null_or_missing_output.jsonl:1: output_length is null; give a length for such requests with --default"
    )
    workload = read(AWKWARD / "03_null_or_missing_output.jsonl", options=ReadOptions(default_output=7))
    assert workload.output_tokens.tolist() == [7, 7]


def test_05_an_id_under_two_parents_is_noted_and_hits_only_after_the_same_prefix() -> None:
    workload = read(AWKWARD / "05_same_id_other_parent.jsonl")
    assert workload.notes[0].endswith("ids are not prefix-chained; chaining them")
    assert hits(workload).tolist() == [0, 0, 2]


def test_06_a_tail_without_an_id_is_never_hit() -> None:
    assert hit_tokens("06_last_part_block_missing.jsonl") == [0, 1024]


def test_07_ids_that_do_not_fit_name_the_line_and_the_sizes_that_would_fit() -> None:
    assert refusal("07_ids_do_not_fit_length.jsonl") == (
        "07_ids_do_not_fit_length.jsonl:2: hash_ids has 2 ids for 20 tokens; blocks of 512 tokens make it 1; "
        "sizes 10 to 19 would fit (or 7 to 10 if a short last block has no id); set --trace-block-size"
    )
    workload = read(AWKWARD / "07_ids_do_not_fit_length.jsonl", options=ReadOptions(trace_block_size=16))
    assert workload.unit_tokens == 16


def test_09_chat_ids_mean_seconds_and_the_unit_can_be_overridden() -> None:
    workload = read(AWKWARD / "09_seconds_not_ms.jsonl")
    assert workload.arrival_s.tolist() == [0, 61.114]
    assert workload.session.tolist() == [0, 0]
    assert any("seconds" in note and "--time-unit" in note for note in workload.notes)
    as_ms = read(AWKWARD / "09_seconds_not_ms.jsonl", options=ReadOptions(time_unit="ms"))
    assert as_ms.arrival_s[1] == pytest.approx(0.061114)


def test_10_fractions_of_a_millisecond_survive() -> None:
    assert read(AWKWARD / "10_float_ms.jsonl").arrival_s.tolist() == [0, pytest.approx(0.046676808, abs=1e-12)]


@pytest.mark.parametrize(
    "name", ["14_gzip_without_suffix.jsonl", "15_plain_named.jsonl.gz", "26_json_array_not_lines.json"]
)
def test_packing_and_naming_do_not_change_what_is_read(name: str) -> None:
    plain, other = read(AWKWARD / PLAIN), read(AWKWARD / name)
    assert plain.arrival_s.tolist() == other.arrival_s.tolist() == [0, 1, 2]
    assert plain.prompt_tokens.tolist() == other.prompt_tokens.tolist() == [1024, 1536, 600]
    assert plain.units.tolist() == other.units.tolist() == [0, 1, 0, 1, 2, 0, 3]


def test_13_a_byte_order_mark_does_not_hide_the_first_column() -> None:
    assert read(AWKWARD / "13_bom_header.csv").prompt_tokens.tolist() == [4808]


def test_18_ids_above_2_to_the_63_and_equal_in_their_low_32_bits_stay_different() -> None:
    assert hits(read(AWKWARD / "18_huge_ids.jsonl")).tolist() == [0, 2]


def test_19_a_decimal_string_and_its_number_are_one_id() -> None:
    # Ids in order of appearance: a1f0 = 0, b2 = 1, "1" = 2, and 1 is "1".
    assert read(AWKWARD / "19_ids_as_strings.jsonl").units.tolist() == [0, 1, 0, 2, 2]


def test_20_a_prompt_longer_than_any_model_is_read_as_it_is() -> None:
    assert read(AWKWARD / "20_longer_than_model.jsonl").prompt_tokens.tolist() == [191_378]


@pytest.mark.parametrize("name", ["21_empty.jsonl", "38_header_only.csv"])
def test_a_file_without_requests_says_so(name: str) -> None:
    assert refusal(name) == f"no requests in {name}"


def test_22_a_cut_last_line_is_named_or_skipped_and_counted() -> None:
    assert refusal("22_truncated_last_line.jsonl").startswith("22_truncated_last_line.jsonl:3: not JSON")
    workload = read(AWKWARD / "22_truncated_last_line.jsonl", options=ReadOptions(skip_bad_lines=True))
    assert len(workload) == 2
    assert "1 lines skipped" in workload.notes[0]


def test_25_a_page_instead_of_a_trace_is_shown() -> None:
    line = refusal("25_not_found_page.jsonl")
    assert "not a trace: line 1 is not JSON" in line
    assert "'404: Not Found'" in line


def test_27_aliases_are_read_and_must_not_contradict_each_other(tmp_path: Path) -> None:
    assert hit_tokens("27_alias_fields.jsonl") == [0, 1024]
    both = tmp_path / "both.jsonl"
    both.write_text('{"timestamp": 0, "input_length": 9, "input_tokens": 8, "output_length": 1, "hash_ids": [1]}\n')
    with pytest.raises(TraceError, match=r":1: input_length is 9 and input_tokens is 8; .* must agree"):
        read(both)


def test_29_an_empty_prompt_is_refused_and_prompts_without_ids_share_nothing() -> None:
    assert refusal("29_ids_without_length_and_back.jsonl").startswith(
        "29_ids_without_length_and_back.jsonl:1: input_length is 0; it must be a whole number from 1"
    )
    workload = read(AWKWARD / "29_ids_without_length_and_back.jsonl", options=ReadOptions(skip_bad_lines=True))
    assert workload.prompt_tokens.tolist() == [700, 700]
    assert hits(workload).tolist() == [0, 0]
    assert any("2 of 2 requests have no hash_ids" in note for note in workload.notes)


def test_31_a_parent_outside_the_file_and_a_self_parent_are_session_roots() -> None:
    assert read(AWKWARD / "31_parent_not_in_file.jsonl").session.tolist() == [0, 1]


def test_32_a_turn_before_the_previous_ended_keeps_its_time_and_session() -> None:
    workload = read(AWKWARD / "32_turn_before_previous_ended.jsonl")
    assert workload.arrival_s.tolist() == [0, 0.01]
    assert workload.session.tolist() == [0, 0]


def test_35_two_block_sizes_are_refused_with_both_and_the_line() -> None:
    assert refusal("35_mixed_block_size.jsonl").startswith(
        "35_mixed_block_size.jsonl:2: block_size is 64, the lines before have 512"
    )


def test_37_mixed_fractions_of_a_second_are_exact() -> None:
    assert read(AWKWARD / "37_azure_2024_mixed_fraction.csv").arrival_s.tolist() == [0, 0.001163, 0.00993]


def test_41_lost_events_unknown_blocks_and_absent_ranks_are_noted_not_fatal() -> None:
    stream = opened(AWKWARD / "41_kv_events_trtllm.json")
    workload = joined(stream)
    assert (workload.prompt_tokens.tolist(), workload.units.tolist()) == ([1], [9])
    assert any("events are missing before this one (1)" in note for note in stream.notes)
    assert "a removal of a block that is not known to be stored" in stream.doubts


def test_42_null_content_is_empty_and_an_image_is_part_of_the_content(tmp_path: Path) -> None:
    name = "42_chat_null_and_parts.jsonl"
    workload = read(AWKWARD / name, options=ReadOptions(default_output=1))
    # user mark + "hi"; assistant mark; tool mark + "{}"; mark of the answer = 6. Image: mark, 3 pieces, image, mark = 6.
    assert workload.prompt_tokens.tolist() == [6, 6]
    other = tmp_path / name
    other.write_text(
        (AWKWARD / name).read_text(encoding="utf-8").replace("base64,AAAA", "base64,AAAB"), encoding="utf-8"
    )
    first, second = (
        read(p, options=ReadOptions(default_output=1)).prompt_units(1).tolist() for p in (AWKWARD / name, other)
    )
    assert first[:4] == second[:4]
    assert len(hits(read_both(AWKWARD / name, other, tmp_path))) == 4
    assert hits(read_both(AWKWARD / name, other, tmp_path)).tolist() == [0, 1, 6, 4]


def read_both(one: Path, other: Path, folder: Path) -> Requests:
    both = folder / "both.jsonl"
    both.write_text(one.read_text(encoding="utf-8") + other.read_text(encoding="utf-8"), encoding="utf-8")
    return read(both, options=ReadOptions(default_output=1))


def test_39_requests_of_one_instant_keep_file_order() -> None:
    assert read(AWKWARD / "39_same_instant.jsonl").arrival_s.tolist() == [0, 0, 0, 3, 3, 3]
