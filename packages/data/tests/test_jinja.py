# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_data import Template

HI = [{"role": "user", "content": "Hi"}]


def written(source, messages=HI, **settings):
    return Template(source, **settings).render(messages).text


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{% set n = namespace({'_x': 1}) %}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
    ],
)
def test_the_sandbox_holds(source):
    with pytest.raises(ValueError, match=r"must take the messages: got SecurityError: .*\. Mend"):
        written(source)


def test_a_template_cannot_open_files():
    with pytest.raises(ValueError, match=r"must take the messages: got TypeError: no loader"):
        written("{% include '/etc/hostname' %}")


@pytest.mark.parametrize(
    "source, name", [("{{ [1, 2] | random }}", "random"), ("{{ lipsum() }}", "lipsum")]
)
def test_nothing_is_left_to_chance(source, name):
    with pytest.raises(ValueError, match=name):
        written(source)


def test_json_is_written_as_it_is():
    source = "{{ messages | tojson }}|{{ messages | tojson(indent=1, sort_keys=True) }}"
    messages = [{"role": "user", "content": "<é> & '日'"}]
    line = """[{"role": "user", "content": "<é> & '日'"}]"""
    block = """[\n {\n  "content": "<é> & '日'",\n  "role": "user"\n }\n]"""
    assert written(source, messages) == f"{line}|{block}"


def test_json_takes_the_options_of_the_library():
    source = "{{ messages | tojson(ensure_ascii=True, separators=(',', ':')) }}"
    assert written(source, [{"role": "é"}]) == r'[{"role":"\u00e9"}]'


def test_lines_of_blocks_leave_no_space():
    source = "a\n    {% for m in messages %}\n- {{ m.content }}\n    {% endfor %}\nb"
    assert written(source) == "a\n- Hi\nb"


def test_loops_can_be_left_and_namespaces_set():
    source = (
        "{% set n = namespace(last=none) %}"
        "{% for m in messages %}{% if loop.index == 3 %}{% break %}{% endif %}"
        "{% if m.role != 'user' %}{% continue %}{% endif %}{% set n.last = m.content %}{% endfor %}"
        "{{ n.last }}"
    )
    messages = [{"role": r, "content": c} for r, c in [("user", "a"), ("tool", "b"), ("user", "c")]]
    assert written(source, messages) == "a"


def test_what_a_generation_block_sets_ends_with_it():
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert written(source) == "21"
