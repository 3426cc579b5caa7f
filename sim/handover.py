"""Seconds that a prompt's cache takes from a context worker to a generation worker, and where they go.

It sends nothing (`sim.disagg` does). As TensorRT-LLM's cache formatter does it: kernels gather the blocks into one buffer a
receiving rank, the buffers go over the wire, kernels scatter them into blocks. With the same layout on both sides blocks
can go as they lie (zero copy): no kernels, but a descriptor a block. Layer by layer, all but the last layer's part
travels while later layers are still computed.

    prepare -> gather -> wire (a rank's targets one after the other, or side by side) -> scatter
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from sim.hardware import Hardware
from sim.layout import Conversion, Message
from sim.models import nearest

LINKS = Path(__file__).parent / "links"


@dataclass(frozen=True)
class LinkProfile:
    """A transport between two workers, each figure for one GPU's link."""

    name: str
    prepare_s: float
    """From the receiver's request to the first kernel: look-up and hand-shake."""
    start_s: float
    """Fixed cost of a message."""
    descriptor_s: float
    """Cost of each piece of memory that a message is made of."""
    bandwidth_bytes_per_s: float
    must_register: bool
    """Buffers must be made and registered beforehand; they are taken off the KV budget."""
    sources: Mapping[str, str]


def link_names() -> list[str]:
    """The profiles that come with kvtier."""
    return sorted(path.stem for path in LINKS.glob("*.yaml"))


def load_link(name: str) -> LinkProfile:
    """A profile by its name, or a YAML file of the same form by its path."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else LINKS / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"link {name!r} is not known; {nearest(name, link_names())}")
    data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    wanted = [f.name for f in fields(LinkProfile) if f.name not in {"name", "sources"}]
    if not isinstance(data, dict) or set(data) != set(wanted):
        raise ValueError(f"link {path}: it must hold exactly {', '.join(wanted)}, each with value and source")
    for key, figure in data.items():
        if not isinstance(figure, dict) or set(figure) != {"value", "source"}:
            raise ValueError(f"link {path}: {key} must hold value and source")
    figures = {key: data[key]["value"] for key in wanted}
    sources = {key: str(data[key]["source"]) for key in wanted}
    registered = bool(figures.pop("must_register"))
    return LinkProfile(
        path.stem, must_register=registered, sources=sources, **{key: float(value) for key, value in figures.items()}
    )


@dataclass(frozen=True)
class Transport:
    """How caches are handed over."""

    link: LinkProfile
    zero_copy: bool = False
    """Send blocks as they lie, where the layouts agree."""
    layerwise: bool = False
    """Send each layer once it is computed."""
    parallel: bool = False
    """Serve the receivers of one rank side by side (TRTLLM_ENABLE_KVCACHE_RECEIVE_PARALLEL)."""
    buffer_tokens: int = 8192
    """max_tokens_in_buffer: what one staging buffer holds; longer prompts go in several rounds."""
    send_buffers: int = 2
    """TRTLLM_KVCACHE_SEND_MAX_CONCURRENCY_NUM: transfers a context worker sends at once."""
    receive_buffers: int = 1
    """TRTLLM_KVCACHE_RECV_BUFFER_COUNT: transfers a generation worker receives at once."""
    pieces_per_block: int = 1
    """Pieces of memory that one block of one rank is made of: 1 in TensorRT-LLM, 2 x layers where each layer has its own."""


@dataclass(frozen=True)
class Handover:
    """Where the seconds of one transfer go. `seconds` is what comes after the prompt's last layer."""

    prepare_s: float
    gather_s: float
    wire_s: float
    scatter_s: float
    hidden_s: float
    """Part of the above that passes while the prompt is still computed (layer by layer)."""
    wire_bytes: float
    descriptors: int
    """Of the rank that posts most."""

    @property
    def convert_s(self) -> float:
        """Gathering and scattering."""
        return self.gather_s + self.scatter_s

    @property
    def seconds(self) -> float:
        """From the prompt's end to the receiver's blocks."""
        return self.prepare_s + self.gather_s + self.wire_s + self.scatter_s - self.hidden_s


def buffer_bytes(transport: Transport, bytes_per_token: float, conversion: Conversion, *, sends: bool) -> int:
    """Memory that one rank's buffers take from the KV budget; 0 where they are made on demand."""
    if not transport.link.must_register or (transport.zero_copy and conversion.same_layout):
        return 0
    ranks = conversion.by_sender if sends else conversion.by_receiver
    share = max(sum(m.share for m in messages) for messages in ranks.values())
    count = transport.send_buffers if sends else transport.receive_buffers
    return int(count * transport.buffer_tokens * bytes_per_token * share)


def handover(
    transport: Transport,
    conversion: Conversion,
    hardware: Hardware,
    blocks: int,
    tokens_per_block: int,
    bytes_per_token: float,
    layers: int,
    prefill_s: float = 0.0,
) -> Handover:
    """One prompt's transfer: `blocks` blocks of `bytes_per_token` bytes a token over all ranks together.

    `prefill_s`: what the prompt's last chunk takes to compute, behind which layers may travel.
    """
    whole = blocks * tokens_per_block * bytes_per_token
    zero_copy = transport.zero_copy and conversion.same_layout
    rounds = max(1, -(-blocks * tokens_per_block // transport.buffer_tokens))
    link = transport.link
    pieces = blocks * transport.pieces_per_block if zero_copy else rounds

    def busy(messages: list[Message], *, side_by_side: bool) -> float:
        each = [link.start_s + pieces * link.descriptor_s for _ in messages]
        wire = sum(m.share for m in messages) * whole / link.bandwidth_bytes_per_s
        return wire + (max(each) if side_by_side else sum(each))

    senders, receivers = conversion.by_sender.values(), conversion.by_receiver.values()
    outward = [busy(messages, side_by_side=transport.parallel) for messages in senders]
    inward = [busy(messages, side_by_side=True) for messages in receivers]
    wire_s = max(outward + inward)
    gather_s, scatter_s = 0.0, 0.0
    if not zero_copy:
        hbm = hardware.hbm_bytes_per_s * hardware.hbm_efficiency
        gather_s, scatter_s = (
            max(
                len(messages) * hardware.kernel_latency_s + 2 * sum(m.share for m in messages) * whole / hbm
                for messages in side
            )
            for side in (senders, receivers)
        )
    hidden_s = 0.0
    if transport.layerwise:
        moving = gather_s + wire_s + scatter_s
        hidden_s = min(moving * (layers - 1) / layers, prefill_s * (layers - 1) / layers)
    most = max(len(messages) for messages in senders) * pieces
    sent = sum(m.share for m in conversion.messages) * whole
    return Handover(link.prepare_s, gather_s, wire_s, scatter_s, hidden_s, sent, most)
