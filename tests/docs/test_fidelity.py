"""The fidelity page: every system that the essays name has a row, and every path that the page names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Every system that the essays name")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("| ")][
    2:
]
NAMES = (
    "KVCacheBlockPool primaryPtr secondaryPtr KVCacheBlock isPrimary WindowBlockManager FreeBlocksQueue "
    "addSequenceBatch schedulingHasFreeBlocks hasFreeBlocks UnifiedBlockTree LookupNode analyzePrefixReuse "
    "enable_partial_reuse copy_on_partial_reuse cache_salt LoRA P-tuning multimodal BlockKey KvCacheRetentionConfig "
    "TokenRangeRetentionConfig secondary_offload_min_priority cudaMemcpyAsync NVMe GDS cuFile POSIX_DEBUG_FALLBACK "
    "transfer_mode KVCacheTransferManager syncWithBufferManager syncTransfers mPendingReads mPendingWrites "
    "KvCacheIterationStats KVCacheEventManager getEvents exchangeAttentionDpThread MPI router Dynamo bypass "
    "Kubernetes KvCacheConnectorManager getNumNewMatchedTokens NIXL UCX LIBFABRIC InfiniBand RDMA "
    "TRTLLM_TRY_ZCOPY_FOR_KVCACHE_TRANSFER layout TP PP Multi-Token GQA MLA SWA FP8 NVFP4 BF16 "
    "free_gpu_memory_fraction max_tokens max_gpu_total_bytes tokens_per_block enable_block_reuse host_cache_size "
    "MoE CUDA GH200 NVLink-C2C GB200 B200 PCIe NVLink DeepSeek-R1 Qwen SGLang vLLM disaggregated chunked scheduler "
)
"""As the essays have them."""


@pytest.mark.parametrize("name", NAMES.split())
def test_every_system_that_the_essays_name_has_a_row(name: str) -> None:
    assert any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", row[0]) for row in ROWS)


def test_every_row_shows_code_and_test_or_says_why_there_is_none() -> None:
    assert len(ROWS) > 60
    for system, state, code, tests in ROWS:
        if not code or not tests:
            assert state.startswith("not modelled, because "), system
        else:
            assert "`tests/" in tests, system


def test_every_path_on_the_page_exists() -> None:
    paths = re.findall(r"`((?:kvcache|sim|hw|traces|experiments|reports|tests|docs)/[\w./-]+)`", PAGE)
    assert len(paths) > 120
    assert [path for path in paths if not (ROOT / path).exists()] == []
