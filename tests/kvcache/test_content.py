"""Names of token content: what makes two blocks the same, and what a block is called outside."""

from kvcache.blockhash import MultimodalEntry, block_hash
from kvcache.content import Content, MultimodalItem, Namespace
from kvcache.tables import ROOT, Pool, Settings, State, make_state

ITEM = (1, 2, 3, 4, 5, 6, 7, 8)


class Names:
    """One content table with its state; `of` gives the nodes of tokens cut into blocks of 4."""

    def __init__(self) -> None:
        self.content = Content()
        self.state: State = make_state((Pool(64, (4, 0)),), Settings(tokens_per_block=4), nodes=2, runs=4)

    def of(
        self,
        tokens: list[int],
        namespace: Namespace = Namespace(),
        *,
        usable: int | None = None,
        extra_ids: list[int] | None = None,
        items: tuple[MultimodalItem, ...] = (),
    ) -> list[int]:
        self.state, nodes = self.content.nodes(
            self.state,
            tokens,
            len(tokens) if usable is None else usable,
            tokens_per_block=4,
            namespace=namespace,
            extra_ids=extra_ids,
            items=items,
        )
        return nodes


class TestSameness:
    def test_blocks_are_the_same_if_tokens_and_everything_before_are(self) -> None:
        names = Names()
        a, b = names.of([1, 2, 3, 4, 5, 6, 7, 8]), names.of([1, 2, 3, 4, 5, 6, 7, 8, 9])
        c = names.of([0, 2, 3, 4, 5, 6, 7, 8])
        assert (a, len(b)) == (b[:2], 3)
        assert not set(a) & set(c)

    def test_only_the_usable_tokens_are_named(self) -> None:
        names = Names()
        assert names.of([1, 2, 3, 4, 5, 6], usable=4) == names.of([1, 2, 3, 4])
        assert names.of([1, 2, 3], usable=0) == []

    def test_lora_salt_and_the_use_of_extra_ids_keep_blocks_apart(self) -> None:
        names = Names()
        nodes = [
            names.of([1, 2, 3, 4], namespace)[0]
            for namespace in (
                Namespace(),
                Namespace(lora_id=0),
                Namespace(cache_salt=0),
                Namespace(cache_salt=1),
                Namespace(uses_extra_ids=True),
            )
        ]
        assert len(set(nodes)) == 5

    def test_extra_ids_are_part_of_their_tokens_and_missing_ones_are_0(self) -> None:
        names, with_ids = Names(), Namespace(uses_extra_ids=True)
        zeros = names.of([1, 2, 3, 4], with_ids, extra_ids=[0, 0, 0, 0])
        assert names.of([1, 2, 3, 4], with_ids, extra_ids=[0, 0]) == zeros
        assert names.of([1, 2, 3, 4], with_ids, extra_ids=[0, 0, 0, 1]) != zeros

    def test_an_item_counts_in_the_blocks_it_covers_with_its_place_in_each(self) -> None:
        names, tokens = Names(), [9] * 12
        plain = names.of(tokens)
        first = names.of(tokens, items=(MultimodalItem(ITEM, 4, 4),))
        assert (first[0], first[1] != plain[1], first[2] != plain[2]) == (plain[0], True, True)
        assert [names.content.extras_of(n) for n in first] == [(), (MultimodalEntry(ITEM, 0),), ()]
        shifted = names.of(tokens, items=(MultimodalItem(ITEM, 3, 5),))
        assert [names.content.extras_of(n) for n in shifted] == [
            (MultimodalEntry(ITEM, 0),),
            (MultimodalEntry(ITEM, 1),),
            (),
        ]

    def test_a_single_key_of_any_length_hangs_below_any_node(self) -> None:
        names = Names()
        top = names.of([1, 2, 3, 4])[0]
        names.state, child = names.content.child(names.state, top, [5, 6, 7, 8])
        assert child == names.of([1, 2, 3, 4, 5, 6, 7, 8])[1]
        names.state, odd = names.content.child(names.state, ROOT, [5, 6, 7, 8, 9, 10, 11], Namespace(), [1] * 7)
        assert names.content.tokens_of(names.state, odd) == [(t, 1) for t in range(5, 12)]


class TestNames:
    def test_tokens_and_namespace_come_back(self) -> None:
        names, space = Names(), Namespace(3, 4, True)
        (node,) = names.of([5, 6], space, extra_ids=[0, 9])
        assert names.content.tokens_of(names.state, node) == [(5, 0), (6, 9)]
        assert names.content.namespace_of(names.state, node) == space

    def test_the_hash_of_a_node_is_chained_through_its_parents(self) -> None:
        names = Names()
        a, b = names.of([1, 2, 3, 4, 5, 6])
        first = block_hash([1, 2, 3, 4])
        assert names.content.hash_of(names.state, b) == block_hash([5, 6], parent=first)
        assert names.content.hash_of(names.state, a) == first
        assert names.content.hash_of(names.state, ROOT) == 0

    def test_the_hash_covers_lora_salt_extra_ids_and_items(self) -> None:
        names = Names()
        (node,) = names.of([1, 2], Namespace(7, 42, True), extra_ids=[0, 3], items=(MultimodalItem(ITEM, 1, 1),))
        assert names.content.hash_of(names.state, node) == block_hash(
            [1, 2], extra_ids=[0, 3], lora_id=7, cache_salt=42, multimodal=[MultimodalEntry(ITEM, 0)]
        )
