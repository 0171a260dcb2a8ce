# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights of messages, of the format of OpenAI for tuning."""

import pytest
from dialogues import CHATML, LLAMA, MISTRAL, encoded, shown, turns

from dovetail_data import Corrupt, Template

QWEN = Template(  # as Qwen3's: reasoning of earlier answers is dropped
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content and loop.last %}{{ '<think>' + m.reasoning_content + '</think>' }}"
    "{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WEIGHED = {
    "chatml": (CHATML, "<|im_end|>\n"),
    "blocks": (LLAMA, "$"),
    "mistral": (MISTRAL, "$"),
    "ambiguous": (QWEN, "<|im_end|>\n"),
}


def learnt(document):
    """The trained ids as text."""
    names = {256: "^", 257: "$"}
    ids = document.arrays["tokens"][document.arrays["mask"] > 0].tolist()
    return "".join(names.get(i, chr(i)) for i in ids)


def weighed(messages, **weights):
    """Messages with weights by their number."""
    return [
        {**m, **({"weight": weights[f"m{i}"]} if f"m{i}" in weights else {})}
        for i, m in enumerate(messages)
    ]


class TestWeights:
    """The format of OpenAI's fine-tuning: 0 is no loss on a message of the assistant."""

    @pytest.mark.parametrize("name", WEIGHED)
    @pytest.mark.parametrize("zero", [0, 0.0])
    def test_0_is_not_trained(self, name, zero):
        template, end = WEIGHED[name]
        chat = turns("Hi", "Ho", "A?", "B.", "C?", "D!")
        if name == "ambiguous":
            chat[3]["reasoning_content"] = "hm"
        whole = encoded(template, chat)
        document = encoded(template, weighed(chat, m1=1, m3=zero, m5=1.0))
        assert document.arrays["tokens"].tolist() == whole.arrays["tokens"].tolist()
        said = learnt(document).replace(" ", "")
        assert said == f"Ho{end}D!{end}"
        # the mask of the others is that of a run without weights
        assert (document.arrays["mask"] <= whole.arrays["mask"]).all()

    @pytest.mark.parametrize("name", ["chatml", "blocks"])
    def test_the_last_message_and_all_ids(self, name):
        template, end = WEIGHED[name]
        chat = weighed(turns("Hi", "Ho", "A?", "B."), m3=0)
        assert encoded(template, chat, train_on="last") is None
        whole = encoded(template, turns("Hi", "Ho", "A?", "B."), train_on="all")
        document = encoded(template, chat, train_on="all")
        assert learnt(document) == learnt(whole)[: -len("B." + end)]

    def test_a_conversation_of_weight_0_is_dropped(self):
        assert encoded(CHATML, weighed(turns("Hi", "Ho"), m0=1, m1=0)) is None

    @pytest.mark.parametrize("weight", [0.5, 2, -1, "0", True, [0]])
    def test_other_weights_are_refused(self, weight):
        result = encoded(CHATML, weighed(turns("Hi", "Ho"), m1=weight))
        assert isinstance(result, Corrupt)
        assert "weight must be 0 or 1: got messages[1] with weight=" in result.error

    def test_weight_0_of_the_user_with_all_ids_is_refused(self):
        result = encoded(CHATML, weighed(turns("Hi", "Ho"), m0=0), train_on="all")
        assert "weight 0 must be the assistant's" in result.error
        assert "got weight=0 in messages[0]. Leave weight out there" in result.error

    def test_blocks_outside_of_a_loop(self):
        template = Template(
            "{{ messages[0].content }}{% generation %}{{ messages[1].content }}{% endgeneration %}"
            "{% if messages | length > 2 %}{{ messages[2].content }}{% generation %}"
            "{{ messages[3].content }}{% endgeneration %}{% endif %}"
        )
        chat = turns("a", "b", "c", "d")
        assert shown(encoded(template, weighed(chat, m1=0))) == "abc[d]"
        assert shown(encoded(template, weighed(chat, m3=0))) == "a[b]cd"
