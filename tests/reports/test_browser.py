"""The page of a sweep in a real browser: hover, click, keys, filters, what is shown against the table, sizes.

Needs Chromium (Debian: `apt-get install chromium`). Where there is none these tests say so and are skipped; continuous
integration installs it, and there a missing browser is a failure.
"""

import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from reports.page.kinds import report
from tests.reports import results, sweeps

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = os.environ.get("KVTIER_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        words = f"no browser: none of {', '.join(NAMES)}; KVTIER_BROWSER can name one"
        pytest.fail(words) if os.environ.get("CI") else pytest.skip(words)
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("page")
    return report(sweeps.write(directory / "sweep"), directory / "page.html", "kvtier")


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    with showing(browser, file) as opened:
        yield opened


@contextmanager
def showing(browser: Browser, file: Path) -> Generator[Page]:
    """The page, which must not complain until it is closed."""
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    opened = context.new_page()
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(file.as_uri())
    try:
        yield opened
    finally:
        context.close()
    assert complaints == []


@pytest.fixture
def kind(request: pytest.FixtureRequest, browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The page of a made-up result."""
    make, name = results.MADE[request.param]
    with showing(browser, report(make(tmp_path / name), tmp_path / "page.html", "kvtier")) as opened:
        yield opened
        opened.set_viewport_size({"width": 390, "height": 800})
        opened.reload()
        assert opened.evaluate("document.documentElement.scrollWidth") <= 390


def section(page: Page, title: str) -> Locator:
    return page.locator("section", has=page.get_by_role("heading", name=title, exact=True))


def test_every_finished_run_is_a_mark_and_a_line_of_the_table(page: Page) -> None:
    expect(page.locator(".mark[data-run]")).to_have_count(17)
    expect(page.locator("table.runs tbody tr")).to_have_count(17)
    expect(page.locator(".count")).to_have_text("17 of 17 runs")


def test_table_shows_the_figures_of_the_sweep_best_first(page: Page) -> None:
    # The best hit rate: block 16, threshold 0, 0.5 - 0.04 = 46 %; it moved 101^2 x 1.5e8 bytes = 1,425 GiB.
    first = page.locator("table.runs tbody tr").first.locator("td")
    assert first.all_inner_texts()[:4] == ["16", "0", "1425", "46"]


def test_hovering_tells_the_configuration_and_its_figures(page: Page) -> None:
    page.locator('.mark[data-run="8"]').hover(force=True)
    tip = page.locator(".tip")
    expect(tip.locator("b")).to_have_text("block 32, threshold 40")
    expect(tip).to_contain_text("token hit rate: 41 % of prompt tokens")
    page.mouse.move(5, 5)
    expect(tip).to_have_count(0)


def test_two_clicked_runs_are_compared_and_a_third_takes_the_place_of_the_first(page: Page) -> None:
    for run in (0, 8):
        page.locator(f'.mark[data-run="{run}"]').click(force=True)
    head = page.locator(".comparison thead th")
    assert head.all_inner_texts() == ["figure", "block 16, threshold 0", "block 32, threshold 40", "change"]
    hit = page.locator(".comparison tbody tr", has_text="token hit rate").locator("td")
    assert hit.all_inner_texts()[1:] == ["46", "41", "-11 %"]
    assert hit.last.get_attribute("class") == "worse"
    page.locator("table.runs tr[data-run='12']").click()
    assert page.locator(".comparison thead th").all_inner_texts()[1:3] == [
        "block 32, threshold 40",
        "block 64, threshold 0",
    ]
    expect(page.locator(".comparison details summary").first).to_have_text("Configuration of block 32, threshold 40")


def test_keyboard_goes_from_run_to_run_and_pins(page: Page) -> None:
    order = page.locator(".mark[data-run][tabindex='0']")
    order.focus()
    start = page.evaluate("document.activeElement.dataset.run")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.run") != start
    page.keyboard.press("Enter")
    expect(page.locator(".mark.pinned")).to_have_count(1)
    assert page.evaluate("document.activeElement.classList.contains('pinned')")


def test_filter_takes_runs_out_of_picture_and_table(page: Page) -> None:
    page.locator("fieldset", has_text="block size").get_by_label("16").uncheck()
    expect(page.locator(".mark[data-run]")).to_have_count(11)
    expect(page.locator(".count")).to_have_text("11 of 17 runs")
    page.locator(".only-front").check()
    # All block sizes move the same bytes, smaller blocks hit more: the front is block 32 at its six thresholds.
    assert {row.split("\t")[0] for row in page.locator("table.runs tbody tr").all_inner_texts()} == {"32"}
    expect(page.locator(".mark[data-run]")).to_have_count(6)


def test_axes_can_be_chosen_and_sorting_follows_a_click(page: Page) -> None:
    page.get_by_label("Up").select_option("ttft_p99_s")
    expect(page.locator(".explore svg").first).to_contain_text("time to first token, p99 (s), lower is better")
    page.get_by_role("button", name="offload threshold").click()
    column = [row.split("\t")[1] for row in page.locator("table.runs tbody tr").all_inner_texts()]
    assert column == [str(t) for t in (0, 20, 40, 60, 80) for _ in range(3)] + ["100", "100"]


def test_heat_map_has_a_cell_for_each_pair_of_settings_that_ran(page: Page) -> None:
    expect(page.locator("rect.cell")).to_have_count(17)
    page.locator('rect.cell[data-run="3"]').click()
    expect(page.locator(".comparison thead th").nth(1)).to_have_text("block 16, threshold 60")


def test_phone_shows_nothing_wider_than_its_screen(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.reload()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_failed_run_is_told_as_text(page: Page) -> None:
    expect(page.locator("section", has_text="Runs that failed")).to_contain_text("request 3 </script> does not fit")


def test_print_leaves_the_controls_out(page: Page) -> None:
    page.emulate_media(media="print")
    expect(page.locator(".controls").first).to_be_hidden()
    expect(page.locator("table.runs")).to_be_visible()


def test_repeats_are_one_cell_with_their_mean_and_one_line_with_their_spread(browser: Browser, tmp_path: Path) -> None:
    file = report(sweeps.write(tmp_path / "sweep", sweeps.repeated()), tmp_path / "page.html", "kvtier")
    with showing(browser, file) as page:
        expect(page.locator(".mark[data-run]")).to_have_count(51)
        expect(page.locator("rect.cell")).to_have_count(17)
        # Block 16, threshold 0: 46, 47 and 48 %.
        page.locator("rect.cell").first.hover()
        expect(page.locator(".tip")).to_contain_text("mean of 3 seeds 47, from 46 to 48")
        expect(page.locator(".mark.near")).to_have_count(3)
        expect(page.locator("line.spread")).to_have_count(17)


def test_curves_show_the_edge_that_no_cache_crosses_and_leave_it_out_when_asked(
    browser: Browser, tmp_path: Path
) -> None:
    file = report(sweeps.write(tmp_path / "sweep", sweeps.repeated()), tmp_path / "page.html", "kvtier")
    with showing(browser, file) as page:
        expect(page.get_by_text("a cache without limit: 60", exact=True)).to_have_count(1)
        page.locator(".with-bound").uncheck()
        expect(page.locator("line.bound")).to_have_count(0)
        page.get_by_label("Up").select_option("ttft_p99_s")
        expect(page.locator(".with-bound")).to_have_count(0)


@pytest.mark.parametrize("kind", ["comparison"], indirect=True)
def test_policies_can_be_hovered_pinned_and_filtered_as_runs_can(kind: Page) -> None:
    assert [row.split("\t")[0] for row in kind.locator("table.runs tbody tr").all_inner_texts()] == list(
        results.POLICIES
    )
    kind.locator('.mark[data-run="1"]').hover(force=True)
    expect(kind.locator(".tip")).to_contain_text("token hit rate: 25 % of prompt tokens")
    for run in (0, 2):
        kind.locator(f'.mark[data-run="{run}"]').click(force=True)
    assert kind.locator(".comparison thead th").all_inner_texts()[1:3] == ["policy arc", "policy fifo"]
    kind.locator("fieldset", has_text="policy").get_by_label("lru").uncheck()
    expect(kind.locator(".mark[data-run]")).to_have_count(2)
    bars = section(kind, "Where prompt tokens were found")
    expect(bars.locator("rect title").first).to_have_text("arc, found in GPU memory: 60 tokens")
    expect(bars).to_contain_text("best possible (MIN, full blocks)")


@pytest.mark.parametrize("kind", ["curve"], indirect=True)
def test_curve_page_draws_the_best_possible_dashed(kind: Page) -> None:
    expect(kind.locator("path[stroke-dasharray]")).to_have_count(1)
    expect(kind.locator(".legend")).to_have_text("lrubest possible (MIN)")
    expect(kind.locator(".lead")).to_contain_text("Without limit 50.00 % of blocks are found.")


@pytest.mark.parametrize("kind", ["run"], indirect=True)
def test_run_page_shows_tiers_traffic_links_latencies_and_misses(kind: Page) -> None:
    for title in (
        "What the tiers hold",
        "Traffic",
        "Time to first token",
        "Time per output token",
        "Requests in the engine",
    ):
        expect(section(kind, title).locator("svg path").first).to_be_attached()
    links = section(kind, "Use of the links")
    # Busy 1 s of the first 2 s, then not at all.
    assert links.locator("path title").all_text_contents() == ["GPU to host: 1 → 50", "GPU to host: 3 → 0"]
    expect(section(kind, "Why blocks were not found").locator("rect title").first).to_have_text(
        "content nobody had yet, blocks: 3 blocks"
    )
    expect(section(kind, "The whole specification")).to_contain_text('"model": "m"')
    expect(section(kind, "What produced it")).to_contain_text("version")


@pytest.mark.parametrize("kind", ["calibration"], indirect=True)
def test_calibration_page_shows_the_rate_of_each_size(kind: Page) -> None:
    points = section(kind, "What copies reached").locator("path title")
    assert points.all_text_contents() == ["host to GPU: 4 KiB → 1", "host to GPU: 1 MiB → 10"]


@pytest.mark.parametrize("kind", ["validation"], indirect=True)
def test_validation_page_shows_the_verdict_and_each_transfers_error(kind: Page) -> None:
    expect(kind.locator(".lead")).to_have_text("off: too slow")
    assert section(kind, "Error over size").locator("path title").all_text_contents() == [
        "d2h: 4 KiB → 0",
        "d2h: 1 MiB → 100",
    ]
    expect(section(kind, "Figures")).to_contain_text("decisions identical")
